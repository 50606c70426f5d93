"""A version of the weights on its way to many receivers, chunk by chunk, on modelled cards and links.

Owns the time. Each receiver has one connection, to its parent, that carries one chunk after the other; cards
are full duplex, and whoever shares a card or a link between sites gets its max-min share. Who pulls from whom
says `actors.weights.relay.Wave`, the code that a tracker runs. A chunk can be served `hop_s` after it came:
by then it is hashed, and the request for it waits already. Left out: slow start, incast, processors.
Deterministic.
"""

import heapq
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from actors.weights.relay import Wave
from bench.weights.max_min import max_min
from bench.weights.wave_world import ORIGIN, Event, Outcome, World

SAME_S = 1e-9
ROUNDING_BYTES = 1.0
LONGEST_S = 600.0  # a wave that takes longer stands still


class StandsStill(RuntimeError):
    """Receivers wait for ever: a defect of the policy."""


class Star(Wave):
    """Everybody pulls from the origin, whatever else there is: what relays are compared with."""

    def ask(self, name: str, now_s: float, *, exclude: Collection[str] = (), current: str = "") -> str | None:
        """The origin."""
        return ORIGIN

    def settle(self, now_s: float) -> dict[str, str | None]:
        """Nobody waits."""
        return {}


@dataclass(slots=True, eq=False)
class _Host:
    name: str
    rate_bytes_s: float
    site: str
    began_s: float
    has: bytearray  # one byte a chunk
    held_bytes: int = 0
    order: list[int] = field(default_factory=list)  # chunks, as they came
    ready: int = 0  # so many of them can be served
    parent: "_Host | None" = None
    seen: int = 0  # so many of the parent's `order` are here
    chunk: int = -1  # under way; -1: none
    left_bytes: float = 0.0
    bytes_s: float = 0.0
    lies: bool = False
    alive: bool = True


def spread(world: World, events: Sequence[Event]) -> Outcome:
    """Let a version spread until every receiver that joins, and lives, has it. Raises StandsStill."""
    return _Model(world, events).run()


class _Model:
    def __init__(self, world: World, events: Sequence[Event]) -> None:
        self._world = world
        self._outcome = Outcome()
        self._wave = (Star if world.star else Wave)(
            world.payload_bytes,
            chunk_bytes=world.chunk_bytes,
            crossing_bytes_s=world.known_crossing_bytes_s,
        )
        self._now_s = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._hosts: dict[str, _Host] = {}
        self._flowing: frozenset[tuple[str, str]] = frozenset()
        self._wanted = {event.name for event in events if event.kind == "join"}
        origin = self._add(ORIGIN, world.origin_bytes_s, "")
        origin.has, origin.held_bytes = bytearray(b"\1" * world.chunks), world.payload_bytes
        origin.order, origin.ready = list(range(world.chunks)), world.chunks
        rate = world.origin_bytes_s
        self._wave.join(ORIGIN, up_bytes_s=rate, down_bytes_s=rate, origin=True)
        for event in events:
            self._at(event.at_s, partial(self._happen, event))
        self._at(world.report_s, self._report)

    def run(self) -> Outcome:
        """See `spread`."""
        while missing := self._wanted - self._outcome.done_s.keys():
            if self._now_s > LONGEST_S:
                raise StandsStill(f"after {LONGEST_S} s {sorted(missing)} wait")
            self._step()
        return self._outcome

    def _step(self) -> None:
        pulling = [host for host in self._hosts.values() if host.chunk >= 0]
        ends = [host.left_bytes / host.bytes_s for host in pulling]
        until_s = min([self._agenda[0][0], *(self._now_s + took_s for took_s in ends)])
        passed_s, self._now_s = until_s - self._now_s, until_s
        for host in pulling:
            host.left_bytes -= host.bytes_s * passed_s
        for host in pulling:
            if host.left_bytes <= ROUNDING_BYTES:
                self._landed(host)
        while self._agenda[0][0] <= self._now_s + SAME_S:
            heapq.heappop(self._agenda)[2]()
        self._start_chunks()

    def _at(self, at_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at_s, next(self._numbers), do))

    def _after(self, wait_s: float, do: Callable[[], None]) -> None:
        self._at(self._now_s + wait_s, do)

    def _add(self, name: str, rate_bytes_s: float, site: str) -> _Host:
        host = _Host(name, rate_bytes_s, site, self._now_s, bytearray(self._world.chunks))
        self._hosts[name] = host
        return host

    def _happen(self, event: Event) -> None:
        name, world = event.name, self._world
        if event.kind == "join":
            self._add(name, event.rate_bytes_s, event.site)
            self._outcome.curves[name] = [(self._now_s, 0.0)]
            rate = event.rate_bytes_s
            self._wave.join(name, up_bytes_s=rate, down_bytes_s=rate, site=event.site)
            self._after(world.ask_s, lambda: self._ask(name))
        elif event.kind == "lie":
            self._hosts[name].lies = True
        elif event.kind == "drain":
            self._wave.drain(name)
            self._settle()
            self._after(world.drain_s, lambda: self._die(name, world.broken_s))
        else:
            self._die(name, world.broken_s if event.kind == "kill" else world.silent_s)

    def _die(self, name: str, noticed_s: float) -> None:
        """It stops now. Who pulled from it notices a little later and asks for another; the tracker later."""
        host = self._hosts.pop(name)
        host.alive = False
        self._wanted.discard(name)
        host.chunk = -1
        for child in self._hosts.values():
            if child.parent is host:
                self._drop(child)

        def notice(child: _Host) -> None:
            if child.parent is host and child.alive:
                self._ask(child.name, [name])

        def lose() -> None:
            self._wave.lose(name)
            self._settle()

        for child in [child for child in self._hosts.values() if child.parent is host]:
            self._after(noticed_s, partial(notice, child))
        self._after(self._world.dead_s, lose)

    def _ask(self, name: str, exclude: Collection[str] = ()) -> None:
        parent = self._wave.ask(name, self._now_s, exclude=exclude)
        if parent is not None:
            self._attach(name, parent)
        self._settle()

    def _settle(self) -> None:
        for name, parent in self._wave.settle(self._now_s).items():
            self._after(self._world.ask_s, partial(self._attach, name, parent))

    def _attach(self, name: str, parent: str | None) -> None:
        host, other = self._hosts.get(name), self._hosts.get(parent or "")
        if host is None or other is host.parent:
            return
        self._drop(host)
        host.parent, host.seen = other, 0
        if other is not None:
            self._outcome.edges.append((self._now_s, name, other.name))

    def _drop(self, host: _Host) -> None:
        """What is under way to it is lost: less than a chunk, as a connection carries one after the other."""
        if host.chunk >= 0:
            self._outcome.wasted_bytes += int(self._world.bytes_of(host.chunk) - host.left_bytes)
        host.chunk = -1

    def _start_chunks(self) -> None:
        for host in self._hosts.values():
            parent = host.parent
            if parent is None or host.chunk >= 0 or not parent.alive:
                continue
            while host.seen < parent.ready and host.has[parent.order[host.seen]]:
                host.seen += 1
            if host.seen < parent.ready:
                host.chunk = parent.order[host.seen]
                host.left_bytes = float(self._world.bytes_of(host.chunk))
        self._share()

    def _share(self) -> None:
        """New rates, where others flow than before."""
        pulling = [(host, host.parent) for host in self._hosts.values() if host.chunk >= 0 and host.parent]
        flowing = frozenset((host.name, parent.name) for host, parent in pulling)
        if flowing != self._flowing:
            self._flowing = flowing
            needs: dict[str, list[tuple[str, str]]] = {}
            capacity: dict[tuple[str, str], float] = {}
            for host, parent in pulling:
                needs[host.name] = [("up", parent.name), ("down", host.name)]
                capacity["up", parent.name] = parent.rate_bytes_s
                capacity["down", host.name] = host.rate_bytes_s
                if parent.site != host.site:
                    needs[host.name].append((parent.site, host.site))
                    capacity[parent.site, host.site] = self._world.crossing_bytes_s
            for name, rate in max_min(needs, capacity).items():
                self._hosts[name].bytes_s = rate

    def _landed(self, host: _Host) -> None:
        parent, chunk = host.parent, host.chunk
        if parent is None:
            raise AssertionError(f"{host.name} pulls from nobody")
        nbytes = self._world.bytes_of(chunk)
        host.chunk = -1
        self._outcome.served_bytes[parent.name] += nbytes
        if parent.site != host.site:
            self._outcome.crossed_bytes[host.site] += nbytes
        if parent.lies:
            self._outcome.wasted_bytes += nbytes
            host.parent = None
            self._wave.lied(parent.name, host.name)
            self._settle()
            return
        host.has[chunk] = 1
        host.held_bytes += nbytes
        host.order.append(chunk)
        self._after(self._world.hop_s, lambda: self._can_serve(host))
        if len(host.order) == self._world.chunks:
            self._outcome.done_s[host.name] = self._now_s
            self._outcome.took_s[host.name] = self._now_s - host.began_s
            self._outcome.curves[host.name].append((self._now_s, 1.0))
            host.parent = None
            self._wave.progress(host.name, host.held_bytes, self._now_s)
            self._settle()

    def _can_serve(self, host: _Host) -> None:
        host.ready += 1

    def _report(self) -> None:
        """Receivers tell the tracker what they have."""
        for host in self._hosts.values():
            if host.name in self._outcome.done_s or host.name == ORIGIN:
                continue
            self._outcome.curves[host.name].append((self._now_s, host.held_bytes / self._world.payload_bytes))
            self._wave.progress(host.name, host.held_bytes, self._now_s)
        self._settle()
        self._after(self._world.report_s, self._report)
