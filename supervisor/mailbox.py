"""Mailbox: bounded, with two lanes; the system lane is served first."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from gleaner.transport.envelope import Lane

__all__ = ["SYSTEM_LIMIT", "Lane", "Mailbox"]

T = TypeVar("T")

SYSTEM_LIMIT = 1024
"""Supervision and preemption messages waiting at most; far above what a node can produce in one turn."""


class Mailbox(Generic[T]):
    """FIFO in each lane; `offer` refuses at the limit and `put` waits for free capacity. One reader, which
    never waits.

    A lane is created when something is put into it: thousands of idle actors cost little memory.
    """

    __slots__ = ("_limit", "_system", "_user", "_waiting")

    def __init__(self, user_limit: int) -> None:
        self._limit = user_limit
        self._system: deque[T] | None = None
        self._user: deque[T] | None = None
        self._waiting: deque[Callable[[], None]] | None = None

    def __len__(self) -> int:
        return len(self._system or ()) + len(self._user or ())

    def depth(self, lane: Lane) -> int:
        """Number of waiting messages in one lane."""
        return len((self._user if lane is Lane.USER else self._system) or ())

    def offer(self, lane: Lane, item: T) -> bool:
        """Take `item` unless its lane is full."""
        if lane is Lane.USER:
            queue = self._user
            if queue is None:
                queue = self._user = deque()
            elif len(queue) >= self._limit:
                return False
        else:
            queue = self._system
            if queue is None:
                queue = self._system = deque()
            elif len(queue) >= SYSTEM_LIMIT:
                return False
        queue.append(item)
        return True

    def when_room(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, in turn, after the reader has taken something (or left: see `drain`)."""
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(wake)

    async def room(self) -> None:
        """Wait for one's turn to `offer` again; `offer` itself finds whether there is free capacity then."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not turn.done():
                turn.set_result(None)

        self.when_room(wake)
        try:
            await turn
        except asyncio.CancelledError:
            if self._waiting is not None and wake in self._waiting:
                self._waiting.remove(wake)  # else it would take the turn of one that still waits
            else:
                self._wake()  # its turn has come, and goes to the next
            raise

    def take(self) -> T | None:
        """The oldest item of the system lane, else of the user lane; None while both are empty."""
        if self._system:
            item = self._system.popleft()
        elif self._user:
            item = self._user.popleft()
        else:
            return None
        if self._waiting:
            self._wake()
        return item

    def drain(self) -> list[T]:
        """Everything that waits, system lane first; leaves the mailbox empty and wakes the waiting
        senders."""
        waiting = [*(self._system or ()), *(self._user or ())]
        self._system = self._user = None
        while self._waiting:
            self._wake()
        return waiting

    def keep_only(self, wanted: Callable[[T], bool]) -> None:
        """Drop the messages that are not `wanted`."""
        for queue in (self._system, self._user):
            if queue:
                kept = [item for item in queue if wanted(item)]
                queue.clear()
                queue.extend(kept)

    def _wake(self) -> None:
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._waiting.popleft())
