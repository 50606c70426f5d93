"""Puller's protocol on one connection: requests in flight, landing, chunk hashes.

Owns one connection's share of a pull. It takes chunks from a queue that several connections share. It runs as
the talk of its connection (`carrier.Connection`), in a thread of its own where the sockets are real.
"""

from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from math import inf

import xxhash

from gleaner.transport.bulk_errors import BadHash, BadRange, SourceGone, Unauthorized
from gleaner.transport.bulk_frames import (
    ANSWER_BYTES,
    TOKEN_ID_BYTES,
    BulkSource,
    Chunk,
    Request,
    Status,
    decode_answer,
    encode_request,
)
from gleaner.transport.carrier import Connection
from gleaner.transport.refusal import NotAnEnvelope

RETRIES = 2  # for one chunk with a wrong hash; wrong chunks in a row end the connection after as many
PACE_S = 0.5  # that a turn is waited for while something is under way: its source is not to wait for us
PIECE_BYTES = 4 << 20  # read, then hashed: each turn releases the interpreter lock and waits for it again


@dataclass(frozen=True, slots=True)
class PullProgress:
    """State that all connections of one pull share. All of them take chunks from `wanted`. `on_landed`,
    `on_not_yet` and `pace` (`bulk_pull.Pace.pass_by`; None: no limit) run on the loop. A source that sends
    nothing for `stall_s` is given up."""

    source: BulkSource
    version: int
    into: memoryview
    window: int
    stall_s: float
    wanted: deque[Chunk]
    on_landed: Callable[[Chunk], None]
    on_not_yet: Callable[[], None]
    pace: Callable[[int, float], Coroutine[object, object, float | None]] | None


class Exchange:
    """See the module."""

    def __init__(self, order: PullProgress, connection: Connection) -> None:
        self.failures: Counter[Chunk] = Counter()
        self._order = order
        self._connection = connection
        # chunks to request again here (wrong or not yet available); no other connection takes them
        self._again: deque[Chunk] = deque()
        self._in_flight: deque[tuple[int, Chunk]] = deque()  # the source answers in the order of requests
        self._tag = 0
        self._wrong = 0  # chunks in a row

    @property
    def left(self) -> list[Chunk]:
        """Chunks that this connection took and did not receive."""
        return [*(chunk for _, chunk in self._in_flight), *self._again]

    async def talk(self) -> None:
        """Run until no chunk is wanted. Raises a PullError without its `done`, OSError, TimeoutError."""
        order, head = self._order, bytearray(ANSWER_BYTES)
        while await self._ask():
            await self._fill(memoryview(head))
            chunk = self._expect(bytes(head))
            if chunk is None:
                continue
            digest = xxhash.xxh3_128()
            for at in range(chunk.offset, chunk.offset + chunk.length, PIECE_BYTES):
                piece = order.into[at : min(at + PIECE_BYTES, chunk.offset + chunk.length)]
                await self._fill(piece)
                digest.update(piece)
            self._check(chunk, digest.digest())

    async def _ask(self) -> bool:
        """Fill the window once half of it is free, with one call for all requests; with a rate limit, only
        what the limit allows. Returns whether an answer is outstanding."""
        order, requests, patience_s = self._order, b"", PACE_S
        if order.pace is None and len(self._in_flight) > order.window // 2:
            return True
        while len(self._in_flight) < order.window and (chunk := self._next()) is not None:
            if order.pace is not None:
                self._again.appendleft(chunk)  # it stays wanted, however the wait ends
                turn = order.pace(chunk.length, patience_s if self._in_flight else inf)
                if (waited_s := await self._connection.on_loop(turn)) is None:
                    break
                patience_s -= waited_s
                self._again.popleft()
            requests += self._request(chunk)
            if order.pace is not None:
                await self._connection.send(requests, order.stall_s)
                requests = b""
        if requests:
            await self._connection.send(requests, order.stall_s)
        return bool(self._in_flight)

    def _request(self, chunk: Chunk) -> bytes:
        token, version = self._order.source.token, self._order.version
        self._tag = (self._tag + 1) & 0xFFFFFFFF
        self._in_flight.append((self._tag, chunk))
        request = Request(token[:TOKEN_ID_BYTES], version, chunk.offset, chunk.length, self._tag)
        return encode_request(request, token[TOKEN_ID_BYTES:])

    def _next(self) -> Chunk | None:
        if self._again:
            return self._again.popleft()
        try:
            return self._order.wanted.popleft()
        except IndexError:
            return None

    async def _fill(self, place: memoryview) -> None:
        if await self._connection.receive(place, self._order.stall_s) < len(place):
            raise ConnectionResetError("the source closed the connection")

    def _expect(self, head: bytes) -> Chunk | None:
        """Match an answer with the oldest request; None if the answer has no content."""
        order, (tag, chunk) = self._order, self._in_flight[0]
        where = f"{order.source.endpoint}, version {order.version}, {chunk.length} bytes at {chunk.offset}"
        try:
            status, version, got_tag, length = decode_answer(head)
        except NotAnEnvelope as error:
            raise SourceGone(f"{where}: {error}") from None
        if status is Status.GONE:
            raise SourceGone(f"{where}: that version is not served")
        if status is Status.UNAUTHORIZED:
            raise Unauthorized(f"{where}: the token is not accepted")
        if status is Status.BAD_RANGE:
            raise BadRange(f"{where}: no such range")
        if status is Status.NOT_YET:
            self._in_flight.popleft()
            self._again.append(chunk)
            self._connection.tell(order.on_not_yet)
            return None
        if (version, got_tag, length) != (order.version, tag, chunk.length):
            raise SourceGone(f"{where}: answered version {version}, {length} bytes")
        return chunk

    def _check(self, chunk: Chunk, digest: bytes) -> None:
        """A chunk is complete: count it as done if its hash is right, else request it again."""
        order = self._order
        self._in_flight.popleft()
        if digest == chunk.digest:
            self._wrong = 0
            self._connection.tell(lambda: order.on_landed(chunk))
            return
        self._again.append(chunk)
        self.failures[chunk] += 1
        self._wrong += 1
        if self.failures[chunk] > RETRIES or self._wrong > RETRIES:
            raise BadHash(
                f"{order.source.endpoint}: {chunk.length} bytes at {chunk.offset} of version {order.version} "
                f"have hash {digest.hex()}, expected {chunk.digest.hex()}, {self.failures[chunk]} times, "
                f"{self._wrong} wrong ones in a row",
                (),
                chunk,
            )
