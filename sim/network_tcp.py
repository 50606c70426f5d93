"""SimConnection: TCP connections on the simulated network, for bulk transfer and HTTP.

Owns the bytes of a connection: pieces on the line, the bound of bytes sent and not read, the end in order and
the reset. Each connection keeps only a few pieces on its way, so those that share a line or a network card
share its rate. An open connection neither loses nor reorders anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, TypeVar

from xxhash import xxh3_64_intdigest

from gleaner.sim.network_path import End, Flow, Path, Station
from gleaner.sim.network_pipe import Pipe
from gleaner.sim.network_stall import StallTimer
from gleaner.transport.endpoint import endpoint as checked_endpoint

if TYPE_CHECKING:
    from gleaner.sim.network import SimNet

T = TypeVar("T")

PIECE_BYTES = 1 << 20  # as much as travels at a time
PIECE_S = 0.05  # longest time of a piece, on a slow line or of content that represents more bytes
PIECES = 4  # of one connection on the line and not read: its window
BACKLOG = 128  # connections that are not accepted yet
SYN_AGAIN_S = 1.0  # after silence; doubled each time
SYN_LIMIT_S = 127.0  # Linux gives up then (tcp_syn_retries = 6)
READ_BYTES = 1 << 16  # that a reader of whatever has arrived gets at a time
MANY = 1 << 30  # the bound of a pipe: the window is kept here


class SimConnection:
    """`Connection` between two simulated processes, at one of its ends."""

    def __init__(
        self, station: Station, into: Pipe[bytes], out: Pipe[bytes], path: Path, scale: float, piece: int
    ) -> None:
        self.peer: SimConnection | None = None  # set by the code that connects both
        self._station = station
        self._into = into
        self._out = out
        self._scale = scale
        rate_bytes = path.bulk_rate_bytes_s * PIECE_S
        self._piece_bytes = min(rate_bytes, 1 << 60) if scale > 1 else min(rate_bytes, piece)
        self._unread_bytes = 0.0  # sent, and not read by the peer as far as we know
        self._unheard_bytes = 0.0  # read by the peer, while nothing arrives from there
        self._arrived: deque[bytes] = deque()
        self._arrived_bytes = 0
        self._offset = 0  # of the oldest piece, already read
        self._enough = 0
        self._ended: End | None = None
        self._closed = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._receiving = StallTimer(station.process, into)
        self._sending = StallTimer(station.process, out)
        into.on_end = self._on_end
        into.on_free = self._on_receive
        into.read_into(self._on_piece)
        station.sockets[self] = None

    async def run(self, talk: Coroutine[object, object, T]) -> T:
        return await talk

    async def on_loop(self, question: Coroutine[object, object, T]) -> T:
        return await question

    def tell(self, callback: Callable[[], None]) -> None:
        callback()

    async def receive(self, place: memoryview, stall_s: float, least_bytes: int = 1) -> int:
        filled = 0
        self._receiving.allow(stall_s)
        try:
            while filled < len(place):
                count = await self._receive(place[filled:])
                if count == 0:
                    break
                filled += count
                if count >= min(least_bytes, len(place)):
                    self._receiving.allow(stall_s)
        finally:
            self._receiving.stop()
        return filled

    async def send(self, data: bytes, stall_s: float) -> None:
        self._sending.allow(stall_s)
        try:
            await self._write(memoryview(data), 1.0)
        finally:
            self._sending.stop()

    async def send_content(self, head: bytes, content: memoryview, stall_s: float, least_bytes: int) -> None:
        await self.send(head, stall_s)
        try:
            for at in range(0, len(content), least_bytes):
                self._sending.allow(stall_s)
                await self._write(content[at : at + least_bytes], self._scale)
        finally:
            self._sending.stop()

    async def read(self) -> bytes:
        """What has arrived, at least one byte; b"" after the end. Raises OSError."""
        place = bytearray(READ_BYTES)
        count = await self._receive(memoryview(place), enough=1)
        return bytes(place[:count])

    async def write(self, data: bytes) -> None:
        """Send, however long the peer takes to read. Raises OSError."""
        await self._write(memoryview(data), self._scale)

    async def _receive(self, place: memoryview, enough: int = 0) -> int:
        self._enough = enough or (1 if self._scale > 1 else min(len(place), self._window_bytes()))
        while self._arrived_bytes < self._enough and self._ended is None:
            self._reader = self._station.process.create_future()
            await self._receiving.wait(self._reader)
        if not self._arrived_bytes:
            if self._ended is not End.CLOSED:
                raise ConnectionResetError("connection reset by peer")
            return 0
        return self._take(place)

    def hang_up(self) -> None:
        self._into.shut()
        self._out.end(End.CLOSED)
        self._arrived.clear()
        self._arrived_bytes = 0
        self._on_end(End.CLOSED)

    def close(self) -> None:
        self._leave(End.REFUSED if self._arrived_bytes else End.CLOSED)  # as the kernel does

    def died(self) -> None:
        self._leave(End.RESET if self._arrived_bytes else End.CLOSED)

    def outs(self) -> list[Flow]:
        return [self._out]

    def _leave(self, how: End) -> None:
        if not self._closed:
            self._closed = True
            self._receiving.close()
            self._sending.close()
            self._station.sockets.pop(self, None)
            self._into.shut()
            self._out.end(how)
            self._on_end(End.RESET)

    def _take(self, place: memoryview) -> int:
        filled = 0
        while self._arrived and filled < len(place):
            piece = self._arrived[0]
            count = min(len(piece) - self._offset, len(place) - filled)
            place[filled : filled + count] = piece[self._offset : self._offset + count]
            filled += count
            self._offset += count
            if self._offset == len(piece):
                self._arrived.popleft()
                self._offset = 0
        self._arrived_bytes -= filled
        if self.peer is not None:
            self.peer._was_read(filled)
        return filled

    async def _write(self, data: memoryview, scale: float) -> None:
        step = max(1, int(self._piece_bytes / scale))
        for at in range(0, len(data), step):
            piece = bytes(data[at : at + step])
            while self._ended is None and self._unread_bytes >= PIECES * step:
                self._writer = self._station.process.create_future()
                await self._sending.wait(self._writer)
            if self._ended is not None:
                raise BrokenPipeError("the other end has closed the connection")
            self._unread_bytes += len(piece)
            self._out.send_bulk(piece, len(piece) * scale, xxh3_64_intdigest(piece))

    def _window_bytes(self) -> int:
        """More than the other end may send before it is read will never be there."""
        return PIECES * max(1, int(self.peer._piece_bytes)) if self.peer is not None else 1

    def _was_read(self, count: int) -> None:
        """The peer read so many of our bytes: our window opens, if the report arrives. (In reality a little
        later.)"""
        self._unheard_bytes += count
        if not self._into.blocked:
            self._on_receive()

    def _on_receive(self) -> None:
        self._unread_bytes -= self._unheard_bytes
        self._unheard_bytes = 0.0
        _wake(self._writer)

    def _on_piece(self, piece: bytes) -> None:
        self._arrived.append(self._station.host.arrives(piece))
        self._arrived_bytes += len(piece)
        if self._arrived_bytes >= self._enough:
            _wake(self._reader)

    def _on_end(self, how: End) -> None:
        if self._ended is None:
            self._ended = how
        _wake(self._reader)
        _wake(self._writer)


class SimBulkListener:
    """`BulkListener` on a simulated host."""

    def __init__(
        self, net: SimNet, station: Station, bind: str, scale: float, piece_bytes: int = PIECE_BYTES
    ) -> None:
        self.station = station
        self.piece_bytes = piece_bytes
        self._net = net
        self._bind = bind
        self._scale = scale
        self._endpoint = ""
        self._port = 0
        self._waiting: deque[tuple[SimConnection, str]] = deque()
        self._accepting: asyncio.Future[None] | None = None

    @property
    def endpoint(self) -> str:
        if not self._endpoint:
            raise RuntimeError("the bulk server is not started")
        return self._endpoint

    def open(self) -> None:
        self._endpoint, self._port = self._net.map.bind(self.station, self._bind, self)
        self.station.sockets[self] = None

    async def accept(self) -> tuple[SimConnection, str]:
        while not self._waiting:
            self._accepting = self.station.process.create_future()
            await self._accepting
        return self._waiting.popleft()

    def close(self) -> None:
        self.died()
        for connection, _ in list(self._waiting):
            connection.close()

    def died(self) -> None:
        self.station.sockets.pop(self, None)
        self.station.host.listeners.pop(self._port, None)

    def outs(self) -> list[Flow]:
        return []

    @property
    def full(self) -> bool:
        """Waiting connections are not accepted: no more is taken."""
        return len(self._waiting) >= BACKLOG

    def come(self, station: Station, into: Pipe[bytes], out: Pipe[bytes], back: Path) -> SimConnection:
        """A peer connected."""
        connection = SimConnection(self.station, into, out, back, self._scale, self.piece_bytes)
        self._waiting.append((connection, station.host.address))
        _wake(self._accepting)
        return connection


async def connect(net: SimNet, station: Station, endpoint: str, scale: float) -> SimConnection:
    """A connection to a bulk listener. Raises OSError, or ValueError for an invalid endpoint."""
    checked_endpoint(endpoint)
    loop = station.process
    began_s, again_s = loop.time(), SYN_AGAIN_S
    while loop.time() - began_s < SYN_LIMIT_S:
        paths = net.map.paths_to(station, endpoint)
        if paths is not None:
            there, back = paths
            now_s = loop.time()
            await asyncio.sleep(back.message_s(there.message_s(now_s, 0), 0) - now_s)
            if not there.blocked and not back.blocked:
                listener = net.map.listener(there.target, endpoint)
                if listener is None:
                    raise ConnectionRefusedError(f"connection refused: no listener at {endpoint}")
                if there.jammed or back.jammed:
                    raise ConnectionResetError("connection reset by peer")
                if isinstance(listener, SimBulkListener) and not listener.full:
                    return _connected(net, station, listener, there, back, scale)
        await asyncio.sleep(again_s)
        again_s *= 2
    raise TimeoutError(f"{endpoint} does not answer")


def _connected(
    net: SimNet, station: Station, listener: SimBulkListener, there: Path, back: Path, scale: float
) -> SimConnection:
    forth: Pipe[bytes] = net.pipe(there, station, listener.station, MANY, None)
    answers: Pipe[bytes] = net.pipe(back, listener.station, station, MANY, None)
    ours = SimConnection(station, answers, forth, there, scale, listener.piece_bytes)
    theirs = listener.come(station, forth, answers, back)
    ours.peer, theirs.peer = theirs, ours
    return ours


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
