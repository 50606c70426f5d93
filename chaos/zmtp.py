"""ZMTP 3.0 (rfc.zeromq.org/spec/23) by hand over TCP, with errors on demand.

Owns the bytes of greeting, READY and frames, and a connection that is bounded in time and gives up silently:
a closed connection is the expected reaction to false data.
"""

import contextlib
import socket
import struct
from collections.abc import Sequence
from types import TracebackType

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
GREETING = SIGNATURE + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
CURVE_GREETING = SIGNATURE + b"\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
MORE, LONG, COMMAND = 1, 2, 4
WAIT_S = 1.0
ANSWER_S = 0.1  # a process of this host that responds at all has responded by then


def ready(identity: bytes, kind: bytes = b"DEALER") -> bytes:
    """The command that ends a NULL handshake."""
    body = b"\x05READY\x0bSocket-Type" + _text(kind) + b"\x08Identity" + _text(identity)
    return frame(body, COMMAND)


def frame(body: bytes, flags: int = 0) -> bytes:
    """One frame with a correct length."""
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | LONG]) + struct.pack(">Q", len(body)) + body


def message(parts: Sequence[bytes]) -> bytes:
    """The frames of one message."""
    return b"".join(frame(part, MORE) for part in parts[:-1]) + frame(parts[-1])


def _text(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


class Raw:
    """A TCP connection to a port of this host. `push` and `pull` never raise and never wait long."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._sock = socket.create_connection((host, port), timeout=WAIT_S)

    def __enter__(self) -> "Raw":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Send the end, read the rest of the other end's bytes, close: closing with unread answers would make
        TCP drop the bytes pushed before."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        while self.pull():
            pass
        self.cut()

    def cut(self) -> None:
        """Close at once."""
        self._sock.close()

    def push(self, data: bytes) -> bool:
        """Send as much as the socket accepts; False when it was not all."""
        try:
            self._sock.settimeout(WAIT_S)
            self._sock.sendall(data)
        except OSError:
            return False
        return True

    def drip(self, data: bytes) -> None:
        """Send as much as the kernel's buffer holds, without waiting."""
        with contextlib.suppress(OSError):
            self._sock.send(data, socket.MSG_DONTWAIT)

    def pull(self, size: int = 1 << 16) -> bytes:
        """Available bytes; none when the other end is silent for a moment, or closed the connection."""
        try:
            self._sock.settimeout(ANSWER_S)
            return self._sock.recv(size)
        except OSError:
            return b""
