"""GroupCommit: one thread that commits all waiting journal calls at once.

It works in front of any store of rows. Owns the thread, the queue, the order and the alarm on long tails.
Knows no database: a `Keeper` does the blocking work. Everything waits in one queue, so claims, appends,
snapshots and reads of a process take effect in the order in which they were called. A write fails with one
of its stream that failed before it (`lost_writes`). Bounds: at most `MAX_WAITING` calls wait, then `append`
fails with `JournalFull`.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from gleaner.supervisor.errors import JournalError, JournalFull, JournalUnable
from gleaner.supervisor.journal.lost_writes import LostWrites, WriteTerms
from gleaner.supervisor.journal.port import Replayed
from gleaner.supervisor.journal.rows import StreamRows
from gleaner.supervisor.message import Message, encode_body, kind_of

T = TypeVar("T")

MAX_WAITING = 100_000
"""Calls queued for the writer thread; minutes of the largest load measured, so reaching it means a dead
disk."""
FLUSH_SHARE = 0.25
"""Share of a group's gathering time that must pass between a commit and the next flushed one. A writer that
waits alone waits only for the disk; if many wait, they still share commits."""
MAX_TAIL = 100_000
"""Events that a replay of one stream should have to go through; an actor that reaches it takes no snapshots.
The alarm is a warning in the log, again at each doubling; `rlctl journal inspect` shows it too."""

log = logging.getLogger("supervisor.journal")


class NewRow(NamedTuple):
    """A message on its way into a stream."""

    kind: str
    version: int
    body: bytes


class Write(NamedTuple):
    """One append or snapshot."""

    stream: str
    incarnation: int
    rows: Sequence[NewRow]
    is_snapshot: bool


class Committed(NamedTuple):
    """State of a stream after a write: its newest event, and the number of events that a replay reads."""

    seq: int
    tail: int


class Keeper(Protocol):
    """The blocking side of a store; called by one thread, after its construction by another. Every method
    raises JournalError and its kinds, and nothing else."""

    place: str
    """The file, or the database without its password; for messages."""

    def claim(self, stream: str, incarnation: int) -> None:
        """Fence a stream. Raises Fenced."""

    def commit(self, writes: Sequence[Write]) -> list[Committed | Exception]:
        """Commit all of them in one transaction; a fenced one fails alone (`Fenced` in its place)."""

    def read(self, stream: str) -> StreamRows:
        """A stream as of one moment; an empty one if there is none."""

    def newest_incarnation(self) -> int:
        """The highest incarnation that ever wrote here; 0 if none did."""

    def force_out(self) -> None:
        """Force every later commit out to the disk before it returns."""

    def probe(self) -> None:
        """Commit and take back a write that needs space."""

    def low(self) -> str:
        """Why new work should not be begun; called by any thread."""

    def close(self) -> None:
        """Release it."""


class _Queued(NamedTuple):
    write: Write
    done: "asyncio.Future[int]"
    term: int


class GroupCommit:
    """A `JournalStore` on a `Keeper`.

    Args:
        keeper: what keeps the rows.
        commit_s: how long a group gathers before it is committed. A kill loses at most what was appended, and
            not yet acknowledged, in that time. One with a write to flush gathers no longer, unless the commit
            before it ended less than `FLUSH_SHARE` of that time ago.
    """

    def __init__(self, keeper: Keeper, *, commit_s: float) -> None:
        self._keeper = keeper
        self._commit_s = commit_s
        self._flush = threading.Event()
        self._committed_s = 0.0  # when the newest commit ended, on the monotonic clock
        self._queue: queue.Queue[_Queued | Callable[[], None] | None] = queue.Queue(MAX_WAITING)
        self._unable = ""
        self._terms, self._lost = WriteTerms(), LostWrites()  # of the caller, and of the thread
        self._alarms: dict[str, int] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"journal {keeper.place}", daemon=True)
        self._thread.start()

    @property
    def place(self) -> str:
        """Its storage place, for messages."""
        return self._keeper.place

    def open(self, stream: str, incarnation: int) -> "asyncio.Future[None]":
        """See `JournalStore.open`."""
        return self._call(lambda: self._keeper.claim(stream, incarnation))

    def append(
        self, stream: str, incarnation: int, events: Sequence[Message], *, flush: bool = False
    ) -> "asyncio.Future[int]":
        """See `JournalStore.append`."""
        done = self._write(Write(stream, incarnation, [_row(event) for event in events], False))
        if flush:
            self._flush.set()
        return done

    def snapshot(
        self, stream: str, incarnation: int, state: Message, *, flush: bool = False
    ) -> "asyncio.Future[int]":
        """See `JournalStore.snapshot`."""
        done = self._write(Write(stream, incarnation, [_row(state)], True))
        if flush:
            self._flush.set()
        return done

    def read(self, stream: str) -> "asyncio.Future[Replayed]":
        """See `JournalStore.read`."""
        return self._call(lambda: self._keeper.read(stream).replay(self._keeper.place))

    def newest_incarnation(self) -> "asyncio.Future[int]":
        """The newest incarnation that ever wrote here: a process's incarnations must begin above it, even if
        its clock is behind. Raises (when awaited): JournalError."""
        return self._call(self._keeper.newest_incarnation)

    def probe(self) -> "asyncio.Future[None]":
        """See `JournalStore.probe`."""

        def probe() -> None:
            self._keeper.probe()
            self._unable = ""

        return self._call(probe)

    def force_out(self) -> "asyncio.Future[None]":
        """See `JournalStore.force_out`."""
        return self._call(self._keeper.force_out)

    def refuses(self) -> str:
        """See `JournalStore.refuses`."""
        return self._unable or self._keeper.low()

    async def close(self) -> None:
        """See `JournalStore.close`."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._queue.put, None)
        await asyncio.to_thread(self._thread.join)

    # -- the caller's side --

    def _write(self, write: Write) -> "asyncio.Future[int]":
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._put(_Queued(write, done, self._terms.of(write.stream, write.incarnation)), done)
        return done

    def _call(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                result = work()
            except Exception as problem:  # noqa: BLE001 (the thread serves others; the caller gets it)
                _from_thread(loop, _fail, done, problem)
            else:
                _from_thread(loop, _resolve, done, result)

        self._put(run, done)
        return done

    def _put(self, item: "_Queued | Callable[[], None]", done: "asyncio.Future[T]") -> None:
        if self._closed:
            done.set_exception(JournalError(f"{self.place}: the journal is closed"))
            return
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            done.set_exception(
                JournalFull(f"{self.place}: {MAX_WAITING} calls wait for the disk; is it stuck?")
            )

    # -- the writer thread --

    def _run(self) -> None:
        stop = False
        while not stop:
            group: list[_Queued] = []
            item = self._queue.get()
            if self._commit_s and isinstance(item, _Queued):
                self._gather()
            while True:
                if item is None:
                    stop = True
                elif isinstance(item, _Queued):
                    group.append(item)
                else:
                    self._commit(group)
                    group = []
                    item()
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            self._commit(group)
        self._keeper.close()

    def _gather(self) -> None:
        """Let a group gather."""
        if self._flush.wait(self._commit_s):
            since_s = time.monotonic() - self._committed_s
            threading.Event().wait(max(0.0, FLUSH_SHARE * self._commit_s - since_s))
        self._flush.clear()  # before the queue is emptied: a later write sets it again

    def _commit(self, group: Sequence[_Queued]) -> None:
        if not group:
            return
        lost = [self._lost.why(it.write.stream, it.write.incarnation, it.term) for it in group]
        tried = [queued for queued, why in zip(group, lost, strict=True) if why is None]
        ends = iter(self._tried(tried))
        results = [next(ends) if why is None else why for why in lost]
        self._committed_s = time.monotonic()
        settled = list(zip(group, results, strict=True))
        _from_thread(group[0].done.get_loop(), self._settle, settled)
        for queued, result in settled:
            if isinstance(result, Committed):
                self._watch_tail(queued.write.stream, result.tail)

    def _tried(self, group: Sequence[_Queued]) -> Sequence[Committed | Exception]:
        if not group:
            return []
        results: Sequence[Committed | Exception]
        try:
            results = self._keeper.commit([queued.write for queued in group])
            self._unable = ""
        except Exception as problem:  # noqa: BLE001 (the thread lives on; the waiting callers get it)
            if isinstance(problem, JournalUnable):
                self._unable = str(problem)
            results = [problem] * len(group)
        for (write, _, term), result in zip(group, results, strict=True):
            problem_of = result if isinstance(result, Exception) else None
            self._lost.ended(write.stream, write.incarnation, term, problem_of)
        return results

    def _settle(self, results: "Sequence[tuple[_Queued, Committed | Exception]]") -> None:
        for queued, result in results:
            if isinstance(result, Exception):
                self._terms.failed(queued.write.stream, queued.write.incarnation, queued.term)
                _fail(queued.done, result)
            else:
                _resolve(queued.done, result.seq)

    def _watch_tail(self, stream: str, tail: int) -> None:
        limit = self._alarms.get(stream, MAX_TAIL)
        if tail > limit:
            self._alarms[stream] = limit * 2
            log.warning(
                "journal %s: %d events of %s since its last snapshot: its replay takes long",
                self.place,
                tail,
                stream,
            )
        elif tail <= MAX_TAIL:
            self._alarms.pop(stream, None)


def _row(message: Message) -> NewRow:
    return NewRow(kind_of(message), type(message).SCHEMA, encode_body(message))


def _from_thread(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: object) -> None:
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:  # the loop is closed: no caller waits any longer
        log.debug("a journal's answer arrived after the end of its loop")


def _resolve(done: "asyncio.Future[T]", result: T) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: "asyncio.Future[T]", error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
