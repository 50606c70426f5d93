"""`Grading`: from the results of a program's tests to its judgement. Pure.

The results are what the sandbox returned, so they are data of any content; the expected output is here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gleaner.actors.reward.entries import Json
from gleaner.actors.reward.sandbox.port import Status
from gleaner.actors.reward.verdicts import OK, Judgement
from gleaner.actors.reward.verifiers import comparison as comparing
from gleaner.actors.reward.verifiers.cases import Case

_failed = {
    "raised": (Status.CRASHED.value, "it raised"),
    "exited": (Status.CRASHED.value, "it ended:"),
    "timeout": (Status.TIMEOUT.value, "it took too long"),
    "too long": (Status.OUTPUT.value, "it wrote too much:"),
}


@dataclass(frozen=True, slots=True)
class Grading:
    """How results become a score. whole: 1 where every test passes, else 0; otherwise the share of tests that
    pass. tolerance: as for `comparison`."""

    whole: bool
    tolerance: float

    def judgement(
        self, cases: Sequence[Case], results: Sequence[tuple[str, str, float]], cpu_s: float
    ) -> Judgement:
        """The judgement of a program. results: kind, text and processor seconds of each test, fewer where it
        stopped."""
        passed, first = 0, ("", "")
        for number, case in enumerate(cases, 1):
            status, why = (
                self._one(case, *results[number - 1][:2]) if number <= len(results) else (OK, "not run")
            )
            if why and not first[1]:
                first = status, f"test {number} of {len(cases)}: {why}"
            passed += not why
        return Judgement(
            float(passed == len(cases)) if self.whole else passed / len(cases),
            (first[0] or OK) if self.whole else OK,
            first[1],
            {"passed": float(passed), "tests": float(len(cases))},
            cpu_s,
        )

    def _one(self, case: Case, kind: str, text: str) -> tuple[str, str]:
        """Status and text of a failed test; "" for a passed one."""
        if kind in _failed:
            status, words = _failed[kind]
            return status, f"{words} {text}".strip()[:300]
        if kind == "text" and not case.call:
            same = any(comparing.same_text(text, str(one), self.tolerance) for one in case.expected)
        elif kind == "value" and case.call:
            same = _same_value(text, case.expected, self.tolerance)
        else:
            same = False
        return (OK, "") if same else (OK, f"another {'value' if case.call else 'output'}: {text[:100]!r}")


def _same_value(text: str, expected: Sequence[Json], tolerance: float) -> bool:
    try:
        value = msgspec.json.decode(text)
        return any(comparing.same_value(value, one, tolerance) for one in expected)
    except (msgspec.MsgspecError, RecursionError, ArithmeticError):
        return False
