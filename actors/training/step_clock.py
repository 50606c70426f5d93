"""`StepClock`: time of a step by use, every second under one name.

A step lasts from the end of the previous step to its own end. Owns the sums and the rules by which time
counts as recovery. Pure: times are arguments. The trainer measures its own attempt with `Laps`; the
controller, which outlives attempts, makes the whole step of it with `StepClock`.

Recovery includes: the absences of the manager or the trainer; attempts without a result; a pass that was
given up because the trainer went back; and the time spent on the current step by an earlier life of the
controller, or by the run before a resume.
"""

from collections import defaultdict
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """Seconds of one step by use. They do not overlap; `step_s` is their sum."""

    seeding_s: float = 0.0
    waiting_s: float = 0.0
    training_s: float = 0.0
    weights_s: float = 0.0
    recovery_s: float = 0.0
    evaluation_s: float = 0.0
    other_s: float = 0.0

    @property
    def step_s(self) -> float:
        """The sum of all parts."""
        return sum(float(getattr(self, field.name)) for field in fields(self))


GIVES_WAY = ("recovery", "other", "evaluation", "waiting", "seeding", "weights", "training")
"""The order in which parts are cut if they exceed the step. An attempt goes on while the controller, and with
it the clock of the run, is stopped, and most of that time is spent waiting."""


class Laps:
    """Counts every moment since the start under one name."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self.spent: defaultdict[str, float] = defaultdict(float)

    def lap(self, what: str, now_s: float, away_s: float = 0.0) -> float:
        """Count the time since the last lap as `what`, except for `away_s` of it, which is recovery. Returns
        its length."""
        lap_s = max(0.0, now_s - self._since_s)
        lost_s = min(max(0.0, away_s), lap_s)
        self.spent["recovery"] += lost_s
        self.spent[what] += lap_s - lost_s
        self._since_s = now_s
        return lap_s


class StepClock:
    """Clock of one step after the other. `begin_s`: the end of the step before, or of the first
    evaluation.
    """

    def __init__(self, begin_s: float) -> None:
        self._begin(begin_s)

    def _begin(self, now_s: float) -> None:
        self._begin_s = now_s
        self._laps = Laps(now_s)

    def lap(self, what: str, now_s: float, away_s: float = 0.0) -> None:
        """See `Laps.lap`; `what` is "recovery", "evaluation" or "other"."""
        self._laps.lap(what, now_s, away_s)

    def attempt(self, parts: StepSeconds, now_s: float, *, again: bool) -> None:
        """Count the time from the order of the step to its result, of which the last attempt took `parts`.
        again: there was an attempt before it."""
        spent = self._laps.spent
        rest_s = self._laps.lap("attempt", now_s) - parts.step_s
        del spent["attempt"]
        spent["recovery" if again or rest_s < 0 else "other"] += rest_s
        for what in ("seeding", "waiting", "training", "weights", "recovery"):
            spent[what] += getattr(parts, f"{what}_s")

    def void(self, now_s: float) -> None:
        """All work since the start is lost and must be done again."""
        self._laps.lap("other", now_s)
        lost_s = sum(self._laps.spent.values())
        self._laps.spent.clear()
        self._laps.spent["recovery"] = lost_s

    def end(self, now_s: float) -> StepSeconds:
        """The step has ended, and the next one begins."""
        self._laps.lap("other", now_s)
        parts = _not_negative(dict(self._laps.spent))
        self._begin(now_s)
        return StepSeconds(**{f"{what}_s": seconds for what, seconds in parts.items()})


def _not_negative(parts: dict[str, float]) -> dict[str, float]:
    """The same sum, with no part below zero."""
    owed_s = -sum(seconds for seconds in parts.values() if seconds < 0)
    found = {what: max(0.0, seconds) for what, seconds in parts.items()}
    for what in GIVES_WAY:
        cut_s = min(owed_s, found.get(what, 0.0))
        if cut_s:
            found[what] -= cut_s
            owed_s -= cut_s
    return found
