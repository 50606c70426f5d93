"""Search: the fewest workers that keep every batch within its tolerated delay (DistRS Algorithm 1).

Pure. One stage after the other, the dearest first, each by binary search over the queue model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gleaner.actors.reward.planning.items import Floats, Items, Stage
from gleaner.actors.reward.planning.queue_model import Limits, Order, TimeoutCheck, satisfies


@dataclass(frozen=True, slots=True)
class Plan:
    """Workers of each stage. kept: whether they pass the tests of the queue model, and are not merely all
    that there may be."""

    workers: tuple[int, ...]
    kept: bool


def limits_of(
    stages: Sequence[Stage],
    max_delay_s: float | Floats,
    check: TimeoutCheck = TimeoutCheck.QUEUED,
    order: Order = Order.EBF,
) -> Limits:
    """The limits of a plan for these stages."""
    return Limits(max_delay_s, [stage.timeout_s for stage in stages], check, order)


def plan(items: Items, stages: Sequence[Stage], caps: Sequence[int], limits: Limits) -> Plan:
    """Workers of each stage for these items.

    Args:
        items: of all active batches.
        stages: with their costs.
        caps: the most workers that each stage may have.
        limits: to keep. Where even the caps do not keep them the plan is the caps: no plan would be better,
            and an error would help no job.

    Raises ValueError for caps that are fewer than one where a stage has items.
    """
    needed = [bool(items.times_s[:, stage].any()) for stage in range(len(stages))]
    for stage, cap in enumerate(caps):
        if needed[stage] and cap < 1:
            raise ValueError(f"stage {stages[stage].name}: it has items, and may have no worker")
    running = [int((items.on_worker == stage).sum()) for stage in range(len(stages))]
    most = len(items)
    workers = [max(min(most, cap), running[stage]) if needed[stage] else 0 for stage, cap in enumerate(caps)]
    if not any(needed):
        return Plan(tuple(workers), kept=True)
    if not satisfies(items, workers, limits):
        return Plan(tuple(workers), kept=False)
    for stage in _dearest_first(stages):
        low, high = max(running[stage], int(needed[stage])), workers[stage]
        while low < high:
            workers[stage] = (low + high) // 2
            if satisfies(items, workers, limits):
                high = workers[stage]
            else:
                low = workers[stage] + 1
        workers[stage] = low
    return Plan(tuple(workers), kept=True)


def _dearest_first(stages: Sequence[Stage]) -> list[int]:
    """Of stages of one cost the later one first: it waits for the others, so it has less slack."""
    return sorted(range(len(stages)), key=lambda stage: (-stages[stage].cost, -stage))
