"""Plan figures: what the Scheduler shows of a job's plans and of the step that was measured last.

Owns the arithmetic from lengths and times to the figures by which a user judges rounds (docs/rounds.md).
Pure.
"""

import math
from collections.abc import Sequence
from statistics import median

from gleaner.actors.cluster.seeding import SeedingState
from gleaner.actors.cluster.width_planner import WidthState
from gleaner.actors.protocol.step_times import StepTimes, finite

Figures = dict[str, str | int | float]


def plan_figures(seeding: SeedingState | None, widths: WidthState | None) -> Figures:
    """The plan of the next step: seconds, numbers, and tail_gain as a share of a step. What is not predicted
    of rounds is left out."""
    figures: Figures = {
        "t_seed_s": round(seeding.t_seed_s, 3) if seeding is not None else 0.0,
        "n_prem": seeding.n_prem if seeding is not None else 0,
        "width": widths.width if widths is not None else 0,
        "predicted_s": round(seeding.predicted_s, 3) if seeding is not None else 0.0,
        "measured_s": round(seeding.measured_s, 3) if seeding is not None else 0.0,
    }
    if seeding is not None and seeding.tail_gain is not None:
        figures["tail_gain"] = round(seeding.tail_gain, 3)
    if seeding is not None and seeding.tail_surplus is not None:
        figures["tail_surplus"] = seeding.tail_surplus
    return figures


def learnt_tail(seeding: SeedingState | None) -> Figures:
    """The figures of the newest lengths behind the journaled plan (in a job with rounds of the coming kind),
    for a Scheduler that has restarted since. None of them without a model of the step."""
    learnt = seeding.learnt if seeding is not None else None
    return length_figures(learnt.lengths[-1], learnt.limit) if learnt is not None and learnt.lengths else {}


def measured_tail(times: StepTimes) -> Figures:
    """The figures of a step, without those that were not measured. rollout_share: the share of the step in
    which the trainer seeded, or waited for responses."""
    seen = times.seen
    if seen is None:
        return {}
    figures = length_figures(seen.lengths, seen.limit)
    if 0 < seen.step_s < math.inf:
        rollout_s = finite(seen.seeding_s) + finite(times.train_wait_s)
        figures["rollout_share"] = round(min(rollout_s / seen.step_s, 1.0), 3)
    return figures


def length_figures(groups: Sequence[Sequence[int]], limit: int) -> Figures:
    """Of the tokens of some groups' responses (`Seen.lengths`: the group with the step's longest response is
    one of them). longest_over_median: a ratio. at_limit: the share of the responses that have as many tokens
    as the limit; groups_at_limit: the share of the groups with such a response."""
    lengths = [length for group in groups for length in group]
    middle = median(lengths) if lengths else 0
    if middle <= 0:
        return {}
    return {
        "longest_over_median": round(max(lengths) / middle, 2),
        "at_limit": round(sum(length >= limit for length in lengths) / len(lengths), 3),
        "groups_at_limit": round(
            sum(any(length >= limit for length in group) for group in groups) / len(groups), 3
        ),
    }
