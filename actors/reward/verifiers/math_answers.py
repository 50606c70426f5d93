"""`MathVerifier`: verifier `math`, with math-verify in a sandbox. The trusted end."""

import json
from collections.abc import Sequence
from typing import Annotated

import msgspec

from gleaner.actors.reward import verdicts
from gleaner.actors.reward.entries import Entry, Json
from gleaner.actors.reward.sandbox.port import Limits, Outcome, Status, Work
from gleaner.actors.reward.verdicts import NO_ANSWER, OK, VERIFIER_FAILED, Judgement
from gleaner.actors.reward.verifiers import params
from gleaner.actors.reward.verifiers.port import VerifierSpec
from gleaner.actors.reward.verifiers.sandboxed import Sandboxed

INSIDE = (
    "gleaner.actors.reward.verifiers.math_comparison"  # never imported here: it loads sympy, half a second
)
MEMORY_BYTES = 2**30
STAYING = Limits(cpu_s=3600.0, wall_s=7 * 86_400.0, memory_bytes=MEMORY_BYTES)
"""Limits of the process that answers share, over all of its answers."""
_statuses = (OK, NO_ANSWER, VERIFIER_FAILED)


class MathParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """precision: decimal places to which floats are compared. strict: names of variables count, and a set is
    no tuple. boxed: only the contents of `\\boxed{...}` are an answer."""

    precision: Annotated[int, msgspec.Meta(ge=0, le=30)] = 6
    strict: bool = True
    boxed: bool = False


class MathVerifier(Sandboxed):
    """A `Verifier`. `Entry.answer`: LaTeX, plain text, a number, or a list of those that are right."""

    def __init__(self, spec: VerifierSpec) -> None:
        self._params = params.read(spec, MathParams)
        deadline_s = spec.deadline_s
        self._limits = Limits(cpu_s=deadline_s, wall_s=2 * deadline_s, memory_bytes=MEMORY_BYTES)
        super().__init__(spec.isolation, [(f"{INSIDE}:prepare", None)])

    def check(self, entry: Entry) -> str:
        """See `Verifier`."""
        accepted = entry.answer if isinstance(entry.answer, list | tuple) else [entry.answer]
        if not accepted:
            return "its answer is an empty list; give one right answer or more"
        for one in accepted:
            if isinstance(one, bool) or not isinstance(one, str | int | float):
                return f"its answer is {_kind(one)}; give LaTeX, text, a number, or a list of these"
            if not str(one).strip():
                return "its answer is empty"
        return ""

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        """See `Verifier`: 1 for an answer that equals one of the expected, else 0.

        Answers are read one after the other by a process of the sandbox that stays, as nothing of them is
        executed; each has the processor time of its own. One that makes the process end for another reason
        is tried again in a process that no answer was in before.
        """
        return [self._judge(entry, response) for entry, response in items]

    def _judge(self, entry: Entry, response: str) -> Judgement:
        if problem := self.check(entry):
            return Judgement(0.0, VERIFIER_FAILED, problem)
        work = Work(
            function=f"{INSIDE}:score",
            payload=self._request(entry, response),
            limits=STAYING,
            each_s=self._limits.cpu_s,
        )
        outcome = self.sandbox.ask(work)
        if outcome.status is Status.TIMEOUT:
            return Judgement(
                0.0, outcome.status.value, f"not read within {work.each_s:g} s of processor time"
            )
        if outcome.status is not Status.OK:
            alone = Work(function=work.function, payload=work.payload, limits=self._limits)
            outcome = self.sandbox.run(alone)
        return _judgement(outcome)

    def _request(self, entry: Entry, response: str) -> bytes:
        accepted = entry.answer if isinstance(entry.answer, list | tuple) else [entry.answer]
        asked = {
            "expected": [str(one).strip() for one in accepted],
            "response": response,
            **msgspec.to_builtins(self._params),
        }
        return json.dumps(asked).encode()


def _judgement(outcome: Outcome) -> Judgement:
    """What the program inside returned, read strictly."""
    if outcome.status is not Status.OK:
        return verdicts.of_failure(outcome)
    try:
        score, status, detail = msgspec.json.decode(outcome.result, type=tuple[float, str, str])
    except (msgspec.MsgspecError, RecursionError):
        return Judgement(0.0, VERIFIER_FAILED, f"its result is no verdict: {outcome.result[:80]!r}")
    if score not in (0.0, 1.0) or status not in _statuses:
        return Judgement(0.0, VERIFIER_FAILED, f"its result is no verdict: {outcome.result[:80]!r}")
    return Judgement(score, status, detail)


def _kind(value: Json) -> str:
    return "missing" if value is None else f"of type {type(value).__name__}"
