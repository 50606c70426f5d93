"""RequestQueue: the queue of requests for an instance, in their order.

Owns the order: requests that were started before are first, those with the longest prefix foremost, since
they delay their groups most. The others keep the order of their batch. Pure. The queue is sorted, so to take
a few of ten thousand costs only those few; to add or to remove one costs a search.
"""

from bisect import bisect_left, insort

_Key = tuple[int, bool, int, int, str]


class RequestQueue:
    """Names of requests, batch by batch."""

    def __init__(self) -> None:
        self._orders: dict[str, list[_Key]] = {}
        self._keys: dict[str, tuple[str, _Key]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, request: str) -> bool:
        return request in self._keys

    def add(self, request: str, batch: str, group: int, sample: int, tokens: int, attempts: int) -> None:
        """Add a request with its collected tokens and its attempts. No change if it is known already."""
        if request not in self._keys:
            key = (-tokens, attempts == 0, group, sample, request)
            self._keys[request] = batch, key
            insort(self._orders.setdefault(batch, []), key)

    def remove(self, request: str) -> None:
        """Remove a request, if it waits."""
        batch, key = self._keys.pop(request, ("", None))
        if key is not None:
            order = self._orders[batch]
            del order[bisect_left(order, key)]
            if not order:
                del self._orders[batch]

    def batches(self) -> list[str]:
        """The batches with waiting requests."""
        return list(self._orders)

    def count(self, batch: str) -> int:
        """How many requests of this batch wait."""
        return len(self._orders.get(batch, ()))

    def first(self, batch: str, count: int) -> list[str]:
        """The next `count` requests of this batch, in order."""
        return [key[-1] for key in self._orders.get(batch, ())[:count]]

    def every(self) -> list[str]:
        """All requests, in the order that they would have if they were of one batch."""
        return [key[-1] for key in sorted(key for order in self._orders.values() for key in order)]

    def names(self) -> set[str]:
        """All requests."""
        return set(self._keys)
