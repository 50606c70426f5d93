"""ZmqWire: control mesh over ZeroMQ, one ROUTER a process, one DEALER a peer.

Each process binds its ROUTER. Owns dialling, watching and forgetting the peers that this process talks to,
and the way back by route. Requests leave on our DEALER and their replies return on it, so no two processes
race to connect to each other and no route is unknown. Knows no envelope and no actor.
"""

import asyncio
import errno
import itertools
import os
import random
from collections import Counter
from collections.abc import Sequence

import zmq

from gleaner.transport.keys import NodeKeys
from gleaner.transport.link import DialledLink
from gleaner.transport.listener_probe import ListenerProbe
from gleaner.transport.port import MonitorPort, Port, Sock
from gleaner.transport.refusal import FrameError, Oversize, Refusals, WrongParts
from gleaner.transport.rejections import Rejections
from gleaner.transport.sockets import default_context, open_dealer, open_router
from gleaner.transport.wire import (
    LINK_TIMES,
    MAX_FRAME_BYTES,
    Link,
    LinkTimes,
    OnFrames,
    OnLink,
    Peer,
    Route,
    Sent,
    check_frames,
)
from gleaner.transport.zap import ROUTING_MARK, owned_routing_id

MAX_PEERS = 1000  # dialled at a time; three sockets of the context's limit each
MAX_PARTS = 16  # frames in one message
MAX_NAME_BYTES = 128  # of a node; a routing id takes 255 in all
DIAL_ROUTE = b"\0dial#"  # libzmq reserves the leading zero byte, so no routing id of a peer begins so

_REJECTIONS = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "it does not admit our key",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "it has keys and we have none, or the other way round",
}
_DIAL_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_LISTEN_EVENTS = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL

_dial_numbers = itertools.count(1)  # of this process: two wires of one node must not share a routing id


class _Dial:
    """One peer's DEALER, its monitor and its link."""

    def __init__(self, wire: "ZmqWire", peer: Peer, sock: Sock, route: Route) -> None:
        self.route = route
        self._wire = wire
        self._peer = peer
        self.link = DialledLink(
            peer,
            self._transmit,
            wire.tell_link,
            lambda: wire.forget(peer),
            grace_s=wire.times.grace_s,
            connect_deadline_s=wire.times.connect_deadline_s,
        )
        self._monitor = MonitorPort(sock, _DIAL_EVENTS, self._on_event)
        self._port = Port(sock, self._on_frames)
        self._probe = ListenerProbe(peer.endpoint, self.link.no_listener)

    def close(self) -> None:
        self.link.close()
        self._probe.stop()
        self._monitor.close()
        self._port.close()

    def _transmit(self, frames: Sequence[bytes]) -> bool:
        return self._port.send(frames)

    def _on_frames(self, frames: list[bytes]) -> None:
        self._wire.deliver(self.route, frames)

    def _on_event(self, event: int, value: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._probe.stop()
            self._wire.rejections.admitted(self._peer)
            self._port.writable()  # lets the socket notice its new connection before the link is flushed
            self.link.up()
        elif event == zmq.EVENT_DISCONNECTED:
            self.link.lost()
            if self.link.state is Link.SUSPECT:
                self._probe.start()
        else:
            why = f"{_REJECTIONS[zmq.Event(event)]} ({value})"
            self._wire.rejected(self._peer, why)
            self.link.rejected()


class ZmqWire:
    """`Wire` over ZeroMQ. Opened on the running loop; `node` and `incarnation` name this process to others.

    Raises `RefusedToListen` (beyond loopback without keys) and `CannotListen` (address in use or not ours).
    """

    def __init__(
        self,
        node: str,
        incarnation: int,
        bind: str = "tcp://127.0.0.1:0",
        keys: NodeKeys | None = None,
        *,
        context: zmq.Context[Sock] | None = None,
        times: LinkTimes = LINK_TIMES,
    ) -> None:
        if not 1 <= len(node.encode()) <= MAX_NAME_BYTES:
            raise ValueError(f"node name {node!r}: 1 to {MAX_NAME_BYTES} bytes are needed")
        self.times = times
        self._name = f"{node}#{incarnation}"
        self._keys = keys
        self._context = context or default_context()
        self._refusals = Refusals(self._name)
        self.rejections = Rejections(random.Random().random)
        self._loop = asyncio.get_running_loop()
        listener = open_router(self._context, bind, keys, self._on_stranger)
        self._local = listener.local
        self._listener = listener
        self._router = listener.sock
        self._monitor = MonitorPort(self._router, _LISTEN_EVENTS, self._on_failed_handshake)
        self._port: Port | None = None
        self._dials: dict[Peer, _Dial] = {}
        self._by_route: dict[Route, _Dial] = {}
        self._on_frames: OnFrames | None = None
        self._on_link: OnLink | None = None
        self._closed = False
        self._leave_keys = keys.allowed.subscribe(self._on_keys) if keys is not None else _nothing

    @property
    def local(self) -> Peer:
        return self._local

    @property
    def refused(self) -> Counter[str]:
        return self._refusals.by_reason

    def peer_of(self, route: Route) -> Peer | None:
        dial = self._by_route.get(route)
        return dial.link.peer if dial is not None else None

    def refuse(self, route: Route, reason: str, detail: str) -> None:
        dial = self._by_route.get(route)
        source = dial.link.peer.endpoint if dial is not None else route.decode(errors="replace")
        self._refusals.count(source, reason, detail)

    def rejected(self, peer: Peer, why: str) -> None:
        """It does not admit us."""
        self.rejections.rejected(peer, self._loop.time())
        self.refuse(peer.endpoint.encode(), "rejected", why)

    def send(self, to: Peer | Route, frames: Sequence[bytes]) -> Sent:
        check_frames(frames)
        if self._closed:
            return Sent.NO_ROUTE
        if isinstance(to, Peer):
            dial = self._dials.get(to)
            if dial is None and self.rejections.holds_back(to, self._loop.time()):
                self._loop.call_soon(self.tell_link, to, Link.REJECTED)  # as if it had been asked again
                return Sent.OK
            dial = dial or self._dial(to)
        elif to.startswith(DIAL_ROUTE):
            dial = self._by_route.get(to)
        else:
            return self._send_back(to, frames)
        return dial.link.send(frames) if dial is not None else Sent.NO_ROUTE

    def listen(self, on_frames: OnFrames, on_link: OnLink) -> None:
        self._on_frames = on_frames
        self._on_link = on_link
        receive = self._listener.receive
        self._port = Port(self._router, self._on_routed, receive=receive, on_refused=self._on_refused)

    def forget(self, peer: Peer) -> None:
        dial = self._dials.pop(peer, None)
        if dial is not None:
            del self._by_route[dial.route]
            dial.close()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for peer in list(self._dials):
            self.forget(peer)
        self._monitor.close()
        if self._port is not None:
            self._port.close()
        self._router.close(linger=0)
        if self._listener.gate is not None:
            self._listener.gate.close()
        self._leave_keys()

    def tell_link(self, peer: Peer, link: Link) -> None:
        """Pass a link event on."""
        if self._on_link is not None and not self._closed:
            self._on_link(peer, link)

    def deliver(self, route: Route, frames: list[bytes]) -> None:
        """Check the shape of a message and pass it on; refused ones are counted."""
        try:
            if not 1 <= len(frames) <= MAX_PARTS:
                raise WrongParts(f"{len(frames)} frames, expected 1 to {MAX_PARTS}")
            if (longest := max(map(len, frames))) > MAX_FRAME_BYTES:
                raise Oversize(f"frame of {longest} bytes, the limit is {MAX_FRAME_BYTES}")
            if self._on_frames is not None:
                self._on_frames(route, frames)
        except FrameError as error:
            self.refuse(route, error.reason, str(error))

    def _dial(self, peer: Peer) -> _Dial | None:
        number = next(_dial_numbers)
        try:
            if len(self._dials) >= MAX_PEERS:
                raise ValueError(f"{MAX_PEERS} peers are dialled already: forget some")
            routing_id = owned_routing_id(f"{self._name}#{os.getpid():x}.{number}", self._keys)
            sock = open_dealer(self._context, peer, routing_id, self._keys)
        except ValueError as error:
            self._refusals.count(peer.endpoint, "cannot-dial", str(error))
            return None
        dial = _Dial(self, peer, sock, DIAL_ROUTE + str(number).encode())
        try:
            sock.connect(peer.endpoint)
        except zmq.ZMQError as error:
            dial.close()
            self._refusals.count(peer.endpoint, "cannot-dial", str(error))
            return None
        self._dials[peer] = self._by_route[dial.route] = dial
        return dial

    def _send_back(self, route: Route, frames: Sequence[bytes]) -> Sent:
        if self._port is None:
            return Sent.NO_ROUTE
        try:
            return Sent.OK if self._port.send([route, *frames]) else Sent.NO_CREDIT
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return Sent.NO_ROUTE

    def _on_routed(self, frames: list[bytes]) -> None:
        route, *rest = frames
        if not route.startswith(ROUTING_MARK):
            self._refusals.count("a stranger", "no-identity", f"routing id {route[:32]!r} is not of our form")
        else:
            self.deliver(route, rest)

    def _on_keys(self, _added: frozenset[str], removed: frozenset[str]) -> None:
        self.rejections.forget()
        for peer, dial in list(self._dials.items()):  # a callback of this loop may forget other peers
            if peer.public_key in removed:
                self._refusals.count(peer.endpoint, "revoked", "its key is trusted no longer: we hang up")
                dial.link.rejected()

    def _on_refused(self, error: FrameError) -> None:
        self._refusals.count("a peer", error.reason, str(error))

    def _on_stranger(self, address: str, what: str) -> None:
        self._refusals.count(address, "unknown-key", f"{what} is not in trusted/")

    def _on_failed_handshake(self, event: int, value: int) -> None:
        if value != errno.EPIPE:  # it opened and closed without a byte, as a `ListenerProbe` does
            self._refusals.count("a connection", "handshake", f"{zmq.Event(event).name}, code {value}")


def _nothing() -> None:
    pass
