"""The network of a simulated cluster: hosts with addresses, what lies between them, what goes wrong there.

Owns hosts, the paths between them, who listens where, and the faults: partitions (each direction for itself),
resets, jams, the death of processes and hosts. `wire` and `carrier` give a process the ports that production
has. Delays are drawn from one generator for each path: the same seed gives the same network.

The rooms: `network_path` (times), `network_pipe` (a direction of a connection), `network_stream` (ZeroMQ's
sockets), `network_tcp` (bulk), `network_wire` and `network_carrier` (the ports of `transport`).
"""

from __future__ import annotations

import asyncio
import errno
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import TypeVar

from sim.loop import SimLoop
from sim.network_carrier import SimCarrier
from sim.network_path import WITHIN_HOST, End, Host, Listener, Path, Profile, Station
from sim.network_pipe import Notes, Pipe, Silence
from sim.network_wire import SimWire
from sim.process_loop import ProcessLoop
from transport.endpoint import endpoint as checked_endpoint
from transport.keys import NodeKeys
from transport.sockets import CannotListen
from transport.wire import CONNECT_DEADLINE_S, GRACE_S

T = TypeVar("T")

FIRST_PORT = 30_000  # of those given away when no port is asked for
ABRUPT = 0.5  # share of killed processes whose kernel resets a connection instead of closing it in order

Files = Callable[[FilePath | str], bytes | memoryview]
"""Where a process's published files come from."""


class SimNet:
    """See the module.

    Args:
        loop: whose time it is; the loops of the processes share it.
        rng: the seed of everything that is drawn here.
        trace: hears of everything that happens here.
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
        """What happened how often: "lost in flight", "no credit", "silence", "partition", ..."""
        self._seed = rng.getrandbits(64)
        self._rng = random.Random(f"{self._seed}/deaths")
        self._profile = profile or Profile()
        self._hosts: dict[str, Host] = {}
        self._by_address: dict[str, Host] = {}
        self._paths: dict[tuple[str, str], Path] = {}
        self._stations: dict[tuple[asyncio.AbstractEventLoop, str], Station] = {}
        self._targets: dict[str, tuple[str, int]] = {}  # endpoints as they were read
        self._pipes = 0
        self._numbers = 0

    # -- hosts and processes --

    def add_host(
        self, name: str, *, egress_bytes_s: float = math.inf, ingress_bytes_s: float = math.inf
    ) -> str:
        """A new host, which is up: its address. `egress_bytes_s`, `ingress_bytes_s`: of its network card."""
        number = len(self._hosts) + 1
        address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        self._hosts[name] = self._by_address[address] = Host(
            name, address, FIRST_PORT, egress_bytes_s, ingress_bytes_s
        )
        return address

    def wire(
        self,
        process: asyncio.AbstractEventLoop,
        host: str,
        name: str,
        bind: str | None = None,
        keys: NodeKeys | None = None,
        *,
        grace_s: float = GRACE_S,
        connect_deadline_s: float = CONNECT_DEADLINE_S,
    ) -> SimWire:
        """The control wire of a process; `bind` "tcp://ADDRESS:PORT" where its port is known before. Raises
        `CannotListen`."""
        return SimWire(
            self,
            self.station(process, host, name),
            name,
            bind or f"tcp://{self._hosts[host].address}:0",
            keys,
            grace_s=grace_s,
            connect_deadline_s=connect_deadline_s,
        )

    def carrier(
        self, process: asyncio.AbstractEventLoop, host: str, *, files: Files | None = None, scale: float = 1.0
    ) -> SimCarrier:
        """The data sockets of a process. `files` gives what it publishes; each byte of that counts as `scale`
        bytes on the line, so that a small file can stand for a large one."""
        station = self.station(process, host, host)
        rng = random.Random(f"{self._seed}/secrets/{self.next_number()}")
        return SimCarrier(self, station, rng, files, scale)

    def station(self, process: asyncio.AbstractEventLoop, host: str, name: str) -> Station:
        """The place of a process on the network."""
        station = self._stations.get((process, host))
        if station is None:
            station = self._stations[process, host] = Station(process, self._hosts[host], name)
            if isinstance(process, ProcessLoop):
                process.at_death(lambda: self.process_died(process))
                process.at_freeze(lambda frozen: self._freeze(process, frozen))
        return station

    def process_died(self, process: asyncio.AbstractEventLoop) -> None:
        """SIGKILL: its connections break at once, nobody listens at its ports. A second call does nothing."""
        for station in self._of_process(process):
            self._note("process died", station.name)
            del self._stations[process, station.host.name]
            station.alive = False
            for socket in list(station.sockets):
                socket.died()

    def process_froze(self, process: asyncio.AbstractEventLoop) -> None:
        """SIGSTOP: its kernel still takes what is sent, nothing is heard of it."""
        self._freeze(process, True)

    def process_thawed(self, process: asyncio.AbstractEventLoop) -> None:
        """SIGCONT."""
        self._freeze(process, False)

    def host_died(self, name: str) -> None:
        """The power is off: it is silent from now on, and nobody is told."""
        host = self._hosts[name]
        if not host.up:
            return
        self._note("host died", name)
        host.up = False
        for path in self._of_host(host):
            self._refresh(path)
        for (process, _), station in list(self._stations.items()):
            if station.host is host:
                self.process_died(process)

    def host_back(self, name: str) -> None:
        """It is up again, at its address, and knows nothing of its connections."""
        host = self._hosts[name]
        if host.up:
            return
        self._note("host back", name)
        host.up = True
        for path in self._of_host(host):
            self._refresh(path)

    # -- what lies between hosts --

    def set_link(self, source: str, target: str, profile: Profile) -> None:
        """Treat what `source` sends to `target` like this from now on; the other direction stays."""
        self._note("link", source, target, repr(profile))
        self.path(source, target).shape(profile)

    def partition(self, source: str, target: str) -> None:
        """Let nothing of `source` reach `target`; the other direction stays. Nobody is told."""
        self._note("partition", source, target)
        path = self.path(source, target)
        path.cut = True
        self._refresh(path)

    def heal(self, source: str, target: str) -> None:
        """End a partition of that direction, and a jam between the two."""
        self._note("heal", source, target)
        path, back = self.path(source, target), self.path(target, source)
        path.cut = path.jammed = back.jammed = False
        self._refresh(path)

    def heal_all(self) -> None:
        """End every partition and jam."""
        for source, target in list(self._paths):
            self.heal(source, target)

    def reset(self, one: str, other: str) -> None:
        """Break every connection between two hosts; what is on its way is lost, new ones can be made."""
        self._note("reset", one, other)
        for path in (self.path(one, other), self.path(other, one)):
            for flow in list(path.flows):
                flow.end(End.RESET)

    def jam(self, one: str, other: str) -> None:
        """Break every connection between two hosts, and each new one as soon as it is made, until `heal`: a
        middlebox that lost its mind. Those who dial are answered, so nobody looks dead."""
        self.path(one, other).jammed = self.path(other, one).jammed = True
        self.reset(one, other)

    # -- for the sockets --

    def next_number(self) -> int:
        """Differs at each call."""
        self._numbers += 1
        return self._numbers

    def path(self, source: str, target: str) -> Path:
        """The direction from one host to another."""
        path = self._paths.get((source, target))
        if path is None:
            profile = WITHIN_HOST if source == target else self._profile
            rng = random.Random(f"{self._seed}/{source}/{target}")
            path = Path(self._hosts[source], self._hosts[target], profile, rng)
            self._paths[source, target] = path
        return path

    def paths_to(self, station: Station, endpoint: str) -> tuple[Path, Path] | None:
        """There and back; None when no host has that address."""
        address, _ = self._target(endpoint)
        host = station.host if address.startswith("127.") else self._by_address.get(address)
        if host is None:
            return None
        return self.path(station.host.name, host.name), self.path(host.name, station.host.name)

    def listener(self, host: Host, endpoint: str) -> Listener | None:
        """Who listens there."""
        return host.listeners.get(self._target(endpoint)[1])

    def bind(self, station: Station, bind: str, listener: Listener) -> tuple[str, int]:
        """Give a port away: the endpoint under which it is reached, and the port. Raises `CannotListen`."""
        address, wanted = self._target(bind)
        if address != station.host.address and not address.startswith("127."):
            raise CannotListen(errno.EADDRNOTAVAIL, f"{bind}: host {station.host.name} has another address")
        port = station.host.take_port(wanted, listener)
        if port is None:
            raise CannotListen(errno.EADDRINUSE, f"{bind}: another simulated process listens there")
        return f"tcp://{address}:{port}", port

    def pipe(
        self, path: Path, source: Station, target: Station, bound: int, silence: Silence | None
    ) -> Pipe[T]:
        """One direction of a new connection."""
        self._pipes += 1
        self._note("connect", self._pipes, source.name, target.name)
        return Pipe(
            self._pipes,
            path,
            source,
            target,
            bound=bound,
            silence=silence,
            trace=self.trace,
            counts=self.counts,
        )

    def death_of(self, station: Station) -> End:
        """How one of its connections ends when a process is killed."""
        return End.RESET if self._rng.random() < ABRUPT else End.CLOSED

    def _freeze(self, process: asyncio.AbstractEventLoop, frozen: bool) -> None:
        for station in self._of_process(process):
            station.frozen = frozen
            for socket in list(station.sockets):
                for flow in socket.outs():
                    flow.watch()

    def _of_process(self, process: asyncio.AbstractEventLoop) -> list[Station]:
        return [station for (loop, _), station in self._stations.items() if loop is process]

    def _of_host(self, host: Host) -> list[Path]:
        return [path for path in self._paths.values() if host in (path.source, path.target)]

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

    def _target(self, endpoint: str) -> tuple[str, int]:
        target = self._targets.get(endpoint)
        if target is None:
            address, _, port = checked_endpoint(endpoint).removeprefix("tcp://").rpartition(":")
            target = self._targets[endpoint] = (address, int(port))
        return target

    def _note(self, what: str, *facts: str | int | float) -> None:
        self.counts[what] += 1
        if self.trace is not None:
            self.trace.note(what, *facts)
