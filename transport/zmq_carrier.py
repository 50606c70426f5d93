"""ZmqCarrier: data sockets of the real network.

Token streams run over ZeroMQ, bulk transfer over plain TCP (`bulk_socket`). Owns how the ports of `carrier`
are made of sockets. The code that opens a socket knows what flows through it.
"""

import itertools
import mmap
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq

from gleaner.transport.bulk_socket import TcpConnection, TcpListener
from gleaner.transport.carrier import BulkListener, Connection, Hub, Line, LineEvent
from gleaner.transport.keys import Bulk, NodeKeys, require_clear_beyond_loopback, require_keys_beyond_loopback
from gleaner.transport.port import MonitorPort, Port, Sock
from gleaner.transport.refusal import FrameError
from gleaner.transport.sockets import Listener, default_context, open_dealer, open_router
from gleaner.transport.wire import Peer, Route, Sent
from gleaner.transport.zap import owned_routing_id

_DIAL_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH


class ZmqCarrier:
    """`Carrier` over real sockets, of one ZeroMQ context (the process's own when none is given)."""

    def __init__(self, context: zmq.Context[Sock] | None = None) -> None:
        self._context = context
        self._numbers = itertools.count(1)

    def dial(
        self,
        peer: Peer,
        name: str,
        keys: NodeKeys | None,
        on_frames: Callable[[list[bytes]], None],
        on_event: Callable[[LineEvent], None],
    ) -> Line:
        routing_id = owned_routing_id(f"{name}#{os.getpid():x}.{next(self._numbers)}", keys)
        return _ZmqLine(open_dealer(self._shared(), peer, routing_id, keys), peer, on_frames, on_event)

    def hub(
        self,
        bind: str,
        keys: NodeKeys | None,
        on_frames: Callable[[list[bytes]], None],
        *,
        hwm: int,
        on_refused: Callable[[FrameError], None],
        on_stranger: Callable[[str, str], None],
    ) -> Hub:
        listener = open_router(self._shared(), bind, keys, on_stranger, hwm=hwm)
        return _ZmqHub(listener, on_frames, on_refused)

    def bulk_listener(self, host: str, port: int, keys: NodeKeys | None, bulk: Bulk) -> BulkListener:
        where = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        require_keys_beyond_loopback(where, keys)
        require_clear_beyond_loopback(where, bulk)
        return TcpListener(host, port)

    async def connect(self, endpoint: str) -> Connection:
        return await TcpConnection.connect(endpoint)

    def content(self, path: Path | str) -> memoryview:
        fd = os.open(path, os.O_RDONLY)
        try:
            return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(fd)

    def secret(self, size_bytes: int) -> bytes:
        return secrets.token_bytes(size_bytes)

    def _shared(self) -> zmq.Context[Sock]:
        return self._context or default_context()


class _ZmqLine:
    """A DEALER and its monitor."""

    def __init__(
        self,
        sock: Sock,
        peer: Peer,
        on_frames: Callable[[list[bytes]], None],
        on_event: Callable[[LineEvent], None],
    ) -> None:
        self._on_event = on_event
        self._monitor = MonitorPort(sock, _DIAL_EVENTS, self._happened)
        self._port = Port(sock, on_frames)
        try:
            sock.connect(peer.endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ValueError(f"{peer.endpoint} cannot be dialled: {error.strerror}") from None

    def send(self, frames: Sequence[bytes]) -> bool:
        return self._port.send(frames)

    def close(self) -> None:
        self._monitor.close()
        self._port.close()

    def _happened(self, event: int, _value: int) -> None:
        if event == zmq.EVENT_DISCONNECTED:
            self._on_event(LineEvent.LOST)
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:  # libzmq does not try again
            self._on_event(LineEvent.REJECTED)
        else:
            self._port.writable()  # lets the socket notice its new connection
            self._on_event(LineEvent.UP)


class _ZmqHub:
    """A ROUTER and its gate."""

    def __init__(
        self,
        listener: Listener,
        on_frames: Callable[[list[bytes]], None],
        on_refused: Callable[[FrameError], None],
    ) -> None:
        self._listener = listener
        self._port = Port(listener.sock, on_frames, receive=listener.receive, on_refused=on_refused)

    @property
    def local(self) -> Peer:
        return self._listener.local

    def send(self, route: Route, frames: Sequence[bytes]) -> Sent:
        try:
            return Sent.OK if self._port.send([route, *frames]) else Sent.NO_CREDIT
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return Sent.NO_ROUTE

    def close(self) -> None:
        self._port.close()
        if self._listener.gate is not None:
            self._listener.gate.close()
