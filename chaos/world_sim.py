"""WorldObserver: the true state of a simulated cluster's hosts, as facts.

Reads machines, processes and the cloud, never an actor. Owns when the last reason against each host was: a
fault on it, a notice, the start or the end of one of its processes. Judges nothing.
"""

from collections.abc import Callable

from gleaner.actors.cluster.fleet import RESERVED
from gleaner.actors.names import GATEWAY
from gleaner.actors.protocol.cluster import PreemptionNotice
from gleaner.actors.training.account import Meter
from gleaner.actors.training.records import Node, Phase, Run
from gleaner.chaos.faults import (
    AnyFault,
    BadScorer,
    KillHost,
    KillInCommit,
    KillOnMessage,
    KillProcess,
    KillZone,
    Notice,
    SickVerifier,
)
from gleaner.chaos.invariants.facts import Fact
from gleaner.chaos.invariants.gateway_facts import GatewaySeen
from gleaner.chaos.invariants.world_facts import (
    HostDelivered,
    HostLook,
    HostRecorded,
    HostRented,
    HostReturned,
    HostsLeft,
    Paid,
    WorldSeen,
)
from gleaner.chaos.machine_faults import BitRot, CloudTrouble, PowerLoss, SlowTrainer
from gleaner.sim.cluster import SimCluster
from gleaner.sim.hosts import Host, SimProcess
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.run_setup import CLIENT, HEAD, SCORES, SERVICE, role_of

LOOK_S = 1.0
"""Between two looks at the hosts."""
PARTS = {
    "head": ("rollout", "reward"),
    "reserved": ("transfer", "trainer"),
    "preemptible": ("transfer", "engine"),
    "reward": ("reward-host",),
}
"""Kinds of processes that a node agent keeps on a host while a job runs."""

ENDINGS = (KillProcess, KillHost, KillZone, KillOnMessage, KillInCommit, PowerLoss, BitRot)
ALONE = {"@head": HEAD, "@reserved": RESERVED}
"""Places that mean one host, whether it has power or not."""


class WorldObserver:
    """See the module. `resolve` gives the host of a place of a fault."""

    def __init__(
        self, cluster: SimCluster, see: Callable[[Fact], None], resolve: Callable[[str], str]
    ) -> None:
        self._cluster, self._see, self._resolve = cluster, see, resolve
        self._born: dict[SimProcess, float] = {}
        self._processes: dict[str, tuple[int, ...]] = {}
        self._changed: dict[str, float] = {}  # by host: last start or end of a process
        self._struck: dict[str, float] = {}  # by host: until when a fault lasts, or when the last one was
        self._missing: dict[tuple[str, str], float] = {}
        self._noticed: dict[str, object] = {}  # by host: the stay that ends
        self._rented: dict[str, float] = {}
        self._stays: list[tuple[float, float]] = []  # of the cloud's bill
        self._recorded: set[str] = set()
        self._records = 0
        self._blurred_s = 0.0
        self._began = False
        self._service = 0  # the process of the service that scores for the job
        self._verifiers_s = 0.0  # until when a fault of verifiers lasts, or when the last one was

    def begin(self) -> None:
        """Start observing; the cluster has not begun."""
        self._cluster.watch(self._passed)
        self._cluster.cloud.on_rented = self._rent
        self._cluster.cloud.on_delivered = self._deliver
        self._cluster.cloud.tell(lambda name, _: self._return(name))
        self._cluster.loop.call_later(LOOK_S, self._look_again)

    def struck(self, fault: AnyFault, how: str) -> None:
        """A fault fires (or misses). Those that end processes show in the processes."""
        if how != "fires" or isinstance(fault, ENDINGS):
            return
        if isinstance(fault, CloudTrouble):  # hosts are missing, or too many, because of it
            self._struck[HEAD] = max(fault.over_s, self._struck.get(HEAD, 0.0))
        if isinstance(fault, SlowTrainer):
            self._struck[RESERVED] = max(fault.over_s, self._struck.get(RESERVED, 0.0))
        if isinstance(fault, BadScorer | SickVerifier):
            self._verifiers_s = max(fault.over_s, self._now_s)
        places = [getattr(fault, field, "") for field in ("host", "a", "b")]
        until_s = self._now_s if isinstance(fault, Notice) else max(fault.over_s, self._now_s)
        if any(self._resolve(place) == SCORES for place in places if place):
            self._verifiers_s = max(fault.over_s, self._now_s)
        for host in filter(None, (self._resolve(place) or ALONE.get(place, "") for place in places if place)):
            self._struck[host] = max(until_s, self._struck.get(host, 0.0))
            if isinstance(fault, Notice):
                self._noticed[host] = self._cluster.stay(host)

    def struck_s(self, host: str) -> float:
        """When the last fault of a host was, or until when it lasts."""
        return self._struck.get(host, 0.0)

    def settle(self, within_s: float) -> None:
        """The job is over: run on until no host is rented, or for `within_s`."""
        loop, cloud = self._cluster.loop, self._cluster.cloud
        begin_s = self._now_s
        self._pay()
        while cloud.rented() and self._now_s < begin_s + within_s:
            loop.run(self._now_s + LOOK_S)
        head = self._hosts().get(HEAD)
        calm_s = head.calm_s if head is not None else 0.0
        left = tuple(cloud.rented())
        self._see(HostsLeft(self._now_s, left, self._now_s - begin_s, calm_s))

    # -- what happens --

    def _passed(self, seen: ObservedMessage) -> None:
        if isinstance(seen.message, PreemptionNotice):
            host = seen.to.partition("/")[0]
            self._noticed[host] = self._cluster.stay(host)

    def _rent(self, host: str) -> None:
        self._see(HostRented(self._now_s, host, len(self._rented)))
        self._rented[host] = self._now_s

    def _deliver(self, host: str) -> None:
        """Of a host that was not requested, only the bill is known."""
        self._see(HostDelivered(self._now_s, host))
        self._rented[host] = self._now_s

    def _return(self, host: str) -> None:
        began_s = self._rented.pop(host, self._now_s)
        self._stays.append((began_s, self._now_s))
        self._see(HostReturned(self._now_s, host))

    # -- looks --

    def _look_again(self) -> None:
        if self._cluster.ended is not None:
            return
        hosts = self._hosts()
        if HEAD not in hosts or RESERVED not in hosts or hosts[HEAD].calm_s < LOOK_S:
            self._blurred_s += LOOK_S
        records = self._read_history()
        self._see(
            WorldSeen(
                self._now_s,
                hosts,
                dict(self._rented),
                frozenset(self._recorded),
                self._began,
                max(0.0, self._now_s - self._verifiers_s),
            )
        )
        self._look_at_gateway()
        self._look_at_service()
        for record in records:
            self._see(HostRecorded(self._now_s, record.node, record.role, record.event))
        self._cluster.loop.call_later(LOOK_S, self._look_again)

    def _look_at_gateway(self) -> None:
        if not self._cluster.gateway:
            return
        process, paths = self._cluster.hosts[HEAD].find("gateway"), self._cluster.net.map.paths
        ways = (paths.get((HEAD, CLIENT)), paths.get((CLIENT, HEAD)))
        reachable = not any(way is not None and (way.blocked or way.jammed) for way in ways)
        system = None if process is None else self._cluster.systems.get(process)
        cells = () if system is None else system.cells()
        incarnation = next((cell.address.incarnation for cell in cells if cell.address.name == GATEWAY), 0)
        self._see(GatewaySeen(self._now_s, (0 if process is None else process.pid, incarnation), reachable))

    def _look_at_service(self) -> None:
        """Verifiers of a service are well since its process began, and nothing disturbs it."""
        if self._cluster.setting.shares:
            process = self._cluster.hosts[SCORES].find(SERVICE)
            if process is None or _disturbed(process, self._now_s) or process.pid != self._service:
                self._service = 0 if process is None else process.pid
                self._verifiers_s = max(self._verifiers_s, self._now_s)

    def _read_history(self) -> list[Node]:
        history = self._cluster.history
        new, self._records = history[self._records :], len(history)
        nodes: list[Node] = []
        for record in new:
            if isinstance(record, Run):
                self._recorded.clear()
            elif isinstance(record, Phase):
                self._began = self._began or record.phase == "steps"
            elif isinstance(record, Node):
                nodes.append(record)
                if record.event == "joined":
                    self._recorded.add(record.node)
                elif record.event in ("left", "killed"):
                    self._recorded.discard(record.node)
        return nodes

    def _hosts(self) -> dict[str, HostLook]:
        return {
            name: self._look_at(host)
            for name, host in self._cluster.hosts.items()
            if host.up and name not in (CLIENT, SCORES)  # which are not of the cluster
        }

    def _look_at(self, host: Host) -> HostLook:
        now_s, name, role = self._now_s, host.name, role_of(host.name)
        living = tuple(process.pid for process in host.processes)
        if self._processes.get(name) != living:
            self._processes[name], self._changed[name] = living, now_s
        if any(_disturbed(process, now_s) for process in host.processes):
            self._struck[name] = max(now_s, self._struck.get(name, 0.0))
        agent, engine = host.find("agent"), host.find("engine")
        steady_s = max(0.0, now_s - self._struck.get(name, 0.0))
        noticed = name in self._noticed and self._noticed[name] == self._cluster.stay(name)
        return HostLook(
            name=name,
            role=role,
            agent=agent.pid if agent is not None else 0,
            agent_s=self._age_s(agent),
            engine_s=self._age_s(engine),
            calm_s=0.0 if noticed else min(steady_s, now_s - self._changed.get(name, 0.0)),
            steady_s=steady_s,
            missing=self._missing_of(host, agent),
            noticed=noticed,
        )

    def _missing_of(self, host: Host, agent: SimProcess | None) -> dict[str, float]:
        """Since when parts do not run, in seconds."""
        found = {}
        for kind in PARTS[role_of(host.name)]:
            key = host.name, kind
            if agent is None or host.find(kind) is not None:
                self._missing.pop(key, None)
            else:
                found[kind] = self._now_s - self._missing.setdefault(key, self._now_s)
        return found

    def _age_s(self, process: SimProcess | None) -> float:
        return 0.0 if process is None else self._now_s - self._born.setdefault(process, self._now_s)

    # -- the bill --

    def _pay(self) -> None:
        history = self._cluster.history
        if not history:
            return
        meter = Meter()
        for record in history:
            meter.observe(record)
        end_s = self._now_s
        begin_s = end_s - meter.used.elapsed_s
        stays = [*self._stays, *((since_s, end_s) for since_s in self._rented.values())]
        spans = [max(0.0, min(until_s, end_s) - max(since_s, begin_s)) for since_s, until_s in stays]
        self._see(Paid(end_s, sum(spans), meter.used.preemptible_s, len(spans), self._blurred_s))

    @property
    def _now_s(self) -> float:
        return self._cluster.loop.now_s


def _disturbed(process: SimProcess, now_s: float) -> bool:
    """Frozen, slow, or at work that began while it was slow."""
    loop = process.loop
    return loop.frozen or loop.slowness != 1.0 or now_s < loop.slow_until_s
