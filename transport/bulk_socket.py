"""TCP sockets of bulk transfer, behind the ports of `carrier`.

Owns the descriptors, their options, and the thread of each connection. Threads that wait in the kernel cost a
transfer no turn of the loop. Copies and hashes release the interpreter lock, so they run in parallel.
"""

import asyncio
import concurrent.futures
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Self, TypeVar

from gleaner.transport.bulk_news import News
from gleaner.transport.sockets import CannotListen

T = TypeVar("T")

NEARLY = 0.9  # the kernel counts in ticks, and returns a little early
UNSENT_BYTES = 64 << 10  # wait in the kernel, of each of several connections: see `TcpListener`
AS_THE_KERNEL_LIKES = 0
BACKLOG = 128  # pullers connect in bursts, one for each instance of a version


class TcpConnection:
    """`Connection` over one connected socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self.on_close: Callable[[], None] | None = None
        self._patience_s = {
            socket.SO_RCVTIMEO: 0.0,
            socket.SO_SNDTIMEO: 0.0,
        }  # the kernel's default: no limit
        self._asked: Callable[[], bool] | None = None
        self._hung_up = False
        self._loop = asyncio.get_running_loop()
        self._news = News(self._loop, self.hang_up)

    @classmethod
    async def connect(cls, endpoint: str) -> Self:
        """Raises OSError, or ValueError for an invalid endpoint."""
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        address = host.strip("[]"), int(port)
        if not 0 < address[1] < 1 << 16:
            raise ValueError(f"{endpoint} is no endpoint: ports end at 65535")
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, address)
            return cls(sock)
        except BaseException:
            sock.close()
            raise

    async def run(self, talk: Coroutine[object, object, T]) -> T:
        ended: concurrent.futures.Future[T] = concurrent.futures.Future()
        ended.set_running_or_notify_cancel()  # it cannot be cancelled, only hung up
        waiter = asyncio.wrap_future(ended)
        threading.Thread(target=_run, args=(talk, ended), name="bulk", daemon=True).start()
        try:
            await asyncio.wait([waiter])
        except asyncio.CancelledError:
            self.hang_up()
            while not waiter.done():  # the memory that it uses is the caller's
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([waiter])
            waiter.exception()  # that it broke off is known
            self._news.hear()
            raise
        self._news.hear()
        if self._news.failed is not None:
            waiter.exception()  # that it broke off was our doing
            raise self._news.failed
        return waiter.result()

    async def receive(self, place: memoryview, stall_s: float, least_bytes: int = 1) -> int:
        self._endure(socket.SO_RCVTIMEO, stall_s)
        filled = 0
        while filled < len(place):
            began_s = time.monotonic()
            try:
                count = self._sock.recv_into(place[filled:], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                count, late = 0, True
            else:
                late = time.monotonic() - began_s >= NEARLY * stall_s
            if late and count < min(least_bytes, len(place) - filled):
                raise TimeoutError(f"fewer than {least_bytes} bytes came in {stall_s} s")
            if count == 0:
                break
            filled += count
        return filled

    async def send(self, data: bytes, stall_s: float) -> None:
        await self.send_content(data, memoryview(b""), stall_s, 1)

    async def send_content(self, head: bytes, content: memoryview, stall_s: float, least_bytes: int) -> None:
        self._endure(socket.SO_SNDTIMEO, stall_s)
        parts, left = [memoryview(head), content], len(head) + len(content)
        try:
            while left:
                began_s = time.monotonic()
                try:
                    count = self._sock.sendmsg(parts)
                except BlockingIOError:
                    count, late = 0, True
                else:
                    late = time.monotonic() - began_s >= NEARLY * stall_s
                if late and count < min(least_bytes, left):
                    raise TimeoutError(f"fewer than {least_bytes} bytes were taken in {stall_s} s")
                left -= count
                parts = _behind(parts, count)
        finally:
            parts.clear()  # an error keeps this frame for a while, but not the memory of a version

    async def on_loop(self, question: Coroutine[object, object, T]) -> T:
        asked = asyncio.run_coroutine_threadsafe(question, self._loop)
        self._asked = asked.cancel
        if self._hung_up:
            asked.cancel()
        try:
            return asked.result()
        except concurrent.futures.CancelledError:
            raise ConnectionAbortedError("hung up") from None

    def tell(self, callback: Callable[[], None]) -> None:
        self._news.tell(callback)

    def hang_up(self) -> None:
        self._hung_up = True
        if self._asked is not None:
            self._asked()
        with contextlib.suppress(OSError):  # closed already, or by the other end
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes a blocked read or write

    def close(self) -> None:
        if self.on_close is not None:
            self.on_close()
        self._sock.close()

    def keep_unsent(self, nbytes: int) -> None:
        """Limit the bytes that the kernel takes of this connection beyond what it can send
        (TCP_NOTSENT_LOWAT)."""
        with contextlib.suppress(OSError):  # the other end is gone: nothing will be sent
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, nbytes)

    def _endure(self, option: int, stall_s: float) -> None:
        """Make the kernel return after that time, also with nothing or with less than was requested."""
        if self._patience_s[option] != stall_s:
            self._patience_s[option] = stall_s
            whole_s = int(stall_s)
            value = struct.pack("ll", whole_s, int((stall_s - whole_s) * 1e6))
            self._sock.setsockopt(socket.SOL_SOCKET, option, value)


class TcpListener:
    """`BulkListener` on one address.

    If there are several connections, each one keeps little unsent: megabytes of each would fall out of the
    caches before they are read. A single connection is faster with the kernel's buffers (docs/weights.md)."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._open: set[TcpConnection] = set()
        self._sock: socket.socket | None = None

    @property
    def endpoint(self) -> str:
        host, port = self._opened().getsockname()[:2]
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    def open(self) -> None:
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        try:
            self._sock = socket.create_server(self._address, family=family, backlog=BACKLOG)
        except OSError as error:
            where = f"tcp://{self._address[0]}:{self._address[1]}"
            raise CannotListen(
                error.errno, f"{where}: {error.strerror}; give a free port of this host"
            ) from None
        self._sock.setblocking(False)

    async def accept(self) -> tuple[TcpConnection, str]:
        sock, address = await asyncio.get_running_loop().sock_accept(self._opened())
        try:
            connection = TcpConnection(sock)
        except OSError:  # the peer left already
            sock.close()
            raise
        connection.on_close = partial(self._closed, connection)
        self._open.add(connection)
        self._share()
        return connection, address[0]

    def _closed(self, connection: TcpConnection) -> None:
        if connection in self._open:
            self._open.remove(connection)
            self._share()

    def _share(self) -> None:
        for one in self._open:
            one.keep_unsent(UNSENT_BYTES if len(self._open) > 1 else AS_THE_KERNEL_LIKES)

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()

    def _opened(self) -> socket.socket:
        if self._sock is None:
            raise RuntimeError("the bulk server is not started")
        return self._sock


def _behind(parts: list[memoryview], count: int) -> list[memoryview]:
    """The rest of the parts after so many bytes."""
    left = []
    for part in parts:
        left.append(part[count:])
        count = max(0, count - len(part))
    return left


def _run(talk: Coroutine[object, object, T], ended: concurrent.futures.Future[T]) -> None:
    """In the thread: nothing that a talk awaits ever waits for a loop, so its first step is its last."""
    try:
        talk.send(None)
    except StopIteration as end:
        ended.set_result(end.value)
    except BaseException as problem:  # noqa: BLE001 (the owner of the talk raises it)
        ended.set_exception(problem)
    else:
        talk.close()
        ended.set_exception(RuntimeError("a talk awaited something that is not its connection's"))
