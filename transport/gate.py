"""Gate: admission, filtering and disconnection for a listening socket.

Owns the socket's admission domain, the check of every message's sender, and the cutting of accepted
connections. libzmq authenticates once, at the handshake, and has no call to end one connection. So the gate
remembers the descriptor that a message came from (ZMQ_SRCFD), and shuts it down under libzmq. libzmq then
sees a broken connection and makes the peer pass the handshake again.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import zmq

from gleaner.transport.keys import Z85_KEY_CHARS, NodeKeys, fingerprint, host_and_port
from gleaner.transport.port import Sock
from gleaner.transport.refusal import FrameError, WrongParts
from gleaner.transport.zap import Authenticator, OnStranger

DESCRIPTORS = Path("/proc/self/fd")

log = logging.getLogger("transport")


class Impostor(FrameError):
    """A frame carries a routing id that belongs to another key."""

    reason = "impostor"


class Revoked(FrameError):
    """A frame arrived over a connection whose key was revoked."""

    reason = "revoked"


class Gate:
    """Admission to one CURVE ROUTER. Made before the socket binds (`domain` is its ZAP domain); `guard` once
    it is bound, `close` when the socket is closed."""

    def __init__(self, context: zmq.Context[Sock], keys: NodeKeys, on_stranger: OnStranger) -> None:
        self._authenticator = Authenticator.shared(context)
        self._allowed = keys.allowed
        self.domain = self._authenticator.admit(keys.allowed.admits, on_stranger)
        self._holders: dict[int, str] = {}  # last sender on a descriptor; at most one entry a number
        self._address: tuple[str, int] | None = None
        self._leave: Callable[[], None] | None = self._allowed.subscribe(self._on_change)

    def guard(self, endpoint: str) -> None:
        """The socket listens at `endpoint`."""
        self._address = host_and_port(endpoint)

    def receive(self, sock: Sock) -> list[bytes]:
        """Receive one message whose sender's routing id ends in its verified key, which is still trusted.
        Raises `Impostor`, `Revoked` (and cuts the connection), or `zmq.Again` when there is none."""
        part = sock.recv(zmq.NOBLOCK, copy=False)  # part by part: twice as fast as recv_multipart with frames
        frames = [part.bytes]
        if not part.more:
            raise WrongParts("1 part")
        part = sock.recv(zmq.NOBLOCK, copy=False)
        key = str(part.get("User-Id"))
        fd = int(part.get(zmq.SRCFD))
        self._holders[fd] = key
        frames.append(part.bytes)
        while part.more:
            part = sock.recv(zmq.NOBLOCK, copy=False)
            frames.append(part.bytes)
        if not self._allowed.admits(key):
            self._cut(fd)
            raise Revoked(f"key {fingerprint(key)} is trusted no longer")
        if frames[0][-Z85_KEY_CHARS:] != key.encode():
            raise Impostor(f"routing id {frames[0][:64]!r} used by key {key}")
        return frames

    def close(self) -> None:
        """Release the domain; a second time does nothing."""
        if self._leave is not None:
            self._leave()
            self._leave = None
            self._authenticator.release(self.domain)

    def _on_change(self, _added: frozenset[str], removed: frozenset[str]) -> None:
        if not removed:
            return
        cut = 0
        for fd in _descriptors():
            # A connection that has not sent anything is cut too: its key is unknown, and it loses only a
            # handshake.
            holder = self._holders.get(fd, "")
            if not self._allowed.admits(holder):
                cut += self._cut(fd)
        if cut:
            log.info("connections cut at %s, keys revoked: %d", self._address, cut)

    def _cut(self, fd: int) -> bool:
        """Shut one accepted connection of this socket down; False when `fd` is none (any more)."""
        self._holders.pop(fd, None)
        try:
            duplicate = socket.socket(fileno=os.dup(fd))  # libzmq keeps and closes its own
        except OSError:
            return False  # closed meanwhile
        with duplicate:
            try:
                ours = bool(duplicate.getsockname()[:2] == self._address)
                duplicate.getpeername()  # raises for the listening socket
                if ours:
                    duplicate.shutdown(socket.SHUT_RDWR)
            except OSError:
                return False
        return ours


def _descriptors() -> Iterator[int]:
    """The sockets of this process."""
    for name in os.listdir(DESCRIPTORS):
        with contextlib.suppress(OSError):  # closed since it was listed
            if os.readlink(DESCRIPTORS / name).startswith("socket:"):
                yield int(name)
