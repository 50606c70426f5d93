"""BatchQueues: the waiting items of one stage, earliest batch first (EBF, DistRS section 5.2).

Owns the items that wait and their order: a queue a batch, so a pick takes as long as there are batches, and
an estimate that moves costs nothing. Items of one batch leave in the order of their arrival at the service.
Not preemptive. Pure.
"""

import heapq
from collections.abc import Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class BatchQueues(Generic[T]):
    """See the module. Bounded by its caller, which refuses items (`Overloaded`) beyond its limit."""

    def __init__(self) -> None:
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

    def first(self, complete_s: Mapping[str, float]) -> tuple[float, float]:
        """When the batch of the next item is complete, and when that item arrived. One must wait."""
        batch = self._next(complete_s)
        return complete_s.get(batch, float("inf")), self._waiting[batch][0][0]

    def pick(self, complete_s: Mapping[str, float]) -> T | None:
        """Take the next item: of the batch that is complete first by these estimates (one without an
        estimate comes last), of equal ones the one whose first item arrived first. None: none waits."""
        if not self._size:
            return None
        batch = self._next(complete_s)
        waiting = self._waiting[batch]
        item = heapq.heappop(waiting)[2]
        if not waiting:
            del self._waiting[batch]
        self._size -= 1
        return item

    def _next(self, complete_s: Mapping[str, float]) -> str:
        last = float("inf")
        return min(self._waiting, key=lambda name: (complete_s.get(name, last), self._waiting[name][0][:2]))
