"""SimWire: `gleaner.transport.wire.Wire` on the simulated network, like the ZeroMQ mesh.

Owns the dialled peers of one process and the way back by route. The state of a link is production's own
(`gleaner.transport.link.DialledLink`); `network_stream` has connecting, losing and silence.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gleaner.sim.network_path import Station
from gleaner.sim.network_stream import Dialling, DialSettings, SimDealer, SimRouter
from gleaner.transport.endpoint import endpoint
from gleaner.transport.keys import NodeKeys
from gleaner.transport.link import DialledLink
from gleaner.transport.mesh import DIAL_ROUTE, MAX_PARTS, MAX_PEERS
from gleaner.transport.refusal import FrameError, Refusals, WrongParts
from gleaner.transport.rejections import Rejections
from gleaner.transport.wire import Link, LinkTimes, OnFrames, OnLink, Peer, Route, Sent, check_frames
from gleaner.transport.zap import ROUTING_MARK

if TYPE_CHECKING:
    from gleaner.sim.network import SimNet

HWM = 1000  # messages that wait at each end of a connection (`gleaner.transport.sockets`)


class CannotDial(ValueError):
    """An address or a key with which no connection is possible."""


@dataclass(frozen=True, slots=True)
class _Dial:
    link: DialledLink
    dealer: SimDealer
    back: Route  # the route that the dialler sees


class SimWire:
    """`Wire` of one simulated process. Made by `SimNet.wire`, on that process's loop or before it runs."""

    def __init__(
        self,
        net: SimNet,
        station: Station,
        name: str,
        bind: str,
        keys: NodeKeys | None,
        times: LinkTimes,
    ) -> None:
        self._net = net
        self._station = station
        self._name = name
        self._keys = keys
        self._times = times
        self._refusals = Refusals(name)
        self._rejections = Rejections(random.Random(name).random)
        self._router = SimRouter(net, station, keys, HWM, self._on_stranger)
        self._local = self._router.bind(bind)
        self._dials: dict[Peer, _Dial] = {}
        self._by_route: dict[Route, _Dial] = {}
        self._numbers = 0
        self._on_frames: OnFrames | None = None
        self._on_link: OnLink | None = None
        self._closed = False
        self._leave_keys = keys.allowed.subscribe(self._on_keys) if keys is not None else None

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
        peer = self.peer_of(route)
        source = peer.endpoint if peer is not None else route.decode(errors="replace")
        self._refusals.count(source, reason, detail)

    def send(self, to: Peer | Route, frames: Sequence[bytes]) -> Sent:
        check_frames(frames)
        if self._closed:
            return Sent.NO_ROUTE
        if isinstance(to, Peer):
            dial = self._dials.get(to)
            if dial is None:
                loop = asyncio.get_running_loop()
                if self._rejections.holds_back(to, loop.time()):
                    loop.call_soon(self._tell_link, to, Link.REJECTED)
                    return Sent.OK
                dial = self._dial(to)
        elif to.startswith(DIAL_ROUTE):
            dial = self._by_route.get(to)
        else:
            return self._router.send(to, frames) if self._on_frames is not None else Sent.NO_ROUTE
        return dial.link.send(frames) if dial is not None else Sent.NO_ROUTE

    def listen(self, on_frames: OnFrames, on_link: OnLink) -> None:
        self._on_frames = on_frames
        self._on_link = on_link
        self._router.listen(self._deliver)

    def forget(self, peer: Peer) -> None:
        dial = self._dials.pop(peer, None)
        if dial is not None:
            del self._by_route[dial.back]
            dial.link.close()
            dial.dealer.close()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for peer in list(self._dials):
            self.forget(peer)
        self._router.close()
        if self._leave_keys is not None:
            self._leave_keys()

    def _deliver(self, route: Route, frames: list[bytes]) -> None:
        if self._on_frames is None:
            return
        try:
            if len(frames) > MAX_PARTS:
                raise WrongParts(f"{len(frames)} frames, expected 1 to {MAX_PARTS}")
            self._on_frames(route, frames)
        except FrameError as error:
            self.refuse(route, error.reason, str(error))

    def _dial(self, peer: Peer) -> _Dial | None:
        try:
            if len(self._dials) >= MAX_PEERS:
                raise CannotDial(f"{MAX_PEERS} peers are dialled already: forget some")
            check_peer(peer, self._keys)
        except ValueError as error:
            self._refusals.count(peer.endpoint, "cannot-dial", str(error))
            return None
        self._numbers += 1
        back = DIAL_ROUTE + b"%d" % self._numbers
        link = DialledLink(
            peer,
            lambda frames: dealer.send(frames),
            self._tell_link,
            lambda: self.forget(peer),
            grace_s=self._times.grace_s,
            connect_deadline_s=self._times.connect_deadline_s,
        )
        dealer = SimDealer(
            self._net,
            self._station,
            DialSettings(peer, routing_id(self._net, self._name, self._keys), self._keys, HWM),
            lambda frames: self._deliver(back, frames),
            lambda event: self._happened(link, event),
        )
        dial = self._dials[peer] = self._by_route[back] = _Dial(link, dealer, back)
        return dial

    def _happened(self, link: DialledLink, event: Dialling) -> None:
        if event is Dialling.UP:
            self._rejections.admitted(link.peer)
            link.up()
        elif event is Dialling.LOST:
            link.lost()
        elif event is Dialling.REFUSED:
            link.no_listener()
        else:
            self._rejections.rejected(link.peer, asyncio.get_running_loop().time())
            self._refusals.count(link.peer.endpoint, "rejected", "it does not admit us")
            link.rejected()

    def _tell_link(self, peer: Peer, state: Link) -> None:
        if self._on_link is not None and not self._closed:
            self._on_link(peer, state)

    def _on_keys(self, _added: frozenset[str], removed: frozenset[str]) -> None:
        self._rejections.forget()
        for peer, dial in list(self._dials.items()):  # a callback of this loop may forget other peers
            if peer.public_key in removed:
                self._refusals.count(peer.endpoint, "revoked", "its key is trusted no longer: we hang up")
                dial.link.rejected()

    def _on_stranger(self, address: str, what: str) -> None:
        self._refusals.count(address, "unknown-key", f"{what} is not in trusted/")


def check_peer(peer: Peer, keys: NodeKeys | None) -> None:
    """The first checks of a dialling socket (`gleaner.transport.sockets.open_dealer`). Raises ValueError."""
    endpoint(peer.endpoint)
    if (keys is None) != (peer.public_key == ""):
        ours, theirs = ("none", "one") if keys is None else ("one", "none")
        raise CannotDial(
            f"{peer.endpoint}: this process has {ours} CURVE key and the peer's address {theirs}"
        )
    if keys is not None and not keys.allowed.may_dial(peer.public_key):
        raise CannotDial(f"{peer.endpoint}: its key was revoked here")


def routing_id(net: SimNet, name: str, keys: NodeKeys | None) -> Route:
    """A unique routing id, of production's form (`gleaner.transport.zap.owned_routing_id`)."""
    owner = keys.public if keys is not None else ""
    return ROUTING_MARK + f"{name}#{net.next_number()}#{owner}".encode()
