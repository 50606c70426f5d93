"""The TCP sockets of bulk transfer, behind the ports of `carrier`.

Owns the descriptors and their options. The kernel gathers what was asked to be enough before it wakes us, so
a transfer costs few turns of the loop.
"""

import asyncio
import contextlib
import socket
from typing import Self

from transport.sockets import CannotListen

BACKLOG = 128  # pullers come in bursts, one for each instance of a version


class TcpConnection:
    """`Connection` over one connected socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._enough = 1  # the kernel's default
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(cls, endpoint: str) -> Self:
        """Raises OSError, or ValueError for what is no endpoint."""
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        address = host.strip("[]"), int(port)
        if not 0 < address[1] < 1 << 16:
            raise ValueError(f"{endpoint} is no endpoint: ports end at 65535")
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection = cls(sock)
            await asyncio.get_running_loop().sock_connect(sock, address)
        except BaseException:
            sock.close()
            raise
        return connection

    async def receive(self, place: memoryview, enough: int = 1) -> int:
        if enough != self._enough:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, enough)
            self._enough = enough
        return await self._loop.sock_recv_into(self._sock, place)

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._sock, data)

    async def send_content(self, content: memoryview) -> None:
        await self._loop.sock_sendall(self._sock, content)

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):  # closed already
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes whoever reads or writes

    def close(self) -> None:
        self._sock.close()


class TcpListener:
    """`BulkListener` on one address."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
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
            return TcpConnection(sock), address[0]
        except OSError:  # the peer left already
            sock.close()
            raise

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()

    def _opened(self) -> socket.socket:
        if self._sock is None:
            raise RuntimeError("the bulk server is not started")
        return self._sock
