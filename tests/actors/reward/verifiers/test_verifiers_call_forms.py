"""Call forms of reward functions: called as in their own frameworks; results are read strictly."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from gleaner.actors.reward.verifiers.call_forms import BadFunction, BadResult, FunctionResult, form_of, read
from gleaner.actors.reward.verifiers.own_function import item_of

ITEM = item_of("2+2?", [], "It is 4.", "4", {"data_source": "sums", "level": 3})
CHAT = item_of("2+2?", [{"role": "user", "content": "2+2?"}], "It is 4.", "4", {})


def own(prompt: str, response: str, answer: str, info: dict[str, object]) -> object:
    return [prompt, response, answer, info]


def some(response: str, *, answer: str) -> object:
    return [response, answer]


def verl(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, object] | None = None
) -> object:
    return [data_source, solution_str, ground_truth, extra_info]


def verl_of_a_reward_manager(
    data_source: str, solution_str: str, ground_truth: str, extra_info: object, **kwargs: object
) -> object:
    return [data_source, solution_str, ground_truth]


def trl(prompts: list[str], completions: list[str], **columns: object) -> object:
    return [prompts, completions, columns["level"], columns["solution"]]


def trl_of_messages(completions: list[list[dict[str, str]]], solution: list[str], **kwargs: object) -> object:
    return [completions[0][0]["content"], solution]


def trl_without_types(completions, **kwargs):  # type: ignore[no-untyped-def]
    return completions


def slime(args: object, sample: object) -> object:
    return [sample.prompt, sample.response, sample.label, sample.metadata["level"]]  # type: ignore[attr-defined]


def slime_of_a_group(args: object, samples: list[object], **kwargs: object) -> object:
    return [one.response for one in samples]  # type: ignore[attr-defined]


def reads_arguments(args: object, sample: object) -> object:
    return args.rm_url  # type: ignore[attr-defined]


INFO = {"data_source": "sums", "level": 3}
CALLS: list[tuple[Callable[..., object], object]] = [
    (own, ["2+2?", "It is 4.", "4", INFO]),
    (some, ["It is 4.", "4"]),
    (verl, ["sums", "It is 4.", "4", INFO]),
    (verl_of_a_reward_manager, ["sums", "It is 4.", "4"]),
    (trl, [["2+2?"], ["It is 4."], [3], ["4"]]),
    (trl_of_messages, ["It is 4.", ["4"]]),
    (trl_without_types, ["It is 4."]),
    (slime, ["2+2?", "It is 4.", "4", 3]),
    (slime_of_a_group, ["It is 4."]),
]


@pytest.mark.parametrize(("function", "given"), CALLS, ids=lambda one: getattr(one, "__name__", ""))
def test_function_is_called_by_its_parameters(function: Callable[..., object], given: object) -> None:
    assert form_of(function).call(function, ITEM) == given


def test_completions_of_a_conversation_are_messages() -> None:
    completion = [{"role": "assistant", "content": "It is 4."}]
    assert form_of(trl_without_types).call(trl_without_types, CHAT) == [completion]
    assert form_of(trl_without_types, "trl-chat").call(trl_without_types, ITEM) == [completion]
    assert form_of(trl).call(trl, {**CHAT, "info": {"level": 1}}) == [["2+2?"], ["It is 4."], [1], ["4"]]


def test_problem_column_overrides_the_answer() -> None:
    item = {**ITEM, "info": {"level": 1, "solution": "worked out"}}
    assert form_of(trl).call(trl, item) == [["2+2?"], ["It is 4."], [1], ["worked out"]]


class Scores:
    """A callable object, as TRL's `get_soft_overlong_punishment` makes them."""

    def __init__(self, bonus: float) -> None:
        self._bonus = bonus

    def __call__(self, completions: list[str], **kwargs: object) -> list[float]:
        return [self._bonus for _ in completions]


def test_callable_object_is_a_function() -> None:
    scores = Scores(0.5)
    assert form_of(scores).call(scores, ITEM) == [0.5]


def x_y(x: str, y: str) -> float:
    return 0.0


def by_place(prompt: str, response: str, /) -> float:
    return 0.0


def needs_more(response: str, tokenizer: object) -> float:
    return 0.0


def needs_tokens(completions: list[str], completion_ids: list[list[int]]) -> list[float]:
    return [0.0]


@pytest.mark.parametrize(
    ("function", "style", "words"),
    [
        (x_y, "auto", r"\(x, y\) have no known form; expected one of: score\(prompt, response"),
        (by_place, "auto", "parameters without names"),
        (needs_more, "auto", "nothing is known for tokenizer"),
        (needs_tokens, "auto", "no completion_ids"),
        (own, "verl", "no parameter solution_str"),
        (own, "slime", r"slime's form takes \(args, sample\)"),
        (Scores, "auto", "it is no function but"),
        ("text", "auto", "it is no function but str 'text'"),
    ],
)
def test_function_of_another_form_is_refused(function: object, style: str, words: str) -> None:
    with pytest.raises(BadFunction, match=words):
        form_of(function, style)


def test_slime_arguments_are_refused_by_name() -> None:
    with pytest.raises(AttributeError, match=r"args\.rm_url: slime's arguments do not exist here"):
        form_of(reads_arguments).call(reads_arguments, ITEM)


@pytest.mark.parametrize(
    ("style", "result", "found"),
    [
        ("own", 0.5, FunctionResult(0.5, {})),
        ("own", True, FunctionResult(1.0, {})),
        ("own", -2, FunctionResult(-2.0, {})),
        ("own", np.float32(0.5), FunctionResult(0.5, {})),
        ("own", np.array(0.5), FunctionResult(0.5, {})),
        (
            "own",
            {"score": 1, "format": 0.25, "pred": "4", "bad": math.nan},
            FunctionResult(1.0, {"format": 0.25}),
        ),
        ("verl", {"score": 1.0, "acc": True}, FunctionResult(1.0, {"acc": 1.0})),
        ("trl", [0.25], FunctionResult(0.25, {})),
        ("trl", np.array([0.25]), FunctionResult(0.25, {})),
        ("slime", 1, FunctionResult(1.0, {})),
        ("slime", [0.5], FunctionResult(0.5, {})),
        ("slime", [{"score": 0.5, "n": 2}], FunctionResult(0.5, {"n": 2.0})),
    ],
)
def test_scores_and_parts_are_read(style: str, result: object, found: FunctionResult) -> None:
    assert read(style, result) == found


@pytest.mark.parametrize(
    ("style", "result", "words"),
    [
        ("own", None, "no number but None"),
        ("own", "1.0", "no number but str '1.0'"),
        ("own", math.nan, "is nan"),
        ("own", math.inf, "is inf"),
        ("own", 10**400, "no number"),
        ("own", [1.0], "no number but list"),
        ("own", {"reward": 1.0}, "a dict without 'score', with reward"),
        ("own", {"score": math.nan}, "its score is nan"),
        ("trl", 0.5, "expected a list with one number"),
        ("trl", [0.5, 0.5], "2 scores for 1 response"),
        ("trl", [None], "no number but None"),
        ("slime", [], "0 scores for 1 response"),
    ],
)
def test_non_scores_are_refused(style: str, result: object, words: str) -> None:
    with pytest.raises(BadResult, match=words):
        read(style, result)


def test_parts_have_a_limit() -> None:
    found = read("own", {"score": 1.0, **{f"{number}" * 200: 1.0 for number in range(1, 200)}})
    assert len(found.parts) == 64
    assert max(map(len, found.parts)) == 80


def test_function_of_trl_scores_as_in_trl() -> None:
    rewards = pytest.importorskip("trl.rewards")
    form = form_of(rewards.think_format_reward)
    for response, worth in (("<think>a</think>b", 1.0), ("b", 0.0)):
        item = {**ITEM, "response": response}
        assert read(form.style, form.call(rewards.think_format_reward, item)) == FunctionResult(worth, {})
