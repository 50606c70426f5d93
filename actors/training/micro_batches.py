"""Which groups make a micro-batch, as complete groups come one after the other: two policies.

Pure: owns what has come and what is due, not the training. A gradient is a sum of floating-point numbers, so
its last bits follow from what shares a micro-batch and from the order of these; its value does not.
"""

from typing import Protocol

from actors.rollout.messages import GroupOut


class MicroBatches(Protocol):
    """One step's groups on their way into the gradient."""

    @property
    def have(self) -> list[int]:
        """Groups that came, trained or not: what need not be sent again."""

    @property
    def least(self) -> int:
        """How many more are worth an answer: with fewer there is too little to train, or nothing."""

    def add(self, groups: list[GroupOut]) -> list[list[GroupOut]]:
        """These came too; answers the micro-batches to train now, in this order."""


class AsTheyCome:
    """However many came together make a micro-batch, `size` at least, fewer where they are the last of
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

    def add(self, groups: list[GroupOut]) -> list[list[GroupOut]]:
        self._have += [group.group for group in groups]
        self._held += groups
        if not self._held or (len(self._held) < self._size and len(self._have) < self._total):
            return []
        due, self._held = self._held, []
        return [due]


class InOrder:
    """Groups 0 to `size` - 1 make the first micro-batch, the next `size` the second, and so on to `total`,
    whenever and wherever each was completed: the gradient of a step has one value, bit for bit.

    Groups that come early are held: at most the step's.
    """

    def __init__(self, size: int, total: int) -> None:
        self._size, self._total = size, total
        self._next = 0  # the first group that is not trained
        self._held: dict[int, GroupOut] = {}

    @property
    def have(self) -> list[int]:
        return [*range(self._next), *sorted(self._held)]

    @property
    def least(self) -> int:
        return sum(group not in self._held for group in self._following())

    def add(self, groups: list[GroupOut]) -> list[list[GroupOut]]:
        self._held |= {group.group: group for group in groups}
        due = []
        while self._next < self._total:
            micro_batch = self._following()
            if any(group not in self._held for group in micro_batch):
                break
            due.append([self._held.pop(group) for group in micro_batch])
            self._next = micro_batch.stop
        return due

    def _following(self) -> range:
        return range(self._next, min(self._next + self._size, self._total))
