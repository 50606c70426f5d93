"""BatchQueues: the waiting items of one stage, earliest batch first (EBF, DistRS section 5.2).

Owns the items that wait and their order: a queue a batch, so a pick takes as long as there are batches, and
an estimate that moves costs nothing. Items of one batch leave in the order of their arrival at the service.
Not preemptive. Pure.

An item that waited long counts as one of an earlier batch, so that a job whose batches are always early
cannot starve the others; DistRS has no such bound.
"""

import heapq
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class BatchQueues(Generic[T]):
    """See the module. Bounded by its caller, which refuses items (`Overloaded`) beyond its limit.

    Args:
        aging_s: an item that arrived longer ago counts as if its batch were complete earlier by the excess;
            one of a batch without an estimate as if that were complete now.
    """

    def __init__(self, aging_s: float = float("inf")) -> None:
        self._aging_s = aging_s
        self._waiting: dict[str, list[tuple[float, int, T]]] = {}
        self._numbers = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, batch: str, arrival_s: float, item: T) -> None:
        """An item that arrived at the service at `arrival_s` waits."""
        self._numbers += 1
        heapq.heappush(self._waiting.setdefault(batch, []), (arrival_s, self._numbers, item))
        self._size += 1

    def first(self, complete_s: Mapping[str, float], now_s: float = 0.0) -> tuple[float, float]:
        """When the batch of the next item counts as complete, and when that item arrived. One must wait."""
        return min(map(self._key(complete_s, now_s), self._waiting))[:2]

    def pick(self, complete_s: Mapping[str, float], now_s: float = 0.0) -> T | None:
        """Take the next item: of the batch that is complete first by these estimates (one without an
        estimate comes last), of equal ones the one whose first item arrived first. None: none waits."""
        if not self._size:
            return None
        batch = min(self._waiting, key=self._key(complete_s, now_s))
        waiting = self._waiting[batch]
        item = heapq.heappop(waiting)[2]
        if not waiting:
            del self._waiting[batch]
        self._size -= 1
        return item

    def _key(
        self, complete_s: Mapping[str, float], now_s: float
    ) -> Callable[[str], tuple[float, float, int]]:
        """Of a batch: when it counts as complete, and its first item."""
        last, aged_before_s, waiting = float("inf"), now_s - self._aging_s, self._waiting

        def key(name: str) -> tuple[float, float, int]:
            arrival_s, number, _ = waiting[name][0]
            estimate_s = complete_s.get(name, last)
            if arrival_s >= aged_before_s:
                return estimate_s, arrival_s, number
            return (
                (now_s if estimate_s == last else estimate_s) - aged_before_s + arrival_s,
                arrival_s,
                number,
            )

        return key
