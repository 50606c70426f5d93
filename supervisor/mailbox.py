"""A bounded mailbox with two lanes: the system lane is always served before the user lane."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

from transport.envelope import Lane

__all__ = ["SYSTEM_LIMIT", "Lane", "Mailbox"]

T = TypeVar("T")

SYSTEM_LIMIT = 1024
"""Supervision and preemption messages waiting at most; far above what a node can produce in one turn."""


class Mailbox(Generic[T]):
    """FIFO in each lane; `offer` refuses at the limit and `put` waits for room. One reader."""

    def __init__(self, user_limit: int) -> None:
        self._lanes: tuple[deque[T], deque[T]] = (deque(), deque())
        self._limits = (SYSTEM_LIMIT, user_limit)
        self._filled = asyncio.Event()
        self._room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._lanes[0]) + len(self._lanes[1])

    def offer(self, lane: Lane, item: T) -> bool:
        """Take `item` unless its lane is full."""
        queue = self._lanes[lane]
        if len(queue) >= self._limits[lane]:
            return False
        queue.append(item)
        self._filled.set()
        return True

    async def put(self, lane: Lane, item: T) -> None:
        """Take `item`, waiting while its lane is full."""
        while not self.offer(lane, item):
            self._room.clear()
            await self._room.wait()

    async def get(self) -> T:
        """The oldest item of the system lane, else of the user lane; waits while both are empty."""
        while not (self._lanes[0] or self._lanes[1]):
            self._filled.clear()
            await self._filled.wait()
        item = (self._lanes[0] or self._lanes[1]).popleft()
        self._room.set()
        return item

    def drain(self) -> list[T]:
        """Everything that waits, system lane first; leaves the mailbox empty."""
        waiting = [*self._lanes[0], *self._lanes[1]]
        for queue in self._lanes:
            queue.clear()
        self._room.set()
        return waiting
