"""`Form`: call forms of reward functions (ours, verl, TRL, slime). Pure.

Owns the form of a signature, its arguments, and the meaning of its result. Sources: verl's
`custom_reward_function`, TRL 1.16 `GRPOTrainer._calculate_rewards`, slime's `--custom-rm-path`. Forms with
lists are called with lists of one: a score must not depend on the other responses in a call.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace

Function = Callable[..., object]
Item = Mapping[str, object]
"""One response with its problem: prompt, messages, response, answer, info."""

AUTO, OWN, VERL, TRL, TRL_CHAT, SLIME = "auto", "own", "verl", "trl", "trl-chat", "slime"

OWN_NAMES = ("prompt", "response", "answer", "info", "messages")
VERL_NAMES = ("data_source", "solution_str", "ground_truth", "extra_info")
ANSWER_NAMES = ("answer", "solution", "ground_truth", "label")
"""Columns that TRL's functions find the right answer in."""
MAX_PARTS = 64
MAX_NAME = 80

FORMS = (
    "expected one of: score(prompt, response, answer, info) or some of these; "
    "verl's compute_score(data_source, solution_str, ground_truth, extra_info=None); "
    "TRL's f(prompts, completions, **columns); slime's custom_rm(args, sample) or (args, samples)"
)


class BadFunction(ValueError):
    """A function cannot be used as a reward; the text gives the reason and the expected form."""


class BadResult(ValueError):
    """A function returned no score; the text describes the result."""


@dataclass(frozen=True, slots=True)
class FunctionResult:
    """What a function returned: its score, and other numbers by their names."""

    score: float
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Form:
    """A call form. names: of the parameters that it takes by name. columns: it takes any other name too.
    messages: TRL's completions are messages, not texts; None: as the prompt is."""

    style: str
    names: frozenset[str]
    columns: bool = False
    messages: bool | None = None

    def call(self, function: Function, item: Item) -> object:
        """Call it on one response; what it returned, which may be awaited."""
        if self.style == SLIME:
            return self._slime(function, item)
        given = self._trl(item) if self.style == TRL else _verl(item) if self.style == VERL else dict(item)
        return function(**{name: given[name] for name in given if self.columns or name in self.names})

    def _slime(self, function: Function, item: Item) -> object:
        sample = SimpleNamespace(
            prompt=item["messages"] or item["prompt"],
            response=item["response"],
            label=item["answer"],
            metadata=item["info"],
        )
        return function(_NoArguments(), [sample] if "samples" in self.names else sample)

    def _trl(self, item: Item) -> dict[str, object]:
        chat = bool(item["messages"]) if self.messages is None else self.messages
        prompt, completion = item["prompt"], item["response"]
        if chat:
            prompt = item["messages"] or [{"role": "user", "content": prompt}]
            completion = [{"role": "assistant", "content": completion}]
        info = item["info"]
        assert isinstance(info, Mapping)
        columns = {**dict.fromkeys(ANSWER_NAMES, item["answer"]), **info}
        given: dict[str, object] = {name: [value] for name, value in columns.items()}
        nothing: dict[str, object] = {"trainer_state": None, "log_extra": _ignore, "log_metric": _ignore}
        return {**given, **nothing, "prompts": [prompt], "completions": [completion]}


class _NoArguments:
    """slime's `args`, of which there are none here."""

    def __getattr__(self, name: str) -> object:
        raise AttributeError(
            f"args.{name}: slime's arguments do not exist here; give the function a default for it"
        )


def _ignore(*_: object, **__: object) -> None:
    """Takes what a TRL function logs."""


def _verl(item: Item) -> dict[str, object]:
    info = item["info"]
    assert isinstance(info, Mapping)
    return {
        "data_source": info.get("data_source", ""),
        "solution_str": item["response"],
        "ground_truth": item["answer"],
        "extra_info": dict(info),
    }


def form_of(function: object, style: str = AUTO) -> Form:
    """The form of a function, read off its parameters. Raises BadFunction."""
    if not callable(function) or inspect.isclass(function):
        raise BadFunction(f"it is no function but {_kind(function)}; {FORMS}")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise BadFunction(f"its parameters cannot be read: {error}") from None
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    names = frozenset(one.name for one in named)
    columns = any(one.kind is one.VAR_KEYWORD for one in parameters)
    if any(one.kind is one.POSITIONAL_ONLY and one.default is one.empty for one in parameters):
        raise BadFunction(f"it has parameters without names: ({_shown(function)}); {FORMS}")
    found = _style(names) if style == AUTO else style
    if not found:
        raise BadFunction(f"its parameters ({_shown(function)}) have no known form; {FORMS}")
    needed = {one.name for one in named if one.default is one.empty}
    _check(found, needed, names, columns, _shown(function))
    if found in (TRL, TRL_CHAT):
        chat = True if found == TRL_CHAT else _takes_messages(named)
        return Form(TRL, names, columns, chat)
    return Form(found, names, columns)


def _style(names: frozenset[str]) -> str:
    """The form with a parameter that only it uses for the response; "" for none."""
    if "args" in names and names & {"sample", "samples"}:
        return SLIME
    marks = {"solution_str": VERL, "completions": TRL, "response": OWN}
    return next((style for mark, style in marks.items() if mark in names), "")


def _check(style: str, needed: set[str], names: frozenset[str], columns: bool, shown: str) -> None:
    """Raises BadFunction if a parameter would get no value, or the response has no place."""
    known = {OWN: OWN_NAMES, VERL: VERL_NAMES}.get(style)
    mark = {OWN: "response", VERL: "solution_str", TRL: "completions", TRL_CHAT: "completions"}.get(style)
    if style == SLIME:
        if len(needed) != 2 or "args" not in needed or not names & {"sample", "samples"}:
            raise BadFunction(f"slime's form takes (args, sample) or (args, samples), it takes ({shown})")
        return
    if mark not in names and not columns:
        raise BadFunction(f"{style}: it has no parameter {mark}, it takes ({shown}); {FORMS}")
    if known and (extra := sorted(needed - set(known))):
        raise BadFunction(f"{style}: nothing is known for {', '.join(extra)} of ({shown}); {FORMS}")
    if style in (TRL, TRL_CHAT) and "completion_ids" in needed:
        raise BadFunction(f"trl: it takes ({shown}), and functions get texts here, no completion_ids")


def _takes_messages(named: list[inspect.Parameter]) -> bool | None:
    """Whether completions are messages by their annotation; None without an annotation."""
    kind = next((one.annotation for one in named if one.name == "completions"), inspect.Parameter.empty)
    if kind is inspect.Parameter.empty:
        return None
    text = kind if isinstance(kind, str) else str(kind)
    return True if "dict" in text.lower() else False if "str" in text else None


def read(style: str, result: object) -> FunctionResult:
    """The meaning of a result in a form. Raises BadResult."""
    if style == TRL or (style == SLIME and isinstance(result, list | tuple)):
        if isinstance(result, str | bytes) or not hasattr(result, "__len__"):
            raise BadResult(f"it returned {_kind(result)}, expected a list with one number")
        values = list(result)  # type: ignore[call-overload]
        if len(values) != 1:
            raise BadResult(f"it returned {len(values)} scores for 1 response")
        result = values[0]
    if isinstance(result, Mapping):
        if "score" not in result:
            names = ", ".join(map(str, list(result)[:8]))
            raise BadResult(f"it returned a dict without 'score', with {names or 'nothing'}")
        return FunctionResult(_number(result["score"], "score"), _parts(result))
    return FunctionResult(_number(result, ""), {})


def _number(value: object, name: str) -> float:
    where = f"its {name}" if name else "what it returned"
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise BadResult(f"{where} is no number but {_kind(value)}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadResult(f"{where} is no number: {error}") from None
    if not math.isfinite(number):
        raise BadResult(f"{where} is {number}")
    return number


def _parts(result: Mapping[object, object]) -> dict[str, float]:
    """Other numbers of a result; non-numbers are left out, such as verl's texts beside the score."""
    found: dict[str, float] = {}
    for name, value in result.items():
        if name == "score" or len(found) == MAX_PARTS:
            continue
        try:
            found[str(name)[:MAX_NAME]] = _number(value, "")
        except BadResult:
            continue
    return found


def _kind(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {repr(value)[:80]}"


def _shown(function: Callable[..., object]) -> str:
    return ", ".join(inspect.signature(function).parameters)
