"""SimNet: hosts with addresses, the paths between them, and network faults.

Owns the processes on it and the faults: partitions (each direction for itself), resets, jams, the death of
processes and hosts. `wire` and `carrier` give a process the ports that production has. Delays are drawn from
one generator for each path: the same seed gives the same network.

Modules: `network_map` (addresses, ports), `network_path` (times), `network_pipe` (one direction of a
connection), `network_stream` (ZeroMQ's sockets), `network_tcp` (bulk), `network_wire` and `network_carrier`
(the ports of `transport`).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import TypeVar

from gleaner.sim.loop import SimLoop
from gleaner.sim.network_carrier import SimCarrier
from gleaner.sim.network_map import NetMap
from gleaner.sim.network_path import End, Path, Profile, Station
from gleaner.sim.network_pipe import Direction, Notes, Pipe, Silence
from gleaner.sim.network_wire import SimWire
from gleaner.sim.process_loop import ProcessLoop
from gleaner.transport.keys import NodeKeys
from gleaner.transport.wire import LINK_TIMES, LinkTimes

T = TypeVar("T")

ABRUPT = 0.5  # share of killed processes whose kernel resets a connection instead of closing it in order

Files = Callable[[FilePath | str], bytes | memoryview]
"""The source of a process's published files."""


class SimNet:
    """See the module.

    Args:
        loop: whose time it is; the loops of the processes share it.
        rng: the seed of everything that is drawn here.
        trace: gets a note of everything that happens here.
        profile: of every path between two hosts that `set_link` does not name.
    """

    def __init__(
        self,
        loop: SimLoop | asyncio.AbstractEventLoop,
        rng: random.Random,
        trace: Notes | None = None,
        *,
        profile: Profile | None = None,
    ) -> None:
        self._world = loop.world if isinstance(loop, SimLoop) else loop
        self.trace = trace
        self.counts: Counter[str] = Counter()
        """Counts of events: "lost in flight", "no credit", "silence", "partition", ..."""
        self._seed = rng.getrandbits(64)
        self._rng = random.Random(f"{self._seed}/deaths")
        self.map = NetMap(self._seed, profile or Profile())
        self._stations: dict[asyncio.AbstractEventLoop, dict[str, Station]] = {}  # by host
        self._pipes = 0
        self._numbers = 0

    # -- hosts and processes --

    def add_host(
        self, name: str, *, egress_bytes_s: float = math.inf, ingress_bytes_s: float = math.inf
    ) -> str:
        """A new host, which is up: its address. `egress_bytes_s`, `ingress_bytes_s`: of its network card."""
        return self.map.add_host(name, egress_bytes_s, ingress_bytes_s)

    def wire(
        self,
        process: asyncio.AbstractEventLoop,
        host: str,
        name: str,
        bind: str | None = None,
        keys: NodeKeys | None = None,
        times: LinkTimes = LINK_TIMES,
    ) -> SimWire:
        """The control wire of a process; `bind` "tcp://ADDRESS:PORT" where its port is known before. Raises
        `CannotListen`."""
        return SimWire(
            self,
            self.station(process, host, name),
            name,
            bind or f"tcp://{self.map.hosts[host].address}:0",
            keys,
            times,
        )

    def carrier(
        self, process: asyncio.AbstractEventLoop, host: str, *, files: Files | None = None, scale: float = 1.0
    ) -> SimCarrier:
        """The data sockets of a process. `files` gives what it publishes; each byte of that counts as `scale`
        bytes on the line, so that a small file can represent a large one."""
        station = self.station(process, host, host)
        rng = random.Random(f"{self._seed}/secrets/{self.next_number()}")
        return SimCarrier(self, station, rng, files, scale)

    def station(self, process: asyncio.AbstractEventLoop, host: str, name: str) -> Station:
        """The place of a process on the network."""
        there = self._stations.setdefault(process, {})
        station = there.get(host)
        if station is None:
            station = there[host] = Station(process, self.map.hosts[host], name)
            if isinstance(process, ProcessLoop):
                process.at_death(lambda: self.process_died(process))
                process.at_freeze(lambda frozen: self._freeze(process, frozen))
        return station

    def process_died(self, process: asyncio.AbstractEventLoop) -> None:
        """SIGKILL: its connections break at once, its ports have no listener. A second call does nothing."""
        for station in self._stations.pop(process, {}).values():
            self._note("process died", station.name)
            station.alive = False
            for socket in list(station.sockets):
                socket.died()

    def process_froze(self, process: asyncio.AbstractEventLoop) -> None:
        """SIGSTOP: its kernel still takes incoming bytes, but the process sends nothing."""
        self._freeze(process, True)

    def process_thawed(self, process: asyncio.AbstractEventLoop) -> None:
        """SIGCONT."""
        self._freeze(process, False)

    def host_died(self, name: str) -> None:
        """The power is off: it is silent from now on, and no process is notified."""
        host = self.map.hosts[name]
        if not host.up:
            return
        self._note("host died", name)
        host.up = False
        for path in self.map.of_host(host):
            self._refresh(path)
        for process, there in list(self._stations.items()):
            if name in there:
                self.process_died(process)

    def host_back(self, name: str) -> None:
        """It is up again, at its address, and has no record of its connections."""
        host = self.map.hosts[name]
        if host.up:
            return
        self._note("host back", name)
        host.up = True
        for path in self.map.of_host(host):
            self._refresh(path)

    # -- paths between hosts --

    def set_link(self, source: str, target: str, profile: Profile) -> None:
        """Treat what `source` sends to `target` like this from now on; the other direction stays."""
        self._note("link", source, target, repr(profile))
        self.map.path(source, target).shape(self._world.time(), profile)

    def partition(self, source: str, target: str) -> None:
        """Let nothing of `source` reach `target`; the other direction stays. No process is notified."""
        self._note("partition", source, target)
        path = self.map.path(source, target)
        path.cut = True
        self._refresh(path)

    def heal(self, source: str, target: str) -> None:
        """End a partition of that direction, and a jam between the two."""
        self._note("heal", source, target)
        path, back = self.map.path(source, target), self.map.path(target, source)
        path.cut = path.jammed = back.jammed = False
        self._refresh(path)

    def heal_all(self) -> None:
        """End every partition and jam."""
        for source, target in list(self.map.paths):
            self.heal(source, target)

    def reset(self, one: str, other: str) -> None:
        """Break every connection between two hosts; messages under way are lost, new connections can be
        made."""
        self._note("reset", one, other)
        for path in (self.map.path(one, other), self.map.path(other, one)):
            for flow in list(path.flows):
                flow.end(End.RESET)

    def jam(self, one: str, other: str) -> None:
        """Break every connection between two hosts, and each new one as soon as it is made, until `heal`,
        like a faulty middlebox. Dialling processes get an answer, so no peer looks dead."""
        self._note("jam", one, other)
        self.map.path(one, other).jammed = self.map.path(other, one).jammed = True
        self.reset(one, other)

    def spoil(self, host: str, count: int, done: Callable[[], None]) -> None:
        """Flip a bit in each of the next `count` pieces of content that reach a host; `done` is called for
        each."""
        self._note("spoil", host, count)
        self.map.hosts[host].spoil(count, done)

    # -- for the sockets --

    def next_number(self) -> int:
        """Differs at each call."""
        self._numbers += 1
        return self._numbers

    def pipe(
        self, path: Path, source: Station, target: Station, bound: int, silence: Silence | None
    ) -> Pipe[T]:
        """One direction of a new connection."""
        self._pipes += 1
        self._note("connect", self._pipes, source.name, target.name)
        return Pipe(
            Direction(self._pipes, path, source, target),
            bound=bound,
            silence=silence,
            trace=self.trace,
            counts=self.counts,
        )

    def death_of(self, station: Station) -> End:
        """The kind of end of its connections when a process is killed."""
        return End.RESET if self._rng.random() < ABRUPT else End.CLOSED

    def _freeze(self, process: asyncio.AbstractEventLoop, frozen: bool) -> None:
        for station in self._stations.get(process, {}).values():
            station.frozen = frozen
            for socket in list(station.sockets):
                for flow in socket.outs():
                    flow.watch()

    def _refresh(self, path: Path) -> None:
        blocked = path.cut or not (path.source.up and path.target.up)
        if blocked is path.blocked:
            return
        path.blocked = blocked
        now_s = self._world.time()
        if blocked:
            path.blocked_since_s = now_s
        for flow in list(path.flows):
            if blocked:
                flow.hold_up()
            else:
                flow.go_on(now_s - path.blocked_since_s)

    def _note(self, what: str, *facts: str | int | float) -> None:
        self.counts[what] += 1
        if self.trace is not None:
            self.trace.note(what, *facts)
