"""Messages between the two ends of a sandbox: JSON frames with bytes behind them.

They use a socket. Both ends are ours: a program's output travels through pipes of its own, and never here.
"""

import array
import json
import socket
import struct
from dataclasses import asdict
from typing import TypeAlias

from gleaner.actors.reward.sandbox.port import Work

Json: TypeAlias = dict[str, object]
_PREFIX = struct.Struct("<II")
MAX_HEAD_BYTES = 2**20
MAX_BODY_BYTES = 64 * 2**20
FDS = 3
"""Descriptors that are sent with work: the program's stdout, its stderr, and where its result goes."""


class SocketClosed(EOFError):
    """The other end closed its socket."""


def send(channel: socket.socket, head: Json, body: bytes = b"", fds: tuple[int, ...] = ()) -> None:
    """Send a frame with its descriptors. Raises OSError, ValueError if it is too large."""
    text = json.dumps(head).encode()
    if len(text) > MAX_HEAD_BYTES or len(body) > MAX_BODY_BYTES:
        raise ValueError(f"{len(text)} and {len(body)} bytes, at most {MAX_HEAD_BYTES} and {MAX_BODY_BYTES}")
    prefix = _PREFIX.pack(len(text), len(body))
    if fds:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        sent = channel.sendmsg([prefix], rights)
        prefix = prefix[sent:]
    channel.sendall(prefix + text)
    if body:
        channel.sendall(body)


def send_work(channel: socket.socket, work: Work, fds: tuple[int, ...]) -> None:
    """Send work to a zygote. Raises OSError, ValueError if it is too large."""
    head: Json = {"function": work.function, "limits": asdict(work.limits), "each_s": work.each_s}
    send(channel, head, b"" if work.each_s else work.payload, fds)


def receive(channel: socket.socket) -> tuple[Json, bytes, list[int]]:
    """The next frame with its descriptors. Raises `SocketClosed`, OSError."""
    prefix, ancillary, _flags, _address = channel.recvmsg(_PREFIX.size, socket.CMSG_SPACE(4 * FDS))
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    prefix += _exactly(channel, _PREFIX.size - len(prefix)) if prefix else b""
    if not prefix:
        raise SocketClosed("the other end of the sandbox's socket is closed")
    head_bytes, body_bytes = _PREFIX.unpack(prefix)
    if head_bytes > MAX_HEAD_BYTES or body_bytes > MAX_BODY_BYTES:
        raise OSError(f"a frame of {head_bytes} and {body_bytes} bytes")
    head = json.loads(_exactly(channel, head_bytes))
    return head, _exactly(channel, body_bytes), list(fds)


def _exactly(channel: socket.socket, count: int) -> bytes:
    parts: list[bytes] = []
    while count:
        part = channel.recv(min(count, 2**20))
        if not part:
            raise SocketClosed("the other end of the sandbox's socket closed it within a frame")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
