"""Verifiers of `reasoning-gym` inside the sandbox.

Four of its tasks hand the answer to `eval` and five to sympy's `parse_expr`: in these the two are replaced by
functions that evaluate nothing, so that an answer cannot score itself. Source: reasoning-gym 0.1.25, by
reading.
"""

import importlib
import math
import pickle
from collections.abc import Sequence

from gleaner.actors.reward.gym import ProceduralDataset, create_dataset
from gleaner.actors.reward.verdicts import NO_ANSWER, VERIFIER_FAILED, Judgement
from gleaner.actors.reward.verifiers import plain_answers

FUNCTION = f"{__name__}:score"
PREPARE = f"{__name__}:prepare"
EVALUATE = ("games.n_queens", "algorithmic.spiral_matrix", "algorithmic.binary_matrix",
            "algorithmic.string_insertion")  # fmt: skip
PARSE = ("games.countdown", "games.puzzle24")
RAISED = b"raised "

_datasets: list[ProceduralDataset] = []


def prepare(task: dict[str, object]) -> None:
    """Make the verifier of a task, once for all programs. task: its name and parameters."""
    sympy = importlib.import_module("sympy")
    for module in EVALUATE:
        vars(importlib.import_module(f"reasoning_gym.{module}"))["eval"] = plain_answers.literal
    plain = plain_answers.plain_parser(sympy.parse_expr)
    for module in PARSE:
        vars(importlib.import_module(f"reasoning_gym.{module}"))["parse_expr"] = plain
    vars(sympy)["parse_expr"] = plain
    params = task["params"]
    assert isinstance(params, dict)
    _datasets[:] = [create_dataset(str(task["name"]), seed=0, size=1, **params)]


def score(payload: bytes) -> bytes:
    """A line for each answer: its score, or why the verifier raised. The payload is trusted and its answers
    are not: they are texts in it, which are parsed as text."""
    return b"\n".join(_line(*one) for one in pickle.loads(payload))  # written by `request`


def _line(answer: str, entry: dict[str, object]) -> bytes:
    try:
        return repr(float(_datasets[0].score_answer(answer, entry))).encode()
    except Exception as error:  # noqa: BLE001  # a hundred foreign verifiers, parsing what a model made up
        return RAISED + " ".join(f"{type(error).__name__}: {error}".split())[:300].encode()


def request(answers: Sequence[tuple[str, dict[str, object]]]) -> bytes:
    """The payload for `score`: answers, each with the package's entry of its problem."""
    return pickle.dumps(list(answers))


def judgements(result: bytes, count: int) -> list[Judgement] | None:
    """The results of `score`, read strictly; None if their number is wrong."""
    lines = result.split(b"\n")
    if len(lines) != count:
        return None
    return [_judgement(line) for line in lines]


def _judgement(line: bytes) -> Judgement:
    if line.startswith(RAISED):
        return Judgement(0.0, NO_ANSWER, line.removeprefix(RAISED).decode("utf-8", "replace"))
    try:
        score = float(line[:32])
    except ValueError:
        return Judgement(0.0, VERIFIER_FAILED, f"its result is no number: {line[:80]!r}")
    if not math.isfinite(score):  # of an answer such as "nan": its own fault, and no plain wrong answer
        return Judgement(0.0, NO_ANSWER, f"the package's score of it is {score}")
    return Judgement(min(max(score, 0.0), 1.0))
