"""The port behind `ctx.journal`: an append-only stream of messages, one an actor, with snapshots.

Owns the promise, not the storage: what `append` returned for is read back by `replay` after any kill of the
process; a write of an older incarnation than the newest one seen by the store is refused (`Fenced`).
"""

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Protocol

from supervisor.message import Message


class JournalStore(Protocol):
    """Where streams live; one store a process, shared by its actors."""

    def open(self, stream: str, incarnation: int) -> None:
        """Fence `stream`: from now on only `incarnation` or newer may write.

        Raises: Fenced if a newer incarnation opened it; JournalDamaged.
        """

    def append(self, stream: str, incarnation: int, events: Sequence[Message]) -> Awaitable[int]:
        """Commit `events` in order with the next group; resolves to the sequence number of the last.

        Raises (when awaited): Fenced, JournalFull, JournalError.
        """

    async def read(self, stream: str) -> tuple[Message | None, list[tuple[int, Message]]]:
        """The newest snapshot and the events after it. Raises: JournalDamaged."""

    def snapshot(self, stream: str, incarnation: int, state: Message) -> Awaitable[int]:
        """Commit `state` as standing for every event appended before this call, and delete those."""

    async def close(self) -> None:
        """Commit what waits and close."""


class Journal:
    """One actor's stream."""

    def __init__(self, store: JournalStore, stream: str, incarnation: int) -> None:
        self._store, self._stream, self._incarnation = store, stream, incarnation
        self._opened = False

    @property
    def stream(self) -> str:
        """Its name in the store."""
        return self._stream

    def beside(self, name: str) -> "Journal":
        """Another stream in the same store, under this one's name and `name`."""
        return Journal(self._store, f"{self._stream}/{name}", self._incarnation)

    def append_soon(self, *events: Message) -> Awaitable[int]:
        """Queue `events` for the next group commit; the result resolves to the last sequence number."""
        self._open()
        return self._store.append(self._stream, self._incarnation, events)

    async def append(self, *events: Message) -> int:
        """Commit `events`; the sequence number of the last one."""
        return await self.append_soon(*events)

    async def replay(self) -> AsyncIterator[Message]:
        """The newest snapshot, if there is one, then every later event in order."""
        self._open()
        snapshot, events = await self._store.read(self._stream)
        if snapshot is not None:
            yield snapshot
        for _seq, event in events:
            yield event

    async def snapshot(self, state: Message) -> int:
        """Let `state` stand for all events so far: replay starts from it."""
        self._open()
        return await self._store.snapshot(self._stream, self._incarnation, state)

    def snapshot_soon(self, state: Message) -> Awaitable[int]:
        """The same without waiting."""
        self._open()
        return self._store.snapshot(self._stream, self._incarnation, state)

    def _open(self) -> None:
        if not self._opened:
            self._store.open(self._stream, self._incarnation)
            self._opened = True
