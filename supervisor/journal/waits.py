"""Journal calls as entries in the register of waits, so that a hang is visible.

The calls are commits and replays. Owns only the entry; every call passes to the store unchanged.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from gleaner.supervisor.deadline import Deadline
from gleaner.supervisor.journal.port import JournalStore, Replayed
from gleaner.supervisor.message import Message
from gleaner.supervisor.waits import Waits

T = TypeVar("T")

COMMIT_LATE_S = 2.0
"""A commit that takes longer is an event, again each time that it passes: a group takes milliseconds, a busy
disk tenths of a second."""
REPLAY_LATE_S = 30.0
"""The same for reading a stream; a replay of the longest stream takes seconds."""


class WatchedStore:
    """A `JournalStore` in front of another.

    Args:
        store: what keeps the streams.
        waits: the register of this process.
    """

    def __init__(self, store: JournalStore, waits: Waits) -> None:
        self._store = store
        self._waits = waits

    def open(self, stream: str, incarnation: int) -> Awaitable[None]:
        """See `JournalStore.open`."""
        opened = self._store.open(stream, incarnation)
        return self._entered(opened, stream, "its journal to open", COMMIT_LATE_S)

    def append(
        self, stream: str, incarnation: int, events: Sequence[Message], *, flush: bool = False
    ) -> Awaitable[int]:
        """See `JournalStore.append`."""
        appended = self._store.append(stream, incarnation, events, flush=flush)
        return self._entered(appended, stream, "a commit of its journal", COMMIT_LATE_S)

    def read(self, stream: str) -> Awaitable[Replayed]:
        """See `JournalStore.read`."""
        return self._entered(self._store.read(stream), stream, "a replay of its journal", REPLAY_LATE_S)

    def snapshot(
        self, stream: str, incarnation: int, state: Message, *, flush: bool = False
    ) -> Awaitable[int]:
        """See `JournalStore.snapshot`."""
        taken = self._store.snapshot(stream, incarnation, state, flush=flush)
        return self._entered(taken, stream, "a commit of its journal", COMMIT_LATE_S)

    def force_out(self) -> Awaitable[None]:
        """See `JournalStore.force_out`."""
        return self._store.force_out()

    def probe(self) -> Awaitable[None]:
        """See `JournalStore.probe`."""
        return self._store.probe()

    def refuses(self) -> str:
        """See `JournalStore.refuses`."""
        return self._store.refuses()

    async def close(self) -> None:
        """See `JournalStore.close`."""
        await self._store.close()

    def _entered(self, work: Awaitable[T], stream: str, what: str, late_s: float) -> Awaitable[T]:
        future = asyncio.ensure_future(work)
        if not future.done():
            deadline = Deadline.after(late_s, future.get_loop().time())
            self._waits.begin(stream, what, "the disk", deadline, renew_s=late_s, until=future)
        return future
