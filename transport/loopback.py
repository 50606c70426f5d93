"""A wire within one process, for tests and for actors that share a loop.

Owns delivery between the `LoopbackWire`s of one `LoopbackNetwork`, with the promises of `wire.Wire` (the same
conformance tests run on both carriers). Knows no socket; bytes are handed over as they are.
"""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Sequence

from transport.link import DialledLink
from transport.refusal import FrameError, Refusals
from transport.wire import (
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

INBOX_FRAMES = 1000  # messages waiting at one wire; beyond it senders get NO_CREDIT
DRAIN_BUDGET = 256  # messages delivered in one turn of the loop


class LoopbackNetwork:
    """The place where loopback wires find each other by name."""

    def __init__(self, *, grace_s: float = GRACE_S, connect_deadline_s: float = CONNECT_DEADLINE_S) -> None:
        self.grace_s = grace_s
        self.connect_deadline_s = connect_deadline_s
        self._listening: dict[str, LoopbackWire] = {}  # by endpoint
        self._by_route: dict[Route, LoopbackWire] = {}
        self._opened = itertools.count(1)

    def wire(self, name: str) -> "LoopbackWire":
        """Open the wire of process `name`; a name in use is refused with ValueError."""
        wire = LoopbackWire(self, name, next(self._opened))
        if wire.local.endpoint in self._listening:
            raise ValueError(f"loopback wire {name!r} is open already: close it first")
        self._listening[wire.local.endpoint] = wire
        self._by_route[wire.route] = wire
        for other in self._by_route.values():
            other.reached(wire.local.endpoint)
        return wire

    def kill(self, name: str) -> None:
        """Take a wire away as a crash would: its peers learn it from their links."""
        wire = self._listening.get(f"loop://{name}")
        if wire is not None:
            wire.shut()

    def find(self, endpoint: str) -> "LoopbackWire | None":
        """The open wire at an endpoint."""
        return self._listening.get(endpoint)

    def follow(self, route: Route) -> "LoopbackWire | None":
        """The wire that a route leads to, if it is still the same one."""
        return self._by_route.get(route)

    def remove(self, wire: "LoopbackWire") -> None:
        """A wire closed: break every link to it."""
        self._listening.pop(wire.local.endpoint, None)
        self._by_route.pop(wire.route, None)
        for other in list(self._by_route.values()):
            other.lost(wire.local.endpoint)


class LoopbackWire:
    """`Wire` between objects of one process."""

    def __init__(self, network: LoopbackNetwork, name: str, number: int) -> None:
        self.route: Route = f"{name}#{number}".encode()
        self._network = network
        self._local = Peer(f"loop://{name}")
        self._refusals = Refusals(self._local.endpoint)
        self._links: dict[Peer, DialledLink] = {}
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

    def refuse(self, route: Route, reason: str, detail: str) -> None:
        self._refusals.count(route.decode(errors="replace"), reason, detail)

    def send(self, to: Peer | Route, frames: Sequence[bytes]) -> Sent:
        check_frames(frames)
        if self._closed:
            return Sent.NO_ROUTE
        if isinstance(to, Peer):
            link = self._links.get(to) or self._dial(to)
            return link.send(frames)
        target = self._network.follow(to)
        if target is None:
            return Sent.NO_ROUTE
        return Sent.OK if target.deliver(self.route, frames) else Sent.NO_CREDIT

    def listen(self, on_frames: OnFrames, on_link: OnLink) -> None:
        self._on_frames = on_frames
        self._on_link = on_link
        self._schedule()

    def forget(self, peer: Peer) -> None:
        link = self._links.pop(peer, None)
        if link is not None:
            link.close()

    async def close(self) -> None:
        self.shut()

    def shut(self) -> None:
        """Close without ceremony."""
        if self._closed:
            return
        self._closed = True
        for peer in list(self._links):
            self.forget(peer)
        self._inbox.clear()
        self._network.remove(self)

    def deliver(self, route: Route, frames: Sequence[bytes]) -> bool:
        """Take a message from another wire; False when the inbox is full or the wire closed."""
        if self._closed or len(self._inbox) >= INBOX_FRAMES:
            return False
        self._inbox.append((route, [bytes(frame) for frame in frames]))
        self._schedule()
        return True

    def reached(self, endpoint: str) -> None:
        """Somebody opened `endpoint`: links that wait for it are up from the next turn on."""
        for peer, link in self._links.items():
            if peer.endpoint == endpoint:
                asyncio.get_running_loop().call_soon(link.up)

    def lost(self, endpoint: str) -> None:
        """The wire at `endpoint` is gone."""
        for peer, link in list(self._links.items()):
            if peer.endpoint == endpoint:
                link.lost()

    def _dial(self, peer: Peer) -> DialledLink:
        link = DialledLink(
            peer,
            lambda frames: self._transmit(peer, frames),
            self._tell_link,
            lambda: self.forget(peer),
            grace_s=self._network.grace_s,
            connect_deadline_s=self._network.connect_deadline_s,
        )
        self._links[peer] = link
        if self._network.find(peer.endpoint) is not None:
            asyncio.get_running_loop().call_soon(self._answered, peer, link)
        return link

    def _answered(self, peer: Peer, link: DialledLink) -> None:
        if self._network.find(peer.endpoint) is not None:  # it may have closed since it was dialled
            link.up()

    def _transmit(self, peer: Peer, frames: Sequence[bytes]) -> bool:
        target = self._network.find(peer.endpoint)
        return target is not None and target.deliver(self.route, frames)

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
