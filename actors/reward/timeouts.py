"""`AdaptiveTimeouts`: how long a program may take for each of its tests (RollPacker section 4.3). Pure.

A program that takes far longer for a test than all right programs took is wrong, almost always, and is not
waited for. Owns the anchors: the longest time of each test in a response that was right in all tests.
T_timeout = min(max(T_min, factor * T_anchor), T_max); without an anchor T_max.

All times are processor seconds of the program and its children, so the load of a host changes no limit and no
verdict. A right program beyond its limit is cut, and so can never raise the anchor. So an audited share of
the programs that were cut is run once more, up to T_max, after its verdict: that shows how many are right,
and raises the anchor.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from gleaner.actors.reward.case_limits import CaseLimits, CaseTimes
from gleaner.configs.schema import Timeouts

MAX_TESTS = 200_000
"""Tests that have an anchor, at most. Those of the least recently scored problems are dropped."""


def limit_s(settings: Timeouts, anchor_s: float | None) -> float:
    """Limit of a test. anchor_s: None where no response was right in all tests yet."""
    if anchor_s is None:
        return settings.max_s
    return min(max(settings.min_s, settings.factor * anchor_s), settings.max_s)


class AdaptiveTimeouts:
    """Limits by problem, for one job. A problem is a name; a proxy of several jobs puts the job in it.

    Args:
        settings: the limits of all.
        rng: draws the audited programs.
        max_tests: with an anchor.
    """

    def __init__(self, settings: Timeouts, rng: Random, max_tests: int = MAX_TESTS) -> None:
        self._settings, self._rng, self._max_tests = settings, rng, max_tests
        self._anchors_s: OrderedDict[str, tuple[float, ...]] = OrderedDict()  # least recently used first
        self.tests = 0
        """Tests that have an anchor."""
        self.problems_dropped = 0
        """Problems whose anchors made room for those of others."""
        self.cut = 0
        """Programs that a limit below `max_s` ended."""
        self.audited = 0
        """Of those the ones that were run once more."""
        self.would_have_passed = 0
        """Of those the ones that passed all tests."""

    def limits(self, problem: str) -> CaseLimits:
        """Limits of the next program for a problem."""
        anchors_s = self._anchors_s.get(problem)
        if anchors_s is None:
            return self.unanchored()
        self._anchors_s.move_to_end(problem)
        return CaseLimits(self._settings.max_s, tuple(limit_s(self._settings, one) for one in anchors_s))

    def unanchored(self) -> CaseLimits:
        """Limits of a program without regard to others."""
        return CaseLimits(self._settings.max_s)

    def observe(self, problem: str, times: CaseTimes) -> tuple[float, ...] | None:
        """Take what a program took. Returns the problem's anchors if they grew."""
        self.cut += times.cut
        return self.raise_anchors(problem, times.right_s) if times.right_s else None

    def audits(self) -> bool:
        """Draw whether a program that was cut is audited."""
        return self._rng.random() < self._settings.audit_share

    def observe_audit(self, problem: str, times: CaseTimes) -> tuple[float, ...] | None:
        """Take what an audited program took, with the limits of `unanchored`. Returns as `observe`."""
        self.audited += 1
        self.would_have_passed += bool(times.right_s)
        return self.observe(problem, times)

    def raise_anchors(self, problem: str, times_s: Sequence[float]) -> tuple[float, ...] | None:
        """Raise the anchors of a problem's tests to at least these times; the anchors if any grew.

        Below `min_s / factor` an anchor changes no limit, so none is lower: most programs raise none.
        """
        least_s = self._settings.min_s / self._settings.factor
        known_s = self._anchors_s.get(problem, ())
        if len(known_s) != len(times_s):  # of a problem that has other tests now, or that is new
            known_s = (0.0,) * len(times_s)
        raised_s = tuple(max(known, time_s, least_s) for known, time_s in zip(known_s, times_s, strict=True))
        if raised_s == self._anchors_s.get(problem):
            return None
        self._put(problem, raised_s)
        return raised_s

    def anchors_s(self) -> Mapping[str, tuple[float, ...]]:
        """The anchors of each test by problem, the least recently used problem first."""
        return self._anchors_s

    def restore(self, anchors_s: Iterable[tuple[str, Sequence[float]]]) -> None:
        """Take the anchors of an earlier time."""
        for problem, times_s in anchors_s:
            self.raise_anchors(problem, times_s)

    def _put(self, problem: str, anchors_s: tuple[float, ...]) -> None:
        self.tests += len(anchors_s) - len(self._anchors_s.get(problem, ()))
        self._anchors_s[problem] = anchors_s
        self._anchors_s.move_to_end(problem)
        while self.tests > self._max_tests:
            _, dropped = self._anchors_s.popitem(last=False)
            self.tests -= len(dropped)
            self.problems_dropped += 1
