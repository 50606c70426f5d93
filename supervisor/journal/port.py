"""Journal: port behind `ctx.journal`, one append-only message stream an actor.

A stream has snapshots too. Owns the promise, not the storage: an `append` that has returned is read back by
`replay` after any kill of the process; a write of an older incarnation than the newest one seen by the store
is refused (`Fenced`); a store that can take nothing reports it (`JournalUnable`) and has lost nothing.
Messages of older programs are upgraded on the way (`upgrades`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Protocol

from gleaner.supervisor.message import Message

Replayed = tuple[Message | None, list[tuple[int, Message]]]
"""The newest snapshot, if any, and the events after it with their sequence numbers."""


class JournalStore(Protocol):
    """Store of streams; one store a process, shared by its actors. Calls take effect in their order."""

    def open(self, stream: str, incarnation: int) -> Awaitable[None]:
        """Fence `stream`: from now on only `incarnation` or newer may write.

        Raises (when awaited): Fenced if a newer incarnation opened it; JournalError.
        """

    def append(
        self, stream: str, incarnation: int, events: Sequence[Message], *, flush: bool = False
    ) -> Awaitable[int]:
        """Commit `events` in order with the next group; resolves to the sequence number of the last. `flush`:
        a caller waits for them, so the group does not gather for longer.

        Raises (when awaited): Fenced, JournalUnable, JournalError.
        """

    def read(self, stream: str) -> Awaitable[Replayed]:
        """The newest snapshot and the events after it.

        Raises (when awaited): JournalDamaged, JournalUnreadable, JournalUnable.
        """

    def snapshot(
        self, stream: str, incarnation: int, state: Message, *, flush: bool = False
    ) -> Awaitable[int]:
        """Commit `state` as a replacement of every event appended before this call, and delete those;
        resolves to its sequence number, which no other snapshot has (`rows.snapshot_seq`). `flush`: see
        `append`."""

    def probe(self) -> Awaitable[None]:
        """Prove that appends would be taken, by a write that leaves nothing. Raises JournalError."""

    def force_out(self) -> Awaitable[None]:
        """From now on a commit is forced out to the disk (`fsync`) before it is acknowledged: a power failure
        of the host takes back none of them. Until then a commit survives every kill of the process alone. A
        database does what its server is set to. Raises (when awaited): JournalError."""

    def refuses(self) -> str:
        """Why new work should not be begun here, "" where it may: less space is left than accepted work may
        still need, or the last commit failed. Appends are still tried."""

    async def close(self) -> None:
        """Commit the waiting writes and close."""


class Journals(JournalStore, Protocol):
    """The store of a whole process, which a node opens and its actors share."""

    @property
    def place(self) -> str:
        """Its storage place, for messages."""

    def newest_incarnation(self) -> Awaitable[int]:
        """The newest incarnation that ever wrote here: a process's incarnations must begin above it, even if
        its clock is behind. Raises (when awaited): JournalError."""


class Journal:
    """One actor's stream."""

    def __init__(self, store: JournalStore, stream: str, incarnation: int) -> None:
        self._store, self._stream, self._incarnation = store, stream, incarnation
        self._opened: asyncio.Future[None] | None = None

    @property
    def stream(self) -> str:
        """Its name in the store."""
        return self._stream

    def beside(self, name: str) -> "Journal":
        """Another stream in the same store, under this one's name and `name`."""
        return Journal(self._store, f"{self._stream}/{name}", self._incarnation)

    def append_soon(self, *events: Message, flush: bool = False) -> Awaitable[int]:
        """Queue `events` for the next group commit; the result resolves to the last sequence number. `flush`:
        see `JournalStore.append`."""
        self._open()
        return self._store.append(self._stream, self._incarnation, events, flush=flush)

    async def append(self, *events: Message) -> int:
        """Commit `events`; the sequence number of the last one. Raises Fenced, JournalError."""
        return await self.append_soon(*events, flush=True)

    async def replay(self) -> AsyncIterator[Message]:
        """The newest snapshot, if there is one, then every later event in order.

        Raises Fenced, JournalDamaged, JournalUnreadable, JournalUnable.
        """
        await asyncio.shield(self._open())
        snapshot, events = await self._store.read(self._stream)
        if snapshot is not None:
            yield snapshot
        for _seq, event in events:
            yield event

    async def snapshot(self, state: Message) -> int:
        """Replace all events so far by `state`: replay starts from it."""
        return await self.snapshot_soon(state, flush=True)

    def snapshot_soon(self, state: Message, *, flush: bool = False) -> Awaitable[int]:
        """The same without waiting. `flush`: see `JournalStore.append`."""
        self._open()
        return self._store.snapshot(self._stream, self._incarnation, state, flush=flush)

    async def probe(self) -> None:
        """See `JournalStore.probe`."""
        await self._store.probe()

    def refuses(self) -> str:
        """See `JournalStore.refuses`: ask before work is accepted, not while it is done."""
        return self._store.refuses()

    def _open(self) -> asyncio.Future[None]:
        """Once; a claim that failed is tried again with the next call. It need not be awaited: the store
        refuses the writes of a stream that it could not open."""
        done = self._opened
        if done is not None and (not done.done() or (not done.cancelled() and done.exception() is None)):
            return done
        self._opened = done = asyncio.ensure_future(self._store.open(self._stream, self._incarnation))
        done.add_done_callback(_seen)
        return done


def _seen(done: "asyncio.Future[None]") -> None:
    if not done.cancelled():
        done.exception()
