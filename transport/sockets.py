"""Options of every ZeroMQ socket in Gleaner.

Owns how a ROUTER listens and a DEALER dials: limits, heartbeats, keys. Their defaults in libzmq wait forever,
buffer without limit and admit every peer. Does not own the messages that flow through them.
"""

import errno
from dataclasses import dataclass
from typing import cast

import zmq

from gleaner.transport.endpoint import endpoint
from gleaner.transport.gate import Gate
from gleaner.transport.keys import NodeKeys, fingerprint, is_key, require_keys_beyond_loopback
from gleaner.transport.port import Sock
from gleaner.transport.wire import MAX_FRAME_BYTES, Peer
from gleaner.transport.zap import OnStranger

MAX_SOCKETS = 4096  # libzmq's default of 1023 is three sockets for each of some hundred peers
HANDSHAKE_IVL_MS = 2000  # a connection without a ZMTP handshake by then is closed
# Diallers ping, and inform the listener how long it may wait for the next ping. A listener that pinged too
# would be aborted by libzmq (zeromq/libzmq#3596, #4364). A due ping asserts that the connection did not break
# while its input waited at the high-water mark. It did break if a peer that floods a busy process hangs up.
HEARTBEAT_IVL_MS = 1000
HEARTBEAT_TIMEOUT_MS = 3000  # reaps half-open connections; it proves the process, never the actor
RECONNECT_IVL_MS = 10  # several tries within the grace of a suspected link; doubled each time
DIALLER_RCVHWM = 1 << 16  # more than the windows of links and streams let a listener send: see above
RECONNECT_IVL_MAX_MS = 200
CONNECT_TIMEOUT_MS = 2000
BACKLOG = 1024
# libzmq cuts the connection above this; frames between the limit and this are refused one by one instead
CUT_BYTES = MAX_FRAME_BYTES + (64 << 10)


_NOBLOCK = int(zmq.NOBLOCK)  # a plain number: the enum costs more than the call


class CannotListen(OSError):
    """An address cannot be bound: in use, or not of this host."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A bound ROUTER, where others reach it, and its gate (None without keys)."""

    sock: Sock
    local: Peer
    gate: Gate | None

    def receive(self) -> list[bytes]:
        """Receive one message without blocking; with keys only from senders that the gate admits. Raises
        `FrameError`, or `zmq.Again` when there is none."""
        if self.gate is not None:
            return self.gate.receive(self.sock)
        frames = [self.sock.recv(_NOBLOCK)]  # the route, which is never alone
        part = self.sock.recv(_NOBLOCK, copy=False)  # it knows whether more follows; recv_multipart asks
        frames.append(part.bytes)
        while part.more:
            part = self.sock.recv(_NOBLOCK, copy=False)
            frames.append(part.bytes)
        return frames


def default_context() -> zmq.Context[Sock]:
    """The process's context, sized for many peers unless it already had a socket."""
    context = cast("zmq.Context[Sock]", zmq.Context.instance())
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    return context


def open_router(
    context: zmq.Context[Sock], bind: str, keys: NodeKeys | None, on_stranger: OnStranger, *, hwm: int = 1000
) -> Listener:
    """A listening ROUTER. Raises `RefusedToListen` or `CannotListen`."""
    require_keys_beyond_loopback(bind, keys)
    sock = context.socket(zmq.ROUTER)
    _set_common(sock, bind, hwm)
    sock.setsockopt(zmq.ROUTER_MANDATORY, 1)
    sock.setsockopt(zmq.ROUTER_HANDOVER, 1)
    sock.setsockopt(zmq.BACKLOG, BACKLOG)
    gate = Gate(context, keys, on_stranger) if keys is not None else None
    if keys is not None and gate is not None:
        sock.setsockopt(zmq.CURVE_SERVER, 1)
        sock.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
        sock.setsockopt(zmq.ZAP_DOMAIN, gate.domain)
    try:
        sock.bind(bind)
    except zmq.ZMQError as error:
        sock.close(linger=0)
        if gate is not None:
            gate.close()
        hint = {
            errno.EADDRINUSE: "another process listens there: stop it or give another port",
            errno.EADDRNOTAVAIL: "no interface of this host has that address",
            errno.EACCES: "ports below 1024 need privileges: give a higher one",
        }.get(error.errno or 0, "check the address")
        raise CannotListen(error.errno, f"{bind}: {error.strerror}; {hint}") from None
    endpoint = cast(bytes, sock.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
    if gate is not None:
        gate.guard(endpoint)
    return Listener(sock, Peer(endpoint, keys.public if keys is not None else ""), gate)


def open_dealer(
    context: zmq.Context[Sock], peer: Peer, routing_id: bytes, keys: NodeKeys | None, *, hwm: int = 1000
) -> Sock:
    """A DEALER that is not connected yet (watch it first). `peer` must have a key exactly if we have, and not
    a revoked one: ValueError otherwise, and for an invalid address."""
    if (keys is None) != (peer.public_key == ""):
        ours, theirs = ("none", "one") if keys is None else ("one", "none")
        raise ValueError(
            f"{peer.endpoint}: this process has {ours} CURVE key and the peer's address {theirs}"
        )
    endpoint(peer.endpoint)  # it may have arrived from another host: no `ipc://`, nothing but an address
    if keys is not None and not is_key(peer.public_key):
        raise ValueError(f"{peer.endpoint}: {peer.public_key[:60]!r} is no key")
    if keys is not None and not keys.allowed.may_dial(peer.public_key):
        raise ValueError(f"{peer.endpoint}: its key {fingerprint(peer.public_key)} was revoked here")
    sock = context.socket(zmq.DEALER)
    _set_common(sock, peer.endpoint, hwm)
    sock.setsockopt(zmq.RCVHWM, DIALLER_RCVHWM)
    sock.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_IVL_MS)
    sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    sock.setsockopt(zmq.HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS)
    sock.setsockopt(zmq.ROUTING_ID, routing_id)
    sock.setsockopt(zmq.IMMEDIATE, 1)  # never queue for a connection that is not open
    sock.setsockopt(zmq.RECONNECT_IVL, RECONNECT_IVL_MS)
    sock.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_IVL_MAX_MS)
    sock.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)
    if keys is not None:
        sock.setsockopt(zmq.CURVE_SERVERKEY, peer.public_key.encode())
        sock.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
        sock.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
    return sock


def _set_common(sock: Sock, endpoint: str, hwm: int) -> None:
    sock.setsockopt(zmq.LINGER, 0)
    sock.setsockopt(zmq.MAXMSGSIZE, CUT_BYTES)
    sock.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_IVL_MS)
    sock.setsockopt(zmq.SNDHWM, hwm)
    sock.setsockopt(zmq.RCVHWM, hwm)
    if "[" in endpoint:
        sock.setsockopt(zmq.IPV6, 1)
