"""Pulls ranges of a published file straight into the caller's memory.

Owns one connection to one source: requests in flight, landing in place, the hash of every chunk, deadlines.
Does not choose sources: the caller resumes elsewhere with the chunks that are not done.
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import xxhash

from transport.bulk_frames import (
    ANSWER_BYTES,
    MAX_CHUNK_BYTES,
    SECRET_BYTES,
    TOKEN_ID_BYTES,
    BulkSource,
    Chunk,
    Request,
    Status,
    decode_answer,
    encode_request,
)
from transport.carrier import Carrier, Connection
from transport.keys import NodeKeys
from transport.refusal import NotAnEnvelope
from transport.zmq_carrier import ZmqCarrier

STALL_S = 2.0  # a source that delivers less in that time than what is gathered is given up
LAG_S = 1.5  # a source that says "not yet" and has given no chunk for so long waits for somebody that is gone
RETRIES = 2  # of a chunk whose hash was wrong; of all, where so many in a row are
PIECE_BYTES = 1 << 20  # read and hashed at a time, while it is in the cache
WAKE_BYTES = (4 << 10, 512 << 10)  # gathered before we are woken, at least and at most: fewer turns
WAKE_S = STALL_S / 8  # no more is gathered than comes in that time: a slow link is none that stalls


class PullError(Exception):
    """A pull ended early. `done` are the chunks that are verified and stay: pull the rest elsewhere."""

    def __init__(self, message: str, done: Sequence[Chunk] = ()) -> None:
        super().__init__(message)
        self.done = tuple(done)


class SourceGone(PullError):
    """The source does not serve that version, or its connection broke."""


class SourceLags(PullError):
    """The source is there but has not got on itself for `LAG_S`: what it waits for may be gone."""


class Unauthorized(PullError):
    """The source does not accept the token for that version."""


class BadRange(PullError):
    """The source's file has no such range: its content is not what the manifest describes."""


class BadHash(PullError):
    """A chunk arrived wrong every time, or one after the other did; `chunk` tells the last."""

    def __init__(self, message: str, done: Sequence[Chunk], chunk: Chunk) -> None:
        super().__init__(message, done)
        self.chunk = chunk


class PullTimeout(PullError):
    """No chunk came by the deadline, or nothing arrived for `STALL_S`."""


@dataclass(frozen=True, slots=True)
class PullResult:
    """What a pull did: bytes verified, chunks asked for again because of their hash, seconds taken."""

    received_bytes: int
    retried_chunks: int
    seconds: float


async def pull(
    source: BulkSource,
    version: int,
    ranges: Sequence[Chunk],
    into: memoryview,
    *,
    window: int = 4,
    deadline_s: float,
    on_chunk: Callable[[Chunk], None] | None = None,
    keys: NodeKeys | None = None,
    carrier: Carrier | None = None,
) -> PullResult:
    """Fetch `ranges` of `version` into `into` (each lands at its own offset), `window` requests in flight on
    one connection. `on_chunk` is called for each verified chunk. `deadline_s` is for the first chunk, and
    each grants it anew: a pull that gets on may take as long as its size asks for. With `keys` it ends
    (`SourceGone`) when any key is revoked: a source's address does not tell its key, and who is still trusted
    offers again. Raises a `PullError`; ValueError for ranges that do not fit, a read-only `into`, or
    something that is no token or endpoint."""
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
    running = _Pull(source, version, ranges, into, window, on_chunk, carrier or ZmqCarrier())
    leave = keys.allowed.subscribe(running.on_keys) if keys is not None else None
    stall: asyncio.Timeout | None = None
    try:
        async with asyncio.timeout(deadline_s) as late, asyncio.timeout(STALL_S) as stall:
            await running.run(stall, late, deadline_s)
    except TimeoutError:
        stalled = stall is not None and stall.expired()
        why = f"nothing arrived for {STALL_S} s" if stalled else f"no chunk within {deadline_s} s"
        raise PullTimeout(f"{source.endpoint}: {why}", running.done) from None
    except OSError as error:
        raise SourceGone(f"{source.endpoint}: {error}", running.done) from None
    finally:
        if leave is not None:
            leave()
    received_bytes = sum(chunk.length for chunk in running.done)
    return PullResult(received_bytes, running.failures.total(), loop.time() - began_s)


class _Pull:
    def __init__(
        self,
        source: BulkSource,
        version: int,
        ranges: Sequence[Chunk],
        into: memoryview,
        window: int,
        on_chunk: Callable[[Chunk], None] | None,
        carrier: Carrier,
    ) -> None:
        self.done: list[Chunk] = []
        self.failures: Counter[Chunk] = Counter()
        self._source = source
        self._version = version
        self._into = into
        self._window = max(1, window)
        self._on_chunk = on_chunk
        self._wanted = deque(ranges)
        self._in_flight: deque[tuple[int, Chunk]] = deque()  # the source answers in the order of requests
        self._tag = 0
        self._carrier = carrier
        self._connection: Connection | None = None
        self._hung_up = False
        self._enough = WAKE_BYTES[0]
        self._loop = asyncio.get_running_loop()
        self._got_on_s = self._loop.time()
        self._wrong = 0  # chunks in a row

    async def run(self, stall: asyncio.Timeout, late: asyncio.Timeout, deadline_s: float) -> None:
        connection = self._connection = await self._carrier.connect(self._source.endpoint)
        with contextlib.closing(connection):
            head = memoryview(bytearray(ANSWER_BYTES))
            while self._wanted or self._in_flight:
                if self._hung_up:
                    raise ConnectionAbortedError("a key was revoked, so we hung up")
                await self._ask(connection)
                await self._receive(connection, head, stall, None)
                chunk = self._expect(bytes(head))
                if chunk is None:
                    continue
                digest = xxhash.xxh3_128()
                place = self._into[chunk.offset : chunk.offset + chunk.length]
                await self._receive(connection, place, stall, digest.update)
                if self._landed(chunk, digest.digest()):
                    _grant(late, self._loop.time() + deadline_s)
                await asyncio.sleep(0)  # while bytes are there reading never suspends: let others run

    def on_keys(self, _added: frozenset[str], removed: frozenset[str]) -> None:
        """Hang up when a key was revoked."""
        if removed:
            self._hung_up = True
            if self._connection is not None:
                self._connection.hang_up()

    async def _ask(self, connection: Connection) -> None:
        token_id, secret = self._source.token[:TOKEN_ID_BYTES], self._source.token[TOKEN_ID_BYTES:]
        requests = []
        while self._wanted and len(self._in_flight) < self._window:
            chunk = self._wanted.popleft()
            self._tag = (self._tag + 1) & 0xFFFFFFFF
            self._in_flight.append((self._tag, chunk))
            request = Request(token_id, self._version, chunk.offset, chunk.length, self._tag)
            requests.append(encode_request(request, secret))
        if requests:
            await connection.send(b"".join(requests))

    async def _receive(
        self,
        connection: Connection,
        place: memoryview,
        stall: asyncio.Timeout,
        on_piece: Callable[[memoryview], None] | None,
    ) -> None:
        filled = 0
        while filled < len(place):
            enough = min(self._enough, len(place) - filled)
            began_s = self._loop.time()
            count = await connection.receive(place[filled : filled + PIECE_BYTES], enough)
            if count == 0:
                raise ConnectionResetError("hung up" if self._hung_up else "the source closed the connection")
            now_s = self._loop.time()
            if on_piece is not None:
                self._enough = _next_enough(self._enough, count, now_s - began_s)
                on_piece(place[filled : filled + count])
            filled += count
            _grant(stall, now_s + STALL_S)

    def _expect(self, head: bytes) -> Chunk | None:
        """Match an answer with the oldest request; None where it brings nothing."""
        tag, chunk = self._in_flight.popleft()
        where = f"{self._source.endpoint}, version {self._version}, {chunk.length} bytes at {chunk.offset}"
        try:
            status, version, got_tag, length = decode_answer(head)
        except NotAnEnvelope as error:
            raise SourceGone(f"{where}: {error}", self.done) from None
        if status is Status.GONE:
            raise SourceGone(f"{where}: that version is not served", self.done)
        if status is Status.UNAUTHORIZED:
            raise Unauthorized(f"{where}: the token is not accepted", self.done)
        if status is Status.BAD_RANGE:
            raise BadRange(f"{where}: no such range", self.done)
        if status is Status.NOT_YET:
            if self._loop.time() - self._got_on_s > LAG_S:
                raise SourceLags(f"{where}: it waits for it itself, {LAG_S} s by now", self.done)
            self._wanted.appendleft(chunk)
            return None
        if (version, got_tag, length) != (self._version, tag, chunk.length):
            raise SourceGone(f"{where}: answered version {version}, {length} bytes", self.done)
        return chunk

    def _landed(self, chunk: Chunk, digest: bytes) -> bool:
        """A chunk is complete: whether it is right, and done; else it is asked for again."""
        if digest == chunk.digest:
            self._wrong = 0
            self._got_on_s = self._loop.time()
            self.done.append(chunk)
            if self._on_chunk is not None:
                self._on_chunk(chunk)
            return True
        self.failures[chunk] += 1
        self._wrong += 1
        if self.failures[chunk] > RETRIES or self._wrong > RETRIES:
            raise BadHash(
                f"{self._source.endpoint}: {chunk.length} bytes at {chunk.offset} of version {self._version} "
                f"have hash {digest.hex()}, expected {chunk.digest.hex()}, {self.failures[chunk]} times, "
                f"{self._wrong} wrong ones in a row",
                self.done,
                chunk,
            )
        self._wanted.append(chunk)
        return False


def _next_enough(enough: int, count: int, took_s: float) -> int:
    """How much to gather next: as much as comes in `WAKE_S` by what came just now, at most twice as much."""
    least, most = WAKE_BYTES
    by_rate = count / took_s * WAKE_S if took_s > 0 else most
    return int(max(least, min(by_rate, 2 * enough, most)))


def _grant(timeout: asyncio.Timeout, until_s: float) -> None:
    """More time."""
    with contextlib.suppress(RuntimeError):  # it struck in this very turn
        timeout.reschedule(until_s)
