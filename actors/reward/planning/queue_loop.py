"""The loop of the queue model, compiled by numba for this processor: seconds once a machine, then cached.

Owns the order of events. `queue_model` has the meaning of its arguments.
"""

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

QUEUED, STARTED = 1, 2
"""Values of `check`."""


def _push(times_s: Any, keys: Any, size: int, time_s: float, key: int) -> int:
    """Add to a heap by (time, key); its new size."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if times_s[above] < time_s or (times_s[above] == time_s and keys[above] <= key):
            break
        times_s[at], keys[at] = times_s[above], keys[above]
        at = above
    times_s[at], keys[at] = time_s, key
    return size + 1


def _pop(times_s: Any, keys: Any, size: int) -> int:
    """Remove the first, which the caller has read; the new size."""
    size -= 1
    time_s, key, at = times_s[size], keys[size], 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        other = below + 1
        if other < size and (
            times_s[other] < times_s[below]
            or (times_s[other] == times_s[below] and keys[other] < keys[below])
        ):
            below = other
        if time_s < times_s[below] or (time_s == times_s[below] and key <= keys[below]):
            break
        times_s[at], keys[at] = times_s[below], keys[below]
        at = below
    times_s[at], keys[at] = time_s, key
    return size


@functools.cache
def compiled() -> Callable[..., tuple[bool, int]]:
    """The loop: whether all items kept their limits, and how many waits there were.

    Its arguments, for n items and m stages: rows by arrival (n); arrival_s (n); times_s (n, m); on_worker
    (n); workers (m); behind_s (m), the timeouts of a stage and of those behind it; check: 0, QUEUED, STARTED;
    ranks (n), places in the queues; latest_s (n), by which each must be complete; and two that it fills if
    they are not empty: finish_s (n), begun_s (n, m).
    """
    push, pop = numba.njit(cache=True)(_push), numba.njit(cache=True)(_pop)

    def loop(
        by_arrival: Any,
        arrival_s: Any,
        times_s: Any,
        on_worker: Any,
        workers: Any,
        behind_s: Any,
        check: int,
        ranks: Any,
        latest_s: Any,
        finish_s: Any,
        begun_s: Any,
    ) -> tuple[bool, int]:
        count, stages = times_s.shape
        free, at_stage = workers.copy(), np.zeros(count, np.int64)
        # An event is a completion (the item), or an arrival at a later stage (the item + count): of one time
        # the completions come first, so that a worker that becomes free is free for what arrives then.
        event_s, events, size = np.empty(2 * count + 1), np.empty(2 * count + 1, np.int64), 0
        queue_s, queue = np.empty((stages, count)), np.empty((stages, count), np.int64)
        queued = np.zeros(stages, np.int64)
        recorded, waits, arrivals = begun_s.size > 0, 0, 0
        for item in range(count):
            stage = on_worker[item]
            if stage >= 0:
                at_stage[item] = stage
                free[stage] -= 1
                if recorded:
                    begun_s[item, stage] = arrival_s[item]
                size = push(event_s, events, size, arrival_s[item] + times_s[item, stage], item)
        while True:
            arrives_s = arrival_s[by_arrival[arrivals]] if arrivals < count else np.inf
            if size > 0 and event_s[0] <= arrives_s:
                now_s, event = event_s[0], events[0]
                size = pop(event_s, events, size)
                item, ended = event % count, event < count
            elif arrivals < count:
                now_s, item, ended = arrives_s, by_arrival[arrivals], False
                arrivals += 1
                if on_worker[item] >= 0:
                    continue
            else:
                return True, waits
            stage = at_stage[item]
            if ended:
                free[stage] += 1
                if queued[stage] > 0 and free[stage] > 0:
                    other = queue[stage, 0]
                    queued[stage] = pop(queue_s[stage], queue[stage], queued[stage])
                    if check == STARTED and now_s + behind_s[stage] > latest_s[other]:
                        return False, waits
                    free[stage] -= 1
                    if recorded:
                        begun_s[other, stage] = now_s
                    size = push(event_s, events, size, now_s + times_s[other, stage], other)
                stage += 1
            while stage < stages and times_s[item, stage] == 0.0:
                stage += 1
            if stage == stages:
                if now_s > latest_s[item]:
                    return False, waits
                if recorded:
                    finish_s[item] = now_s
                continue
            at_stage[item] = stage
            if ended:
                size = push(event_s, events, size, now_s, item + count)
            elif free[stage] > 0:
                free[stage] -= 1
                if recorded:
                    begun_s[item, stage] = now_s
                size = push(event_s, events, size, now_s + times_s[item, stage], item)
            else:
                waits += 1
                if check == QUEUED and now_s + behind_s[stage] > latest_s[item]:
                    return False, waits
                queued[stage] = push(queue_s[stage], queue[stage], queued[stage], float(ranks[item]), item)

    made: Callable[..., tuple[bool, int]] = numba.njit(cache=True)(loop)
    return made
