"""`MicroBatches`: two policies that form micro-batches of arriving groups.

Pure: owns the groups that have arrived and those that are due, not the training. A gradient is a sum of
floating-point numbers, so its last bits follow from what shares a micro-batch and from the order of these;
its value does not.
"""

from collections.abc import Collection
from itertools import count, islice
from typing import Protocol

from gleaner.actors.protocol.rollout import GroupOut


class MicroBatches(Protocol):
    """One step's groups on their way into the gradient."""

    @property
    def have(self) -> list[int]:
        """Groups that arrived, trained or not; they need not be sent again."""

    @property
    def least(self) -> int:
        """The fewest further groups that are worth a reply: with fewer there is too little to train, or
        nothing.
        """

    @property
    def dropped(self) -> int | None:
        """The number of groups known not to count; None if that changes nothing."""

    def add(self, groups: list[GroupOut], dropped: Collection[int]) -> list[list[GroupOut]]:
        """Add the groups that arrived; so many do not count by now. Returns the micro-batches to train now,
        in this order."""


class AsTheyCome:
    """All groups that arrived together make a micro-batch, `size` at least, fewer if they are the last of
    `total`: the trainer never waits while it has `size` of them (RLBoost 4.1)."""

    def __init__(self, size: int, total: int) -> None:
        self._size, self._total = size, total
        self._have: list[int] = []
        self._held: list[GroupOut] = []

    @property
    def have(self) -> list[int]:
        return self._have

    @property
    def least(self) -> int:
        return self._size - len(self._held)

    @property
    def dropped(self) -> int | None:
        return None

    def add(self, groups: list[GroupOut], dropped: Collection[int]) -> list[list[GroupOut]]:
        self._have += [group.group for group in groups]
        self._held += groups
        if not self._held or (len(self._held) < self._size and len(self._have) < self._total):
            return []
        due, self._held = self._held, []
        return [due]


class InOrder:
    """The first `size` groups that count make the first micro-batch, the next `size` the second, and so on to
    `total`, independent of the time and place of completion: the gradient of a step has one value, bit for
    bit.

    Early groups are held, at most the step's: a group is trained only when each one before it has arrived or
    is known not to count.
    """

    def __init__(self, size: int, total: int) -> None:
        self._size, self._total = size, total
        self._trained: list[int] = []
        self._held: dict[int, GroupOut] = {}
        self._dropped: set[int] = set()

    @property
    def have(self) -> list[int]:
        return sorted([*self._trained, *self._held])

    @property
    def least(self) -> int:
        return sum(group not in self._held for group in self._following())

    @property
    def dropped(self) -> int | None:
        return len(self._dropped)

    def add(self, groups: list[GroupOut], dropped: Collection[int]) -> list[list[GroupOut]]:
        self._held |= {group.group: group for group in groups}
        self._dropped |= set(dropped)
        due = []
        while micro_batch := self._following():
            if any(group not in self._held for group in micro_batch):
                break
            due.append([self._held.pop(group) for group in micro_batch])
            self._trained += micro_batch
        return due

    def _following(self) -> list[int]:
        """The next micro-batch, if it is known which groups do not count."""
        first = self._trained[-1] + 1 if self._trained else 0
        counting = (group for group in count(first) if group not in self._dropped)
        return list(islice(counting, min(self._size, self._total - len(self._trained))))
