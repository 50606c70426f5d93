"""The state of the reward tier as messages, for inspection. Pure: reads what `ItemDispatch` holds."""

import math
from collections import Counter

from gleaner.actors.protocol.reward import (
    ItemState,
    JobState,
    RewardBatchState,
    RewardHostState,
    RewardState,
    StageState,
)
from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.item_dispatch import ItemDispatch
from gleaner.actors.reward.planning.tolerated_delay import tolerated_s
from gleaner.actors.reward.wait_reasons import why_waits

WAITS, RUNS, SCORED, UNKNOWN = "waits", "runs", "has its verdict", "is not here"


def state_of(
    dispatch: ItemDispatch,
    planned: dict[str, int],
    now_s: float,
    request: str = "",
    max_delay_s: float | None = None,
) -> RewardState:
    """Stages, hosts and batches; with a request, that item (see `RewardStatus`).

    planned: workers of each stage by the last plan. max_delay_s: of a batch, by the planner; None: it
    tolerates none, or there is no planner.
    """
    items = dispatch.items  # what waits is not gone through: a live view asks each second
    running = Counter(item.stage for item in items.running())
    of_batch = Counter(item.batch for item in items.running())
    return RewardState(
        stages=[
            StageState(
                name=stage,
                workers=dispatch.hosts.workers(stage),
                most=sum(host.most.get(stage, 0) for host in dispatch.hosts),
                planned=planned.get(stage),
                queued=items.waiting_in(stage),
                running=running[stage],
                item_s=dispatch.hosts.item_s(stage),
            )
            for stage in dispatch.stages
        ],
        hosts=[
            RewardHostState(
                name=host.name,
                workers=dict(host.workers),
                items=sum(host.has.values()),
                barred=sorted(host.barred),
            )
            for host in dispatch.hosts
        ],
        batches=[
            RewardBatchState(
                name=batch.name,
                expected=batch.expected,
                arrived=batch.arrived,
                scored=len(batch.arrivals_s),
                queued=sum(items.waiting_of(batch.name).values()),
                running=of_batch[batch.name],
                age_s=now_s - batch.origin_s,
                complete_in_s=batch.complete_s - now_s if math.isfinite(batch.complete_s) else None,
                tolerated_s=(
                    tolerated_s(max_delay_s, batch.complete_s - batch.origin_s)
                    if max_delay_s is not None and math.isfinite(batch.complete_s)
                    else None
                ),
                kind=batch.kind,
            )
            for batch in dispatch.batches.active()
        ],
        item=_item(dispatch, request, now_s) if request else None,
        jobs=[
            JobState(
                name=job.name,
                weight=job.weight,
                guaranteed=job.guaranteed,
                queued=job.queued,
                running=job.running,
                scored=job.scored,
                worker_s=dict(job.worker_s),
                lost=job.lost,
                refused=job.refused,
                sick_for_s=max(job.sick_until_s - now_s, 0.0),
            )
            for job in dispatch.jobs
        ],
    )


def _item(dispatch: ItemDispatch, request: str, now_s: float) -> ItemState:
    item = dispatch.items.get(request) or _longest_of(dispatch, request)
    if item is None:
        return ItemState(request=request, state=SCORED if dispatch.verdicts.has(request) else UNKNOWN)
    return ItemState(
        request=item.id,
        state=RUNS if item.host else WAITS,
        batch=item.batch,
        stage=item.stage,
        host=item.host,
        attempts=item.attempts,
        for_s=now_s - (item.began_s if item.host else item.arrival_s),
        ahead=0 if item.host else sum(_first(dispatch, one, item) for one in dispatch),
        why="" if item.host else why_waits(dispatch, item),
        job=item.job,
    )


def _longest_of(dispatch: ItemDispatch, job: str) -> RewardItem | None:
    """The item of a job that waits longest; if none waits, the one that runs longest."""
    items = (item for item in dispatch if item.job and item.job == job)
    return min(
        items,
        key=lambda one: (bool(one.host), one.began_s if one.host else one.arrival_s),
        default=None,
    )


def _first(dispatch: ItemDispatch, one: RewardItem, other: RewardItem) -> bool:
    """Whether an item leaves the queue before the other one."""
    if one.host or one.stage != other.stage or one is other:
        return False
    complete_s = dispatch.batches.complete_s
    one_s, other_s = (complete_s.get(item.batch, math.inf) for item in (one, other))
    return (one_s, one.arrival_s) < (other_s, other.arrival_s)
