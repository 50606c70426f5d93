"""MemoryJournal: a journal without a disk, for tests and simulations.

It keeps the encoded rows, as a disk would. It keeps the port's promise (`port`): committed is committed,
an older incarnation is refused. It outlives the actor system that writes to it, as a file outlives a process.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from gleaner.supervisor.errors import Fenced, JournalError, JournalFull
from gleaner.supervisor.journal.port import Replayed
from gleaner.supervisor.message import Message, decode_body, encode_body, kind_of

T = TypeVar("T")
Row = tuple[int, str, bytes]


class _Stream:
    def __init__(self) -> None:
        self.incarnation = 0
        self.last_seq = 0
        self.snapshot: Row | None = None
        self.events: list[Row] = []


class MemoryJournal:
    """A `JournalStore`. While `full` is set it refuses writes, as a full disk does."""

    def __init__(self) -> None:
        self.full = False
        self._streams: dict[str, _Stream] = {}

    @property
    def newest_incarnation(self) -> int:
        """The newest incarnation that ever wrote here."""
        return max((stream.incarnation for stream in self._streams.values()), default=0)

    def open(self, stream: str, incarnation: int) -> Awaitable[None]:
        """See `JournalStore.open`."""

        def fence() -> None:
            self._stream(stream, incarnation).incarnation = incarnation

        return _done(fence)

    def append(
        self, stream: str, incarnation: int, events: Sequence[Message], *, flush: bool = False
    ) -> Awaitable[int]:
        """See `JournalStore.append`."""

        def write() -> int:
            kept = self._stream(stream, incarnation)
            self._check_space()
            for event in events:
                kept.last_seq += 1
                kept.events.append((kept.last_seq, kind_of(event), encode_body(event)))
            return kept.last_seq

        return _done(write)

    def snapshot(
        self, stream: str, incarnation: int, state: Message, *, flush: bool = False
    ) -> Awaitable[int]:
        """See `JournalStore.snapshot`."""

        def write() -> int:
            kept = self._stream(stream, incarnation)
            self._check_space()
            if not kept.events:
                kept.last_seq += 1  # see `rows.snapshot_seq`
            kept.snapshot = (kept.last_seq, kind_of(state), encode_body(state))
            kept.events.clear()
            return kept.last_seq

        return _done(write)

    def force_out(self) -> Awaitable[None]:
        """See `JournalStore.force_out`: there is no disk."""
        return _done(lambda: None)

    def read(self, stream: str) -> Awaitable[Replayed]:
        """See `JournalStore.read`."""

        def rows() -> Replayed:
            kept = self._streams.get(stream, _Stream())
            snapshot = decode_body(*kept.snapshot[1:]) if kept.snapshot is not None else None
            return snapshot, [(seq, decode_body(kind, body)) for seq, kind, body in kept.events]

        return _done(rows)

    def probe(self) -> Awaitable[None]:
        """See `JournalStore.probe`."""
        return _done(self._check_space)

    def refuses(self) -> str:
        """See `JournalStore.refuses`."""
        return "the disk is full: free space" if self.full else ""

    async def close(self) -> None:
        """See `JournalStore.close`; the streams stay."""

    def _stream(self, name: str, incarnation: int) -> _Stream:
        kept = self._streams.setdefault(name, _Stream())
        if kept.incarnation > incarnation:
            raise Fenced(f"{name} was opened by incarnation {kept.incarnation}, this is {incarnation}")
        return kept

    def _check_space(self) -> None:
        if self.full:
            raise JournalFull(self.refuses())


def _done(work: Callable[[], T]) -> "asyncio.Future[T]":
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    try:
        done.set_result(work())
    except (Fenced, JournalError) as problem:
        done.set_exception(problem)
    return done
