"""LoopbackWire: a wire within one process, for tests and actors that share a loop.

Owns delivery between the `LoopbackWire`s of one `LoopbackNetwork`, with the promises of `wire.Wire` (the same
conformance tests run on both carriers). Knows no socket; bytes are passed on as they are.
"""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from gleaner.transport.link import DialledLink
from gleaner.transport.refusal import FrameError, Refusals
from gleaner.transport.wire import (
    CONNECT_DEADLINE_S,
    GRACE_S,
    Link,
    OnFrames,
    OnLink,
    Peer,
    Route,
    Sent,
    check_frames,
)

DIAL_ROUTE = b"\0dial#"  # route prefix of replies on a dialled link; no name begins so
INBOX_FRAMES = 1000  # messages waiting at one wire; beyond it senders get NO_CREDIT
DRAIN_BUDGET = 256  # messages delivered in one turn of the loop


@dataclass(frozen=True, slots=True)
class _Dial:
    link: DialledLink
    forth: Route  # the route that the listener sees
    back: Route  # the route that the dialler sees


class LoopbackNetwork:
    """The place where loopback wires find each other by name."""

    def __init__(self, *, grace_s: float = GRACE_S, connect_deadline_s: float = CONNECT_DEADLINE_S) -> None:
        self.grace_s = grace_s
        self.connect_deadline_s = connect_deadline_s
        self.numbers = itertools.count(1)  # of diallings
        self._wires: dict[str, LoopbackWire] = {}  # open ones by endpoint
        self._diallers: dict[Route, LoopbackWire] = {}  # by forth route
        self._cut: set[str] = set()  # endpoints that cannot be reached now

    def wire(self, name: str) -> "LoopbackWire":
        """Open the wire of process `name`; a name in use is refused with ValueError."""
        wire = LoopbackWire(self, name)
        if wire.local.endpoint in self._wires:
            raise ValueError(f"loopback wire {name!r} is open already: close it first")
        self._wires[wire.local.endpoint] = wire
        self._reached(wire.local.endpoint)
        return wire

    def kill(self, name: str) -> None:
        """Take a wire away as a crash would: its peers learn it from their links."""
        wire = self._wires.get(f"loop://{name}")
        if wire is not None:
            wire.shut()

    def cut(self, name: str) -> None:
        """Break every connection that leads to `name` and let none be made, as a partition would."""
        self._cut.add(f"loop://{name}")
        self._lost(f"loop://{name}")

    def mend(self, name: str) -> None:
        """End a cut."""
        self._cut.discard(f"loop://{name}")
        if f"loop://{name}" in self._wires:
            self._reached(f"loop://{name}")

    def find(self, endpoint: str) -> "LoopbackWire | None":
        """The wire that can be reached at an endpoint."""
        return self._wires.get(endpoint) if endpoint not in self._cut else None

    def listens(self, endpoint: str) -> bool:
        """Whether the endpoint has a listener, or might have one behind a cut."""
        return endpoint in self._wires or endpoint in self._cut

    def dialler(self, route: Route) -> "LoopbackWire | None":
        """The wire that dialled under this route, while it keeps that link."""
        return self._diallers.get(route)

    def dialled(self, route: Route, wire: "LoopbackWire") -> None:
        """A wire began to dial under `route`."""
        self._diallers[route] = wire

    def hung_up(self, route: Route) -> None:
        """The dialler closed the link."""
        self._diallers.pop(route, None)

    def remove(self, wire: "LoopbackWire") -> None:
        """A wire closed: break every link to it."""
        self._wires.pop(wire.local.endpoint, None)
        self._lost(wire.local.endpoint)

    def _reached(self, endpoint: str) -> None:
        for other in list(self._wires.values()):
            other.reached(endpoint)

    def _lost(self, endpoint: str) -> None:
        for other in list(self._wires.values()):
            other.lost(endpoint)


class LoopbackWire:
    """`Wire` between objects of one process."""

    def __init__(self, network: LoopbackNetwork, name: str) -> None:
        self._network = network
        self._name = name
        self._local = Peer(f"loop://{name}")
        self._refusals = Refusals(self._local.endpoint)
        self._dials: dict[Peer, _Dial] = {}
        self._by_back: dict[Route, Peer] = {}
        self._inbox: deque[tuple[Route, list[bytes]]] = deque()
        self._on_frames: OnFrames | None = None
        self._on_link: OnLink | None = None
        self._draining = False
        self._closed = False

    @property
    def local(self) -> Peer:
        return self._local

    @property
    def refused(self) -> Counter[str]:
        return self._refusals.by_reason

    def peer_of(self, route: Route) -> Peer | None:
        return self._by_back.get(route)

    def refuse(self, route: Route, reason: str, detail: str) -> None:
        peer = self._by_back.get(route)
        source = peer.endpoint if peer is not None else route.decode(errors="replace")
        self._refusals.count(source, reason, detail)

    def send(self, to: Peer | Route, frames: Sequence[bytes]) -> Sent:
        check_frames(frames)
        if self._closed:
            return Sent.NO_ROUTE
        if isinstance(to, Peer):
            return (self._dials.get(to) or self._dial(to)).link.send(frames)
        if to.startswith(DIAL_ROUTE):
            peer = self._by_back.get(to)
            return self._dials[peer].link.send(frames) if peer is not None else Sent.NO_ROUTE
        dialler = self._network.dialler(to)
        if dialler is None or self._network.find(self._local.endpoint) is None:
            return Sent.NO_ROUTE
        return Sent.OK if dialler.answer(to, frames) else Sent.NO_CREDIT

    def listen(self, on_frames: OnFrames, on_link: OnLink) -> None:
        self._on_frames = on_frames
        self._on_link = on_link
        self._schedule()

    def forget(self, peer: Peer) -> None:
        dial = self._dials.pop(peer, None)
        if dial is not None:
            del self._by_back[dial.back]
            self._network.hung_up(dial.forth)
            dial.link.close()

    async def close(self) -> None:
        self.shut()

    def shut(self) -> None:
        """Close without ceremony."""
        if self._closed:
            return
        self._closed = True
        for peer in list(self._dials):
            self.forget(peer)
        self._inbox.clear()
        self._network.remove(self)

    def deliver(self, route: Route, frames: Sequence[bytes]) -> bool:
        """Take a message that bears `route`; False when the inbox is full or the wire closed."""
        if self._closed or len(self._inbox) >= INBOX_FRAMES:
            return False
        self._inbox.append((route, [bytes(frame) for frame in frames]))
        self._schedule()
        return True

    def answer(self, forth: Route, frames: Sequence[bytes]) -> bool:
        """Take a reply on the link dialled under `forth`."""
        return any(dial.forth == forth and self.deliver(dial.back, frames) for dial in self._dials.values())

    def reached(self, endpoint: str) -> None:
        """`endpoint` was opened: links that wait for it are up from the next turn on."""
        for peer, dial in self._dials.items():
            if peer.endpoint == endpoint:
                asyncio.get_running_loop().call_soon(self._answered, peer, dial.link)

    def lost(self, endpoint: str) -> None:
        """The wire at `endpoint` is gone."""
        for peer, dial in list(self._dials.items()):
            if peer.endpoint == endpoint:
                dial.link.lost()
                if not self._network.listens(endpoint):
                    dial.link.no_listener()

    def _dial(self, peer: Peer) -> _Dial:
        number = b"%d" % next(self._network.numbers)
        link = DialledLink(
            peer,
            lambda frames: self._transmit(peer, frames),
            self._tell_link,
            lambda: self.forget(peer),
            grace_s=self._network.grace_s,
            connect_deadline_s=self._network.connect_deadline_s,
        )
        dial = _Dial(link, self._name.encode() + b"#" + number, DIAL_ROUTE + number)
        self._dials[peer] = dial
        self._by_back[dial.back] = peer
        self._network.dialled(dial.forth, self)
        if self._network.find(peer.endpoint) is not None:
            asyncio.get_running_loop().call_soon(self._answered, peer, link)
        return dial

    def _answered(self, peer: Peer, link: DialledLink) -> None:
        if self._network.find(peer.endpoint) is not None:  # it may have closed since it was dialled
            link.up()

    def _transmit(self, peer: Peer, frames: Sequence[bytes]) -> bool:
        target = self._network.find(peer.endpoint)
        return target is not None and target.deliver(self._dials[peer].forth, frames)

    def _tell_link(self, peer: Peer, state: Link) -> None:
        if self._on_link is not None:
            self._on_link(peer, state)

    def _schedule(self) -> None:
        if self._inbox and self._on_frames is not None and not self._draining and not self._closed:
            self._draining = True
            asyncio.get_running_loop().call_soon(self._drain)

    def _drain(self) -> None:
        self._draining = False
        try:
            for _ in range(DRAIN_BUDGET):
                if not self._inbox or self._on_frames is None:
                    return
                route, frames = self._inbox.popleft()
                try:
                    self._on_frames(route, frames)
                except FrameError as error:
                    self.refuse(route, error.reason, str(error))
        finally:
            self._schedule()  # also after an exception of the callback, which the loop reports
