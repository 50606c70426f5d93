"""Plain planner: Algorithm 1 of DistRS with a straightforward simulation in Python, to compare ours with."""

import heapq
from collections.abc import Sequence

from gleaner.actors.reward.planning.items import Items, Stage
from gleaner.actors.reward.planning.queue_model import Order, ranks_of


def plain_plan(
    items: Items, stages: Sequence[Stage], caps: Sequence[int], max_delay_s: float
) -> tuple[int, ...]:
    """As `search.plan`, for items that have all yet to arrive."""
    workers = list(caps)
    latest_s = (items.earliest_s() + max_delay_s)[items.batch].tolist()
    rows = sorted(zip(items.arrival_s.tolist(), range(len(items)), strict=True))
    times_s, ranks = items.times_s.tolist(), ranks_of(items, Order.EBF).tolist()
    behind_s = [sum(stage.timeout_s for stage in stages[at:]) for at in range(len(stages))]

    def simulate() -> bool:
        free, queues = list(workers), [[] for _ in stages]  # type: ignore[var-annotated]
        events = [(arrival_s, 2, row, 0) for arrival_s, row in rows]  # sorted, so it is a heap
        while events:
            now_s, kind, item, stage = heapq.heappop(events)
            if kind == 0:
                free[stage] += 1
                if queues[stage]:
                    other = heapq.heappop(queues[stage])[1]
                    free[stage] -= 1
                    heapq.heappush(events, (now_s + times_s[other][stage], 0, other, stage))
                stage += 1
            while stage < len(stages) and not times_s[item][stage]:
                stage += 1
            if stage == len(stages):
                if now_s > latest_s[item]:
                    return False
            elif kind == 0:
                heapq.heappush(events, (now_s, 1, item, stage))
            elif free[stage]:
                free[stage] -= 1
                heapq.heappush(events, (now_s + times_s[item][stage], 0, item, stage))
            elif now_s + behind_s[stage] > latest_s[item]:
                return False
            else:
                heapq.heappush(queues[stage], (ranks[item], item))
        return True

    for at in sorted(range(len(stages)), key=lambda at: (-stages[at].cost, -at)):
        low, high = 1, caps[at]
        while low < high:
            workers[at] = (low + high) // 2
            if simulate():
                high = workers[at]
            else:
                low = workers[at] + 1
        workers[at] = low
    return tuple(workers)
