"""A journal without a disk: for tests and simulations. It keeps the encoded bytes, as a disk would.

What it promises is the port's promise (`journal`): committed is committed, an older incarnation is refused.
It outlives the actor system that writes to it, as a file outlives a process.
"""

import asyncio
from collections.abc import Awaitable, Sequence

from supervisor.errors import Fenced, JournalFull
from supervisor.message import Message, decode_body, encode_body, kind_of

Row = tuple[int, str, bytes]


class _Stream:
    def __init__(self) -> None:
        self.incarnation = 0
        self.last_seq = 0
        self.snapshot: Row | None = None
        self.events: list[Row] = []


class MemoryJournal:
    """A `JournalStore`. Setting `full` makes it refuse what comes, as a full disk does."""

    def __init__(self) -> None:
        self.full = False
        self._streams: dict[str, _Stream] = {}

    def open(self, stream: str, incarnation: int) -> None:
        """See `JournalStore.open`."""
        kept = self._streams.setdefault(stream, _Stream())
        if kept.incarnation > incarnation:
            raise Fenced(f"{stream} was opened by incarnation {kept.incarnation}, this is {incarnation}")
        kept.incarnation = incarnation

    def append(self, stream: str, incarnation: int, events: Sequence[Message]) -> Awaitable[int]:
        """See `JournalStore.append`."""
        return self._write(stream, incarnation, events, is_snapshot=False)

    def snapshot(self, stream: str, incarnation: int, state: Message) -> Awaitable[int]:
        """See `JournalStore.snapshot`."""
        return self._write(stream, incarnation, [state], is_snapshot=True)

    async def read(self, stream: str) -> tuple[Message | None, list[tuple[int, Message]]]:
        """See `JournalStore.read`."""
        kept = self._streams.get(stream, _Stream())
        snapshot = decode_body(*kept.snapshot[1:]) if kept.snapshot is not None else None
        return snapshot, [(seq, decode_body(kind, body)) for seq, kind, body in kept.events]

    async def close(self) -> None:
        """See `JournalStore.close`; the streams stay."""

    def _write(
        self, stream: str, incarnation: int, messages: Sequence[Message], *, is_snapshot: bool
    ) -> Awaitable[int]:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        kept = self._streams[stream]
        if kept.incarnation != incarnation:
            done.set_exception(Fenced(f"{stream} belongs to {kept.incarnation}, this is {incarnation}"))
        elif self.full:
            done.set_exception(JournalFull("the disk is full: free space"))
        elif is_snapshot:
            kept.snapshot = (kept.last_seq, kind_of(messages[0]), encode_body(messages[0]))
            kept.events.clear()
            done.set_result(kept.last_seq)
        else:
            for message in messages:
                kept.last_seq += 1
                kept.events.append((kept.last_seq, kind_of(message), encode_body(message)))
            done.set_result(kept.last_seq)
        return done
