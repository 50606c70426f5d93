"""SimRouter and SimDealer: ZeroMQ's sockets on the simulated network.

A ROUTER listens, a DEALER dials it and dials again. Owns connecting (round trips, refusals, unanswered
attempts), admission by keys, routes, and how the death of a process, a reset or silence reaches the other
end. Control links (`network_wire`) and token streams (`network_carrier`) are both made of these.
"""

from __future__ import annotations

import enum
from asyncio import TimerHandle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from gleaner.sim.network_path import End, Flow, Path, Station
from gleaner.sim.network_pipe import Pipe
from gleaner.transport.keys import NodeKeys
from gleaner.transport.sockets import (
    HEARTBEAT_IVL_MS,
    HEARTBEAT_TIMEOUT_MS,
    RECONNECT_IVL_MAX_MS,
    RECONNECT_IVL_MS,
)
from gleaner.transport.wire import Peer, Route, Sent

if TYPE_CHECKING:
    from gleaner.sim.network import SimNet

HANDSHAKE_TRIPS = 2  # round trips until a connection carries messages: TCP's, then ZMTP's greeting
FIRST_AGAIN_S = 0.002  # a broken connection is probed after this time (`listener_probe`)
AGAIN_S = RECONNECT_IVL_MS / 1000
AGAIN_MAX_S = RECONNECT_IVL_MAX_MS / 1000
SILENT_AGAIN_S = 1.0  # an unanswered attempt: TCP's second SYN, after a second
# A dialler pings each second and gives up after three seconds without input. A listener waits for three
# seconds after the last ping, of which up to one had passed (`gleaner.transport.sockets`).
DIALLER_SILENCE_S = (HEARTBEAT_TIMEOUT_MS / 1000, (HEARTBEAT_TIMEOUT_MS + HEARTBEAT_IVL_MS) / 1000)
LISTENER_SILENCE_S = ((HEARTBEAT_TIMEOUT_MS - HEARTBEAT_IVL_MS) / 1000, HEARTBEAT_TIMEOUT_MS / 1000)

Frames = list[bytes]


class Dialling(enum.Enum):
    """Events of a dialler."""

    UP = "up"
    LOST = "lost"
    REFUSED = "refused"  # the host reports that the port has no listener; tried again
    REJECTED = "rejected"  # it does not admit us; not tried again


@dataclass(eq=False, slots=True)
class _Accepted:
    """A connection at its listener. One route has one at a time."""

    route: Route
    key: str
    into: Pipe[Frames]
    out: Pipe[Frames]


class SimRouter:
    """A listening socket. Nothing is read before `listen`.

    Args:
        hwm: messages that wait in each direction of a connection before its sender must wait.
        on_stranger: called for each peer that was not admitted.
    """

    def __init__(
        self,
        net: SimNet,
        station: Station,
        keys: NodeKeys | None,
        hwm: int,
        on_stranger: Callable[[str, str], None],
    ) -> None:
        self.station = station
        self.hwm = hwm
        self._net = net
        self._keys = keys
        self._on_stranger = on_stranger
        self._on_frames: Callable[[Route, Frames], None] | None = None
        self._accepted: dict[Route, _Accepted] = {}
        self._port = 0
        self._closed = False
        station.sockets[self] = None
        self._leave_keys = keys.allowed.subscribe(self._on_keys) if keys is not None else None

    def bind(self, bind: str) -> Peer:
        """Listen. Raises `CannotListen`."""
        endpoint, self._port = self._net.map.bind(self.station, bind, self)
        return Peer(endpoint, self._keys.public if self._keys is not None else "")

    def listen(self, on_frames: Callable[[Route, Frames], None]) -> None:
        """Read from now on."""
        self._on_frames = on_frames
        for accepted in list(self._accepted.values()):
            accepted.into.read_into(partial(on_frames, accepted.route))

    def send(self, route: Route, frames: Sequence[bytes]) -> Sent:
        """Send to the peer of that route."""
        accepted = self._accepted.get(route)
        if accepted is None:
            return Sent.NO_ROUTE
        return Sent.OK if _send(accepted.out, frames) else Sent.NO_CREDIT

    def admits(self, keys: NodeKeys | None, expected: str, address: str) -> bool:
        """Whether a peer with these keys, which expects that key of us, is admitted."""
        theirs = keys.public if keys is not None else ""
        ours = self._keys.public if self._keys is not None else ""
        if expected == ours and (self._keys is None) == (keys is None):
            if self._keys is None or self._keys.allowed.admits(theirs):
                return True
            self._on_stranger(address, f"CURVE key {theirs}")
        return False

    def accept(self, route: Route, key: str, into: Pipe[Frames], out: Pipe[Frames]) -> None:
        """A connection of a dialler; it takes the place of an older one under its route."""
        older = self._accepted.get(route)
        if older is not None:
            self._drop(older, End.RESET)
        accepted = _Accepted(route, key, into, out)
        self._accepted[route] = accepted
        into.on_end = lambda how: self._drop(accepted, how)
        if self._on_frames is not None:
            into.read_into(partial(self._on_frames, route))

    def close(self) -> None:
        """Stop listening and hang up."""
        if not self._closed:
            self._leave(End.CLOSED)
            if self._leave_keys is not None:
                self._leave_keys()

    def died(self) -> None:
        self._leave(self._net.death_of(self.station))

    def outs(self) -> list[Flow]:
        return [accepted.out for accepted in self._accepted.values()]

    def _leave(self, how: End) -> None:
        self._closed = True
        self.station.sockets.pop(self, None)
        self.station.host.listeners.pop(self._port, None)
        for accepted in list(self._accepted.values()):
            self._drop(accepted, how)

    def _drop(self, accepted: _Accepted, how: End) -> None:
        accepted.into.shut()
        accepted.out.end(how)
        if self._accepted.get(accepted.route) is accepted:
            del self._accepted[accepted.route]

    def _on_keys(self, _added: frozenset[str], removed: frozenset[str]) -> None:
        for accepted in list(self._accepted.values()):
            if accepted.key in removed:
                self._drop(accepted, End.RESET)


@dataclass(frozen=True, slots=True)
class DialSettings:
    """What a dialling socket dials, and under which identity.

    Args:
        peer: the listener.
        route: the name of this end at the listener.
        keys: of this end; None without encryption.
        hwm: messages that wait at each end of the connection.
    """

    peer: Peer
    route: Route
    keys: NodeKeys | None
    hwm: int


class SimDealer:
    """A dialling socket: connects again by itself until it is closed or rejected."""

    def __init__(
        self,
        net: SimNet,
        station: Station,
        dial: DialSettings,
        on_frames: Callable[[Frames], None],
        on_event: Callable[[Dialling], None],
    ) -> None:
        self._net = net
        self._station = station
        self._peer, self._route = dial.peer, dial.route
        self._keys, self._hwm = dial.keys, dial.hwm
        self._on_frames = on_frames
        self._on_event = on_event
        self._forth: Pipe[Frames] | None = None
        self._back: Pipe[Frames] | None = None
        self._pause_s = AGAIN_S
        self._timer: TimerHandle | None = None
        self._closed = False
        station.sockets[self] = None
        self._dial()

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send; False without a connection, or when too much waits on it."""
        return self._forth is not None and _send(self._forth, frames)

    def close(self) -> None:
        """Hang up and dial no more."""
        self._leave(End.CLOSED)

    def died(self) -> None:
        self._leave(self._net.death_of(self._station))

    def outs(self) -> list[Flow]:
        return [self._forth] if self._forth is not None else []

    def _leave(self, how: End) -> None:
        self._closed = True
        self._station.sockets.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        self._drop(how)

    def _drop(self, how: End) -> None:
        if self._forth is not None and self._back is not None:
            self._back.shut()
            self._forth.end(how)
            self._forth = self._back = None

    def _again(self, pause_s: float) -> None:
        self._timer = self._station.process.call_later(pause_s, self._dial)

    def _dial(self) -> None:
        """Begin an attempt; its result is known when its answer would arrive."""
        paths = self._net.map.paths_to(self._station, self._peer.endpoint)
        if paths is None:
            self._again(SILENT_AGAIN_S)
            return
        there, back = paths
        now_s = answered_s = self._station.process.time()
        for _ in range(HANDSHAKE_TRIPS):
            answered_s = back.message_s(there.message_s(answered_s, 0), 0)
        self._timer = self._station.process.call_later(answered_s - now_s, self._answered, there, back)

    def _answered(self, there: Path, back: Path) -> None:
        self._timer = None
        if there.blocked or back.blocked:
            self._again(SILENT_AGAIN_S)
            return
        router = self._net.map.listener(there.target, self._peer.endpoint)
        if there.jammed or back.jammed or router is None:
            self._again(self._pause_s)
            self._pause_s = min(2 * self._pause_s, AGAIN_MAX_S)
            if router is None:
                self._on_event(Dialling.REFUSED)
        elif not isinstance(router, SimRouter) or router.station.frozen:
            self._again(SILENT_AGAIN_S)  # the kernel takes the connection, but no process answers on it
        elif not router.admits(self._keys, self._peer.public_key, self._station.host.address):
            self._on_event(Dialling.REJECTED)
        else:
            self._connect(router, there, back)

    def _connect(self, router: SimRouter, there: Path, back: Path) -> None:
        here, hwm = self._station, self._hwm + router.hwm
        forth: Pipe[Frames] = self._net.pipe(there, here, router.station, hwm, LISTENER_SILENCE_S)
        answers: Pipe[Frames] = self._net.pipe(back, router.station, here, hwm, DIALLER_SILENCE_S)
        router.accept(self._route, self._keys.public if self._keys is not None else "", forth, answers)
        answers.on_end = self._lost
        answers.read_into(self._on_frames)
        self._forth, self._back = forth, answers
        self._pause_s = AGAIN_S
        self._on_event(Dialling.UP)

    def _lost(self, how: End) -> None:
        self._drop(how)
        self._again(FIRST_AGAIN_S)
        self._on_event(Dialling.LOST)


def _send(pipe: Pipe[Frames], frames: Sequence[bytes]) -> bool:
    if len(frames) == 1:  # as on every control link
        frame = frames[0]
        return pipe.send([frame], len(frame), xxh3_64_intdigest(frame))
    size_bytes = mark = 0
    for frame in frames:
        size_bytes += len(frame)
        mark = xxh3_64_intdigest(frame, mark)
    return pipe.send(list(frames), size_bytes, mark)
