"""Step times as shown and written into report.json, by part.

Owns the form, and the time that is in none of the recorded parts. Pure.
"""

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from gleaner.actors.training.account import PARTS as RECORDED
from gleaner.actors.training.records import Restart, Step

PARTS = (*RECORDED, "other")
"""In drawing order, from below."""


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one step, from the end of the step before to its own; the parts sum to `step_s`. restarts:
    of any actor or process, in that time."""

    step: int
    step_s: float
    seeding_s: float
    waiting_s: float
    training_s: float
    weights_s: float
    recovery_s: float
    evaluation_s: float
    other_s: float
    restarts: int = 0

    def part_s(self, name: str) -> float:
        """One of `PARTS`."""
        seconds: float = getattr(self, f"{name}_s")
        return seconds


def step_times(steps: Sequence[Step], restarts: Sequence[Restart]) -> list[StepTime]:
    """Times of these `whole_steps`. restarts: of the whole run, in order, across resumes."""
    at_s = [restart.t_s for restart in restarts]
    found = []
    for step in steps:
        parts = {f"{name}_s": float(getattr(step, f"{name}_s")) for name in RECORDED}
        found.append(
            StepTime(
                step=step.step,
                step_s=step.step_s,
                **parts,
                other_s=max(0.0, step.step_s - sum(parts.values())),
                restarts=bisect_right(at_s, step.t_s) - bisect_right(at_s, step.t_s - step.step_s),
            )
        )
    return found
