"""Published balancing: RLBoost's Algorithm 2 as it is printed, for comparison with Gleaner's own rules.

Pure: lines 1-12 choose the instance of the next request, lines 13-27 one move. Gleaner's own rules
(`placement`, `rebalancer`) differ from these, each where its module states. The paper leaves open which
instance i is taken where several qualify (here the one that decodes least), the ties of its minima and
maxima (by name), and which executing requests move (here those that came last).
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace

import numpy as np

from gleaner.actors.rollout.dispatch.placement import Instance, InstanceId
from gleaner.actors.rollout.dispatch.rebalancer import Load, Move, Requests


def select(
    instances: Iterable[Instance], roots: Mapping[int, bytes], count: int, max_pending: int
) -> list[InstanceId]:
    """Lines 1-12: the instances of the next `count` requests; fewer where Θ are pending on every one, then
    the rest waits. Line 9 of the paper minimises over all instances; the candidates are meant."""
    queues = [
        (one.pending, one.chosen, one.id)
        for one in instances
        if one.serves(roots) and one.pending < max_pending  # lines 3-7
    ]
    heapify(queues)
    chosen: list[InstanceId] = []
    while queues and len(chosen) < count:
        pending, before, id = queues[0]  # line 9
        chosen.append(id)
        if pending + 1 < max_pending:
            heapreplace(queues, (pending + 1, before, id))
        else:
            heappop(queues)
    return chosen


def decide(loads: Sequence[Load]) -> list[Move]:
    """Lines 14-27: one pass of the loop, so one move or none."""
    free = [load for load in loads if not load.busy]
    targets = sorted((load for load in free if load.gates), key=lambda load: (len(load.executing), load.id))
    waiting = [load for load in free if len(load.pending)]
    empty = [load for load in targets if not len(load.pending)]
    if waiting and empty:  # line 18
        source = min(waiting, key=lambda load: (-len(load.pending), load.id))
        return _move(source, empty[0], source.pending, 1, executing=False)
    idle = [load for load in targets if not len(load.executing)]
    if not idle:  # line 21
        return []
    source = min(free, key=lambda load: (-len(load.executing), load.id))
    if source.model is None or source.id == idle[0].id or not len(source.executing):
        return []  # the profile table exists from the second step on
    plateau = source.model.plateau(float(source.executing.context.mean()), source.slots)
    count = max(len(source.executing) - plateau, 0)
    return _move(source, idle[0], source.executing, count, executing=True)


def _move(source: Load, target: Load, requests: Requests, count: int, *, executing: bool) -> list[Move]:
    """The last `count` of these requests that may move and that the target may decode."""
    fit = np.flatnonzero(requests.movable & np.isin(requests.gate, sorted(target.gates)))
    tickets = tuple(requests.tickets[fit[max(0, len(fit) - count) :]].tolist())
    return [Move(source.id, target.id, tickets, executing)] if tickets else []
