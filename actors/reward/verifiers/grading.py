"""`Grading`: from the results of a program's tests to its judgement. Pure.

The results are what the sandbox returned, so they are data of any content; the expected output is here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gleaner.actors.reward.case_limits import CaseLimits, CaseTimes
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


End = tuple[str, str]
"""Status and text of a failed test; the text is "" for a passed one."""


@dataclass(frozen=True, slots=True)
class Grading:
    """How results become a score. whole: 1 where every test passes, else 0; otherwise the share of tests that
    pass. tolerance: as for `comparison`."""

    whole: bool
    tolerance: float

    def judgement(
        self,
        cases: Sequence[Case],
        results: Sequence[tuple[str, str, float]],
        cpu_s: float,
        limited: CaseLimits | None = None,
    ) -> Judgement:
        """The judgement of a program. results: kind, text and processor seconds of each test, fewer where it
        stopped. cpu_s: of the whole program. limited: limits that the tests had of their own."""
        ends = [self._one(case, *result[:2]) for case, result in zip(cases, results, strict=False)]
        ends += [(OK, "not run")] * (len(cases) - len(ends))
        times = None
        if limited:
            used_s = [min(max(0.0, one_s), cpu_s) for _, _, one_s in results[: len(cases)]]
            ends, times = within(limited, ends, used_s)
        failed = [(number, *end) for number, end in enumerate(ends, 1) if end[1]]
        number, status, why = failed[0] if failed else (0, OK, "")
        passed = len(cases) - len(failed)
        return Judgement(
            float(not failed) if self.whole else passed / len(cases),
            status if self.whole else OK,
            f"test {number} of {len(cases)}: {why}" if failed else "",
            {"passed": float(passed), "tests": float(len(cases))},
            cpu_s,
            times,
        )

    def _one(self, case: Case, kind: str, text: str) -> End:
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


def within(limited: CaseLimits, ends: Sequence[End], used_s: Sequence[float]) -> tuple[list[End], CaseTimes]:
    """The ends of tests where each that took longer than its limit has failed, and what they took. used_s: of
    the tests that were run."""
    limits_s, found, cut = limited.of(len(ends)), list(ends), False
    for number, one_s in enumerate(used_s):
        if one_s > limits_s[number]:
            found[number] = _failed["timeout"]
            cut |= limits_s[number] < limited.max_s
    right = not any(why for _, why in found)
    return found, CaseTimes(tuple(used_s) if right else (), cut)


def _same_value(text: str, expected: Sequence[Json], tolerance: float) -> bool:
    try:
        value = msgspec.json.decode(text)
        return any(comparing.same_value(value, one, tolerance) for one in expected)
    except (msgspec.MsgspecError, RecursionError, ArithmeticError):
        return False
