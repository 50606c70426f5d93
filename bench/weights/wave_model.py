"""Wave: a weight version on its way to many receivers, chunk by chunk, modelled.

Cards and links are modelled. Owns the time. Each receiver has one connection, to its parent, that carries one
chunk after the other; cards are full duplex, and flows that share a card or a link between sites get their
max-min share. `gleaner.actors.weights.transfer.relay.Wave`, the code that the publisher's agent runs, chooses
the parents; receivers ask it when those of production do (`actors/weights/transfer/fetch.py`). A chunk can be
served `hop_s` after its arrival: by then it is hashed, and the request for it waits already. Left out: slow
start, incast, processors. Deterministic.
"""

import heapq
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from bench.weights.max_min import max_min
from bench.weights.wave_world import ORIGIN, Event, Outcome, World
from gleaner.actors.weights.transfer.relay import NotInWave, Wave

SAME_S = 1e-9
ROUNDING_BYTES = 1.0
LONGEST_S = 600.0  # a wave that takes longer makes no progress


class StandsStill(RuntimeError):
    """Receivers wait for ever: a defect of the policy."""


class Star(Wave):
    """All receivers pull from the origin, whatever other sources exist: the reference for relays."""

    def ask(self, name: str, now_s: float, *, exclude: Collection[str] = (), current: str = "") -> str | None:
        """The origin."""
        return ORIGIN


@dataclass(slots=True, eq=False)
class _Host:
    name: str
    rate_bytes_s: float
    site: str
    began_s: float
    has: bytearray  # one byte a chunk
    held_bytes: int = 0
    order: list[int] = field(default_factory=list)  # chunks, in order of arrival
    ready: int = 0  # so many of them can be served
    parent: "_Host | None" = None
    seen: int = 0  # so many of the parent's `order` are here
    chunk: int = -1  # under way; -1: none
    left_bytes: float = 0.0
    bytes_s: float = 0.0
    sends_bad_bytes: bool = False
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
        )
        self._now_s = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._hosts: dict[str, _Host] = {}
        self._silent: set[str] = set()
        self._leaving: set[str] = set()
        self._flowing: frozenset[tuple[str, str]] = frozenset()
        self._wanted = {event.name for event in events if event.kind == "join"}
        origin = self._add(ORIGIN, world.origin_bytes_s, "")
        origin.has, origin.held_bytes = bytearray(b"\1" * world.chunks), world.payload_bytes
        origin.order, origin.ready = list(range(world.chunks)), world.chunks
        rate = world.origin_bytes_s
        self._wave.join(ORIGIN, up_bytes_s=rate, down_bytes_s=rate, origin=True)
        for event in events:
            self._at(event.at_s, partial(self._happen, event))
        self._at(world.sample_s, self._sample)

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
            self._after(world.ask_s, partial(self._ask, name))
        elif event.kind == "lie":
            self._hosts[name].sends_bad_bytes = True
        elif event.kind == "drain":
            self._wave.drain(name)
            self._leaving.add(name)
            self._after(world.drain_s, partial(self._die, name, world.broken_s, world.known_s))
        elif event.kind == "kill":
            self._die(name, world.broken_s, world.known_s)
        else:
            self._silent.add(name)
            self._die(name, world.silent_s, world.dead_s)

    def _die(self, name: str, noticed_s: float, known_s: float) -> None:
        """The receiver stops now. Its children notice a little later, the tracker at its own time."""
        host = self._hosts.pop(name)
        host.alive = False
        self._wanted.discard(name)
        host.chunk = -1

        def notice(child: _Host) -> None:
            if child.parent is host:
                self._failed(child)

        for child in [child for child in self._hosts.values() if child.parent is host]:
            self._drop(child)
            self._after(noticed_s, partial(notice, child))
        self._after(known_s, partial(self._wave.lose, name))

    def _failed(self, host: _Host) -> None:
        """The receiver leaves its parent, and asks for another one after a pause."""
        assert host.parent is not None
        failed, host.parent = host.parent.name, None
        self._drop(host)
        self._after(self._world.retry_s, partial(self._find, host.name, (failed,)))

    def _ask(self, name: str, had_bytes: int = -1) -> None:
        """Now and at every turn, until it has everything; sooner where no chunk arrived since the last
        one."""
        host = self._hosts.get(name)
        if host is not None and name not in self._outcome.done_s:
            got_on = host.held_bytes > had_bytes
            self._find(name)
            wait_s = self._world.ask_again_s if got_on else self._world.ask_soon_s
            self._after(wait_s, partial(self._ask, name, host.held_bytes))

    def _find(self, name: str, exclude: Collection[str] = ()) -> None:
        """Report its chunks to the tracker, and follow the reply. Where the reply names no parent, it keeps
        its own."""
        host = self._hosts.get(name)
        if host is None:
            return
        try:
            self._wave.progress(name, host.held_bytes, self._now_s)
        except NotInWave:
            rate = host.rate_bytes_s
            self._wave.join(name, up_bytes_s=rate, down_bytes_s=rate, site=host.site)
        current = host.parent.name if host.parent else ""
        parent = self._wave.ask(name, self._now_s, exclude=exclude, current=current)
        if parent is not None:
            self._attach(host, parent)
        elif name in self._leaving and self._wave.parent_of(name) is None:  # no receiver needs its chunks
            self._drop(host)
            host.parent = None

    def _attach(self, host: _Host, parent: str) -> None:
        other = self._hosts.get(parent)
        if other is None:  # dead, and the tracker does not know it yet
            wait_s = self._world.offer_s if parent in self._silent else self._world.retry_s
            self._after(wait_s, partial(self._find, host.name, (parent,)))
        elif other is not host.parent:
            self._drop(host)
            host.parent, host.seen = other, 0
            self._outcome.edges.append((self._now_s, host.name, other.name))

    def _drop(self, host: _Host) -> None:
        """The chunk in flight to it is lost: one at most, as a connection carries one after the other."""
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
        """New rates, where the flows have changed."""
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
            raise AssertionError(f"{host.name} pulls from no source")
        nbytes = self._world.bytes_of(chunk)
        host.chunk = -1
        self._outcome.served_bytes[parent.name] += nbytes
        if parent.site != host.site:
            self._outcome.crossed_bytes[host.site] += nbytes
        if parent.sends_bad_bytes:
            self._outcome.wasted_bytes += nbytes
            self._wave.lied(parent.name, host.name)
            self._failed(host)
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

    def _can_serve(self, host: _Host) -> None:
        host.ready += 1

    def _sample(self) -> None:
        for name, host in self._hosts.items():
            if name not in self._outcome.done_s and name != ORIGIN:
                share = host.held_bytes / self._world.payload_bytes
                self._outcome.curves[name].append((self._now_s, share))
        self._after(self._world.sample_s, self._sample)
