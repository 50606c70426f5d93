"""Bulk puller: pulls ranges of a published file into the caller's memory.

Owns the connections to one source, the set of finished chunks, and deadlines; the protocol on one connection
is `bulk_exchange`. Does not choose sources: the caller resumes elsewhere with the unfinished chunks.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gleaner.transport.bulk_errors import PullError, PullTimeout, SourceGone, SourceLags
from gleaner.transport.bulk_exchange import Exchange, PullProgress
from gleaner.transport.bulk_frames import MAX_CHUNK_BYTES, SECRET_BYTES, TOKEN_ID_BYTES, BulkSource, Chunk
from gleaner.transport.carrier import Carrier, Connection
from gleaner.transport.keys import NodeKeys
from gleaner.transport.zmq_carrier import ZmqCarrier

STALL_S = 2.0  # a source that sends nothing for so long is given up
LAG_S = 1.5  # a source that answers "not yet" and sent no chunk for so long waits for a source that is gone
SOCKET_BYTES = 16 << 20  # of a pull are worth a connection: a further one has to begin slowly, as the first


@dataclass(frozen=True, slots=True)
class PullResult:
    """Result of a pull: bytes verified, chunks requested again because of their hash, seconds taken."""

    received_bytes: int
    retried_chunks: int
    seconds: float


class Pace:
    """Rate limiter: lets bytes pass in order of arrival, shared by all connections."""

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s = bytes_s
        self._free_s = 0.0

    async def pass_by(self, nbytes: int, most_s: float) -> float | None:
        """Wait until so many bytes may pass; return the seconds waited. Return None, and take no turn, if the
        turn is further away than `most_s`."""
        now_s = asyncio.get_running_loop().time()
        turn_s = max(self._free_s, now_s)
        if turn_s - now_s > most_s:
            return None
        self._free_s = turn_s + nbytes / self._bytes_s
        await asyncio.sleep(turn_s - now_s)
        return turn_s - now_s


async def pull(
    source: BulkSource,
    version: int,
    ranges: Sequence[Chunk],
    into: memoryview,
    *,
    window: int = 4,
    sockets: int = 1,
    limit_bytes_s: float = 0.0,
    deadline_s: float,
    on_chunk: Callable[[Chunk], None] | None = None,
    keys: NodeKeys | None = None,
    carrier: Carrier | None = None,
) -> PullResult:
    """Fetch `ranges` of `version` into `into`; each range lands at its own offset.

    Uses up to `sockets` connections, one for each 16 MiB, with `window` requests in flight on each, and
    requests at most `limit_bytes_s` in sum (0: no limit). `on_chunk` is called on the loop for each verified
    chunk. `deadline_s` is the limit for the first chunk, and each chunk grants it anew: a pull that makes
    progress may take as long as its size needs. A connection that breaks loses its chunks in flight; the
    other connections fetch them. With `keys` the pull ends (`SourceGone`) when any key is revoked: a source's
    address does not show its key, and a source that is still trusted offers again. Nothing is written to
    `into` once the call has returned.

    Raises a `PullError`; ValueError for ranges that do not fit, a read-only `into`, or an invalid token or
    endpoint."""
    loop = asyncio.get_running_loop()
    into = into.cast("B")
    for chunk in ranges:
        if not 1 <= chunk.length <= MAX_CHUNK_BYTES or not 0 <= chunk.offset <= len(into) - chunk.length:
            raise ValueError(f"{chunk} does not fit: {len(into)} bytes, chunks up to {MAX_CHUNK_BYTES}")
    if into.readonly:
        raise ValueError("the memory to pull into is read-only")
    if len(source.token) != TOKEN_ID_BYTES + SECRET_BYTES:
        raise ValueError(
            f"a bulk token has {TOKEN_ID_BYTES + SECRET_BYTES} bytes, this has {len(source.token)}"
        )
    began_s = loop.time()
    wanted = _Wanted(source, version, ranges, into)
    running = _Pull(wanted, window, limit_bytes_s, on_chunk, carrier or ZmqCarrier())
    leave = keys.allowed.subscribe(running.on_keys) if keys is not None else None
    try:
        async with asyncio.timeout(deadline_s) as late:
            running.grant = lambda: _grant(late, loop.time() + deadline_s)
            await running.run(_connections(ranges, sockets, limit_bytes_s))
    except TimeoutError:
        why = f"{source.endpoint}: no chunk within {deadline_s} s"
        raise PullTimeout(why, running.done) from None
    except PullError as error:
        error.done, error.wrong_chunks = tuple(running.done), running.retried
        raise
    finally:
        if leave is not None:
            leave()
        running.let_go()
    received_bytes = sum(chunk.length for chunk in running.done)
    return PullResult(received_bytes, running.retried, loop.time() - began_s)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is pulled: these ranges of a version, from a source, into memory."""

    source: BulkSource
    version: int
    ranges: Sequence[Chunk]
    into: memoryview


class _Pull:
    def __init__(
        self,
        wanted: _Wanted,
        window: int,
        limit_bytes_s: float,
        on_chunk: Callable[[Chunk], None] | None,
        carrier: Carrier,
    ) -> None:
        self.done: list[Chunk] = []
        self.retried = 0
        self.grant: Callable[[], None] = _nothing
        self._source = wanted.source
        self._on_chunk = on_chunk
        self._carrier = carrier
        self._order = PullProgress(
            wanted.source,
            wanted.version,
            wanted.into,
            max(1, window),
            STALL_S,
            deque(wanted.ranges),
            self._landed,
            self._not_yet,
            Pace(limit_bytes_s).pass_by if limit_bytes_s > 0 else None,
        )
        self._connections: list[Connection] = []
        self._broken = ""
        self._finished = False
        self._hung_up = False
        self._loop = asyncio.get_running_loop()
        self._got_on_s = self._loop.time()

    async def run(self, connections: int) -> None:
        """Run until all is done, no connection is left, or one of them reports an error that ends the
        pull."""
        if connections == 1:
            await self._exchange()
        else:
            await self._together(connections)
        while self._order.wanted and self._finished and not self._hung_up:
            # a connection had nothing left to do when another one broke and gave its chunks back
            self._finished = False
            await self._exchange()
        if self._hung_up or self._order.wanted:
            raise SourceGone(f"{self._source.endpoint}: {self._broken}")

    def let_go(self) -> None:
        """Release the caller's memory: no reference cycle holds it until a garbage collection."""
        del self._order

    def on_keys(self, _added: frozenset[str], removed: frozenset[str]) -> None:
        """Hang up when a key was revoked."""
        if removed:
            self._hung_up = True
            self._broken = "a key was revoked, so we hung up"
            for connection in self._connections:
                connection.hang_up()

    async def _together(self, connections: int) -> None:
        tasks = [self._loop.create_task(self._exchange()) for _ in range(connections)]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in ended:
            task.result()

    async def _exchange(self) -> None:
        """Run one connection until it ends."""
        try:
            async with asyncio.timeout(STALL_S):
                connection = await self._carrier.connect(self._source.endpoint)
            with contextlib.closing(connection):
                if self._hung_up:
                    return
                self._connections.append(connection)
                exchange = Exchange(self._order, connection)
                try:
                    await connection.run(exchange.talk())
                    self._finished = True
                finally:
                    self._order.wanted.extendleft(reversed(exchange.left))
                    self.retried += exchange.failures.total()
        except TimeoutError:
            raise PullTimeout(f"{self._source.endpoint}: nothing arrived for {STALL_S} s") from None
        except OSError as error:
            self._broken = self._broken or str(error)

    def _landed(self, chunk: Chunk) -> None:
        """The chunk is verified. Chunks that arrive after the hang-up do not count any more."""
        if self._hung_up:
            return
        self._got_on_s = self._loop.time()
        self.done.append(chunk)
        self.grant()
        if self._on_chunk is not None:
            self._on_chunk(chunk)

    def _not_yet(self) -> None:
        if self._loop.time() - self._got_on_s > LAG_S:
            raise SourceLags(f"{self._source.endpoint}: it waits for chunks itself, {LAG_S} s by now")


def _connections(ranges: Sequence[Chunk], most: int, limit_bytes_s: float) -> int:
    """Number of connections: as many as the size of the pull is worth, and as have a turn within a second."""
    size_bytes = sum(chunk.length for chunk in ranges)
    if limit_bytes_s > 0 and ranges:
        most = min(most, int(limit_bytes_s / max(chunk.length for chunk in ranges)))
    return max(1, min(most, size_bytes // SOCKET_BYTES))


def _grant(timeout: asyncio.Timeout, until_s: float) -> None:
    """More time."""
    with contextlib.suppress(RuntimeError):  # it struck in this very turn
        timeout.reschedule(until_s)


def _nothing() -> None:
    pass
