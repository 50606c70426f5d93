"""Applies a schedule to a simulated cluster, and counts the faults that fired.

Owns the mapping from a fault to the cluster's methods, the choice of a target, and the two counts: a fault
that found its target fired, any other was missed. This module also ends faults that last for a time.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from msgspec import structs

from gleaner.chaos.apply_machines import Machines, begin
from gleaner.chaos.faults import (
    AnyFault,
    BadLink,
    BadScorer,
    ClockJump,
    CorruptChunk,
    CrashActor,
    DiskFull,
    FailLoad,
    FalseNotice,
    ForeignResult,
    Freeze,
    Hang,
    KillHost,
    KillInCommit,
    KillOnMessage,
    KillProcess,
    KillZone,
    Moment,
    Notice,
    Partition,
    Reset,
    RestartStorm,
    SickVerifier,
    Slow,
    Stay,
    Zombie,
    kind_of,
)
from gleaner.chaos.machine_faults import AnyMachineFault, PowerLoss
from gleaner.chaos.shapes import named

RESERVED_BACK_S = 5.0
"""Time until a reserved host comes back that was switched off without a given time: it is reserved."""


class Cluster(Protocol):
    """Operations that a schedule needs of a simulated cluster. Each method that breaks something returns
    whether it could: whether the host is up, and the process runs."""

    def at(self, when_s: float, work: Callable[[], object]) -> None:
        """Call this at that virtual time."""

    def hosts(self, role: str) -> Sequence[str]:
        """Hosts of a role that are up, by name."""

    def kill_process(self, host: str, kind: str) -> bool: ...
    def crash_actor(self, host: str, kind: str, actor: str) -> bool: ...
    def kill_host(self, host: str) -> bool: ...
    def kill_zone(self, zone: str) -> bool: ...
    def start_host(self, host: str) -> bool: ...
    def kill_in_commit(self, host: str, kind: str, *, torn: bool, done: Callable[[], None]) -> bool:
        """At the next commit of that process; `done` is called when it happened."""

    def kill_on_message(
        self,
        host: str,
        kind: str,
        message: str,
        count: int,
        moment: Moment,
        done: Callable[[], None],
        *,
        power_back_s: float,
    ) -> bool:
        """At the `count`-th message of that kind from now on; `done` is called when it happened. With
        `power_back_s` the whole host goes, and is up again after so long."""

    def freeze(self, host: str, kind: str) -> bool: ...
    def thaw(self, host: str, kind: str) -> bool: ...
    def hang(self, host: str, kind: str) -> bool: ...
    def slow(self, host: str, kind: str, factor: float) -> bool: ...
    def partition(self, a: str, b: str, *, both: bool) -> bool: ...
    def heal(self, a: str, b: str) -> None: ...
    def bad_link(
        self,
        a: str,
        b: str,
        *,
        loss: float,
        duplicate: float,
        delay_s: float,
        jitter_s: float,
        bytes_per_s: float,
    ) -> bool: ...
    def good_link(self, a: str, b: str) -> None: ...
    def reset(self, a: str, b: str) -> bool: ...
    def notice(self, host: str, notice_s: float) -> bool:
        """The host gets the notice now, and is gone when the time is over."""

    def false_notice(self, host: str, notice_s: float, back_s: float, *, hint: bool) -> bool:
        """The host gets the notice now; `back_s` later the notice is withdrawn."""

    def clock_jump(self, host: str, by_s: float) -> bool: ...
    def fill_disk(self, host: str) -> bool: ...
    def empty_disk(self, host: str) -> None: ...
    def fill_memory(self, host: str) -> bool: ...
    def empty_memory(self, host: str) -> None: ...
    def corrupt_chunks(self, host: str, count: int, done: Callable[[], None]) -> bool:
        """`done` is called for each chunk that was damaged."""

    def fail_loads(self, host: str, count: int, done: Callable[[], None]) -> bool:
        """`done` is called for each load of weights that failed."""

    def bad_scorer(self, how: str, count: int, done: Callable[[], None]) -> bool:
        """`done` is called for each answer that was spoiled."""

    def foreign_results(self, host: str, count: int, done: Callable[[], None]) -> bool:
        """`done` is called for each result that is sent for an item of another host."""

    def sick_verifier(self, how: str) -> bool:
        """No score is returned until `well_verifier`."""

    def well_verifier(self) -> None:
        """Scores are returned again."""


class Faults:
    """Applies one schedule. `fired` and `missed` count by kind, `shapes` counts the fired faults by shape
    (`gleaner.chaos.shapes`); the counts are complete when the run is over."""

    def __init__(
        self, cluster: Cluster, faults: Sequence[AnyFault], machines: Machines | None = None
    ) -> None:
        self.fired: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.shapes: Counter[str] = Counter()
        self.on_strike: Callable[[AnyFault, str], None] | None = None
        """Called with each fault when it fires or misses, for a story of the run."""
        self._cluster, self._machines = cluster, machines
        self._faults = faults

    def arm(self) -> None:
        """Enter every fault into the cluster's time. The provider follows the stays of hosts."""
        if self._machines is not None and any(isinstance(fault, PowerLoss) for fault in self._faults):
            self._machines.track_unsure_writes()
        for fault in self._faults:
            if not isinstance(fault, Stay):
                self._cluster.at(fault.at_s, lambda fault=fault: self._strike(fault))  # type: ignore[misc]

    def resolve(self, where: str) -> str:
        """The host that a place refers to now; "" where there is none."""
        if not where.startswith("@"):
            return where
        role, _, number = where[1:].partition("/")
        up = sorted(self._cluster.hosts(role))
        return up[int(number or 0) % len(up)] if up else ""

    def _strike(self, fault: AnyFault) -> None:
        done = self._begin(fault)
        if done:
            self._fired(fault)
        elif done is not None:
            self.missed[kind_of(fault)] += 1
            if self.on_strike is not None:
                self.on_strike(fault, "misses")

    def _fired(self, fault: AnyFault) -> None:
        self.fired[kind_of(fault)] += 1
        self.shapes.update(named(fault))
        if self.on_strike is not None:
            self.on_strike(fault, "fires")

    def _hit(self, fault: AnyFault, host: str) -> Callable[[], None]:
        """Faults that wait for an event call this when they fire. They are those of the host that they waited
        on: by then another one may have its place."""
        struck = structs.replace(fault, host=host) if hasattr(fault, "host") else fault
        return lambda: self._fired(struck)

    def _begin(self, fault: AnyFault) -> bool | None:
        """Whether the fault fired; None for a fault that waits for an event and reports itself."""
        cluster, host = self._cluster, self.resolve(getattr(fault, "host", ""))
        if isinstance(fault, AnyMachineFault):
            machines = self._machines
            return machines is not None and begin(fault, host, machines, cluster.at, self._hit(fault, host))
        match fault:
            case KillZone():
                return cluster.kill_zone(fault.zone)
            case BadScorer():
                return self._lurks(fault, cluster.bad_scorer(fault.how, fault.count, self._hit(fault, host)))
            case SickVerifier():
                return self._for_a_time(fault, cluster.sick_verifier(fault.how), cluster.well_verifier)
            case Partition() | BadLink() | Reset():
                a, b = self.resolve(fault.a), self.resolve(fault.b)
                return bool(a and b and a != b) and self._between(fault, a, b)
            case _ if not host:
                return False
            case KillProcess():
                return cluster.kill_process(host, fault.process)
            case CrashActor():
                return cluster.crash_actor(host, fault.process, fault.actor)
            case KillHost():
                return self._kill_host(fault, host)
            case KillOnMessage():
                lurks = cluster.kill_on_message(
                    host,
                    fault.process,
                    fault.message,
                    fault.count,
                    fault.moment,
                    self._hit(fault, host),
                    power_back_s=fault.power_back_s,
                )
                return self._lurks(fault, lurks)
            case KillInCommit():
                hit = self._hit(fault, host)
                return self._lurks(
                    fault, cluster.kill_in_commit(host, fault.process, torn=fault.torn, done=hit)
                )
            case Freeze() | Zombie():
                return self._for_a_time(
                    fault, cluster.freeze(host, fault.process), lambda: cluster.thaw(host, fault.process)
                )
            case Hang():
                return cluster.hang(host, fault.process)
            case Slow():
                return self._for_a_time(
                    fault,
                    cluster.slow(host, fault.process, fault.factor),
                    lambda: void(cluster.slow(host, fault.process, 1.0)),
                )
            case Notice():
                return cluster.notice(host, fault.notice_s)
            case FalseNotice():
                return cluster.false_notice(host, fault.notice_s, fault.back_s, hint=fault.hint)
            case ClockJump():
                return cluster.clock_jump(host, fault.by_s)
            case DiskFull(memory=True):
                return self._for_a_time(fault, cluster.fill_memory(host), lambda: cluster.empty_memory(host))
            case DiskFull():
                return self._for_a_time(fault, cluster.fill_disk(host), lambda: cluster.empty_disk(host))
            case CorruptChunk():
                return self._lurks(fault, cluster.corrupt_chunks(host, fault.count, self._hit(fault, host)))
            case FailLoad():
                return self._lurks(fault, cluster.fail_loads(host, fault.count, self._hit(fault, host)))
            case ForeignResult():
                return self._lurks(fault, cluster.foreign_results(host, fault.count, self._hit(fault, host)))
            case RestartStorm():
                return self._storm(fault, host)
        raise NotImplementedError(f"chaos/apply_sim.py has no way to carry out {kind_of(fault)}")

    def _lurks(self, fault: AnyFault, armed: bool) -> Literal[False] | None:
        return None if armed else False

    def _for_a_time(self, fault: AnyFault, begun: bool, heal: Callable[[], object]) -> bool:
        if begun:
            self._cluster.at(fault.over_s, heal)
        return begun

    def _kill_host(self, fault: KillHost, host: str) -> bool:
        preemptible = host in self._cluster.hosts("preemptible")
        if not self._cluster.kill_host(host):
            return False
        back_s = fault.back_s or (0.0 if preemptible else RESERVED_BACK_S)
        if back_s:
            self._cluster.at(fault.at_s + back_s, lambda: void(self._cluster.start_host(host)))
        return True

    def _between(self, fault: Partition | BadLink | Reset, a: str, b: str) -> bool:
        cluster = self._cluster
        match fault:
            case Partition():
                return self._for_a_time(
                    fault, cluster.partition(a, b, both=fault.both), lambda: cluster.heal(a, b)
                )
            case BadLink():
                begun = cluster.bad_link(
                    a, b, loss=fault.loss, duplicate=fault.duplicate, delay_s=fault.delay_s,
                    jitter_s=fault.jitter_s, bytes_per_s=fault.bytes_per_s,
                )  # fmt: skip
                return self._for_a_time(fault, begun, lambda: cluster.good_link(a, b))
            case Reset():
                return cluster.reset(a, b)

    def _storm(self, fault: RestartStorm, host: str) -> bool:
        first = self._cluster.kill_process(host, fault.process)
        for number in range(1, fault.kills):
            self._cluster.at(
                fault.at_s + number * fault.every_s,
                lambda: void(self._cluster.kill_process(host, fault.process)),
            )
        return first


def void(_: object) -> None:
    """For calls whose result is not needed."""
