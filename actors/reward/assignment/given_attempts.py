"""GivenAttempts: which hosts were given which attempts of an item, so that no other result of it counts.

Owns what hosts have announced, and the attempts of items that were open a short time ago: their results may
still be on their way. Those of open items are the items' own. Pure.
"""

from collections import OrderedDict
from collections.abc import Mapping

MOST_CLOSED = 4096
"""Items that are remembered after their end; beyond that a late result of the oldest counts as foreign."""

Attempts = set[tuple[str, int]]
"""Hosts, each with the number of an attempt that it was given."""


class GivenAttempts:
    """See the module."""

    def __init__(self) -> None:
        self._announced: dict[str, dict[str, int]] = {}  # by host and item
        self._closed: OrderedDict[str, Attempts] = OrderedDict()

    def announced(self, host: str, attempts: Mapping[str, int]) -> None:
        """A host has these attempts of items, also from an earlier life of the service, and no others."""
        self._announced[host] = dict(attempts)

    def left(self, host: str) -> None:
        """It is gone, with what it has announced."""
        self._announced.pop(host, None)

    def closed(self, item: str, given: Attempts) -> None:
        """An item is open no more, of which these attempts were given."""
        if not given:
            return
        self._closed[item] = given | self._closed.get(item, set())
        self._closed.move_to_end(item)
        while len(self._closed) > MOST_CLOSED:
            self._closed.popitem(last=False)

    def ended(self, item: str) -> bool:
        """Whether the item was given in this life of the service, and is open no more."""
        return item in self._closed

    def next(self, item: str) -> int:
        """The number of the first attempt of an item that is open anew: above those before, so that no host
        that had one of them can settle one of these."""
        return max((attempt for _, attempt in self._closed.get(item, ())), default=-1) + 1

    def has(self, item: str, host: str, attempt: int, given: Attempts | None = None) -> bool:
        """Whether a host was given this attempt. given: those of the item, if it is open."""
        one = host, attempt
        if given is not None and one in given:
            return True
        return self._announced.get(host, {}).get(item) == attempt or one in self._closed.get(item, ())
