"""SimJournal: group commit on virtual time, without `GroupCommit`'s thread.

Owns the queue of one process's journal and the moments at which a write begins, reaches the disk and is
acknowledged. Between the first and the second a kill cuts it off, and the disk decides its fate. After the
second it is stored, whether or not it was acknowledged. A process that is frozen meanwhile gets the
acknowledgement when it goes on: its write was in the kernel's hands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from gleaner.sim.kept_streams import KeptStreams
from gleaner.sim.process_loop import ProcessLoop
from gleaner.sim.ready_queue import ReadyTimer
from gleaner.supervisor.errors import JournalError, JournalFull, JournalUnable
from gleaner.supervisor.journal.group_commit import FLUSH_SHARE, MAX_WAITING, Committed, NewRow, Write
from gleaner.supervisor.journal.lost_writes import LostWrites, WriteTerms
from gleaner.supervisor.journal.port import Replayed
from gleaner.supervisor.message import Message, encode_body, kind_of

if TYPE_CHECKING:
    from gleaner.sim.disk import SimDisk

T = TypeVar("T")


@dataclass(slots=True)
class _Queued:
    write: Write
    done: asyncio.Future[int]
    term: int


@dataclass(slots=True)
class _Call(Generic[T]):
    work: Callable[[], T]
    done: asyncio.Future[T]

    def run(self) -> Callable[[], None]:
        """Do it now; the returned function notifies the waiting caller."""
        try:
            result = self.work()
        except Exception as problem:  # noqa: BLE001 (it serves others; the caller gets it)
            error = problem
            return lambda: _fail(self.done, error)
        return lambda: _resolve(self.done, result)


@dataclass(slots=True)
class Group:
    """Writes that are committed at once."""

    queued: list[_Queued] = field(default_factory=list)

    @property
    def writes(self) -> list[Write]:
        """In order."""
        return [queued.write for queued in self.queued]


class SimJournal:
    """A `gleaner.supervisor.journal.port.Journals` of one process, made by `SimDisk.journal`.

    Args:
        disk: its disk. kept: its rows there.
        process: whose it is.
        commit_s: how long a group gathers before it is committed.
    """

    def __init__(self, disk: SimDisk, kept: KeptStreams, process: ProcessLoop, commit_s: float) -> None:
        self._disk = disk
        self._kept = kept
        self._process = process
        self._commit_s = commit_s
        self._queue: deque[_Queued | _Call[object]] = deque()
        self._works = False
        self._gathers: asyncio.TimerHandle | None = None  # until the next group is committed
        self._committed_s = 0.0
        self._closed = False
        self._idle: asyncio.Future[None] | None = None  # for a caller that closes it
        self._in_flight: tuple[Group, ReadyTimer] | None = None
        self._unable = ""
        self._terms, self._lost = WriteTerms(), LostWrites()
        self._forced = False
        process.at_death(self._cut_off)

    @property
    def place(self) -> str:
        """Its storage place, for messages."""
        return self._kept.place

    def open(self, stream: str, incarnation: int) -> asyncio.Future[None]:
        """See `JournalStore.open`."""

        def claim() -> None:
            self._kept.claim(stream, incarnation)
            if self._forced:
                self._disk.forced_out(self._kept)

        return self._call(claim)

    def append(
        self, stream: str, incarnation: int, events: Sequence[Message], *, flush: bool = False
    ) -> asyncio.Future[int]:
        """See `JournalStore.append`."""
        return self._write(Write(stream, incarnation, [_row(event) for event in events], False), flush)

    def _gather_until(self, when_s: float) -> None:
        """The group that gathers, if one does, is committed then at the latest."""
        when_s = max(when_s, self._process.time())
        if self._gathers is not None and self._gathers.when() > when_s:
            self._gathers.cancel()
            self._gathers = self._process.call_at(when_s, self._next)

    def snapshot(
        self, stream: str, incarnation: int, state: Message, *, flush: bool = False
    ) -> asyncio.Future[int]:
        """See `JournalStore.snapshot`."""
        return self._write(Write(stream, incarnation, [_row(state)], True), flush)

    def read(self, stream: str) -> asyncio.Future[Replayed]:
        """See `JournalStore.read`."""
        return self._call(lambda: self._read(stream))

    def _read(self, stream: str) -> Replayed:
        rows = self._kept.read(stream)
        if rows.snapshot is not None or rows.events:
            self._disk.replayed(self._kept, stream)
        return rows.replay(self._kept.place)

    def newest_incarnation(self) -> asyncio.Future[int]:
        """The newest incarnation that ever wrote here."""
        return self._call(self._kept.newest_incarnation)

    def probe(self) -> asyncio.Future[None]:
        """See `JournalStore.probe`."""

        def probe() -> None:
            self._kept.probe()
            self._unable = ""

        return self._call(probe)

    def force_out(self) -> asyncio.Future[None]:
        """See `JournalStore.force_out`."""

        def force() -> None:
            self._forced = True

        return self._call(force)

    def refuses(self) -> str:
        """See `JournalStore.refuses`."""
        return self._unable or self._kept.low()

    async def close(self) -> None:
        """See `JournalStore.close`."""
        self._closed = True
        while self._works:
            if self._idle is None:
                self._idle = self._process.create_future()
            await asyncio.shield(self._idle)

    # -- the caller's side --

    def _write(self, write: Write, flush: bool) -> asyncio.Future[int]:
        done: asyncio.Future[int] = self._process.create_future()
        term = self._terms.of(write.stream, write.incarnation)
        self._put(_Queued(write, done, term), done, self._commit_s)
        if flush:
            self._gather_until(self._committed_s + FLUSH_SHARE * self._commit_s)
        return done

    def _call(self, work: Callable[[], T]) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self._process.create_future()
        self._put(_Call(work, done), done, 0.0)  # type: ignore[arg-type]  # its result is its caller's
        return done

    def _put(self, item: _Queued | _Call[object], done: asyncio.Future[T], gather_s: float) -> None:
        if self._closed:
            done.set_exception(JournalError(f"{self.place}: the journal is closed"))
        elif len(self._queue) >= MAX_WAITING:
            done.set_exception(
                JournalFull(f"{self.place}: {MAX_WAITING} calls wait for the disk; is it stuck?")
            )
        else:
            self._queue.append(item)
            if not self._works:
                self._works = True
                self._gathers = self._process.call_later(gather_s, self._next)

    # -- the writer's side --

    def _next(self) -> None:
        """Begin the waiting work: a call, or all the writes in front of the next call as one group."""
        self._gathers = None
        if not self._queue:
            self._works = False
            if self._idle is not None:
                self._idle.set_result(None)
                self._idle = None
            return
        if isinstance(self._queue[0], _Call):
            call = self._queue.popleft()
            assert isinstance(call, _Call)
            self._process.call_later(self._disk.look_s(), self._looked, call)
            return
        group = Group()
        while self._queue and isinstance(self._queue[0], _Queued):
            queued = self._queue.popleft()
            assert isinstance(queued, _Queued)
            write = queued.write
            if (why := self._lost.why(write.stream, write.incarnation, queued.term)) is not None:
                self._failed(queued, why)
            else:
                group.queued.append(queued)
        if not group.queued:
            self._next()
            return
        takes_s = self._disk.sync_s(group.writes, forced=self._forced)
        self._disk.begins(self._process, takes_s)
        timer = self._disk.loop.call_later(takes_s, self._written, group)
        self._in_flight = group, timer

    def _looked(self, call: _Call[object]) -> None:
        call.run()()
        self._next()  # the writes behind it are gathered already

    def _written(self, group: Group) -> None:
        """The write has reached the disk; the process is notified as soon as it runs."""
        self._in_flight, self._committed_s = None, self._process.time()
        results: Sequence[Committed | Exception]
        try:
            results = self._disk.commit(self._kept, group.writes)
            if self._forced:
                self._disk.forced_out(self._kept)
            unable = ""
        except JournalError as problem:
            results = [problem] * len(group.queued)
            unable = str(problem) if isinstance(problem, JournalUnable) else self._unable
        for queued, result in zip(group.queued, results, strict=True):
            write, failure = queued.write, result if isinstance(result, Exception) else None
            self._lost.ended(write.stream, write.incarnation, queued.term, failure)
        if self._process.runs_freely:
            self._acknowledge(group, results, unable)
        else:
            self._process.call_soon(self._acknowledge, group, results, unable)

    def _acknowledge(self, group: Group, results: Sequence[Committed | Exception], unable: str) -> None:
        self._unable = unable
        for queued, result in zip(group.queued, results, strict=True):
            if isinstance(result, Exception):
                self._failed(queued, result)
            else:
                _resolve(queued.done, result.seq)
        self._go_on()

    def _failed(self, queued: _Queued, problem: Exception) -> None:
        self._terms.failed(queued.write.stream, queued.write.incarnation, queued.term)
        _fail(queued.done, problem)

    def _go_on(self) -> None:
        """A write that arrived while the last group was committed waits for others to gather."""
        if self._queue and isinstance(self._queue[0], _Queued):
            self._process.call_later(self._commit_s, self._next)
        else:
            self._next()

    def _cut_off(self) -> None:
        """The process is dead: its write under way may have reached the disk."""
        if self._in_flight is not None:
            group, timer = self._in_flight
            self._in_flight = None
            timer.cancel()
            self._disk.cut_off(self._kept, self._process, group.writes)


def _row(message: Message) -> NewRow:
    return NewRow(kind_of(message), type(message).SCHEMA, encode_body(message))


def _resolve(done: asyncio.Future[T], result: T) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: asyncio.Future[T], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
