"""FrozenProcesses: frozen processes of a simulated cluster, and how they end.

A standstill is measured in the running time of the process that must end it (the judge). This module also
observes which hosts the head declares dead after a pause of its own. Owns the times. Judges nothing: it makes
the facts that `invariants.standing` judges.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from gleaner.chaos.faults import AnyFault, BadLink, DiskFull, Partition
from gleaner.chaos.invariants.facts import DeclaredDead, Fact, ProcessFrozen
from gleaner.sim.cluster import SimCluster
from gleaner.sim.hosts import SimProcess
from gleaner.sim.run_setup import CLIENT
from gleaner.supervisor.process import HEARTBEAT_VARIABLE
from gleaner.supervisor.watch.health import BEATS

HEAD = "head/agent"
SLACK_S = 3.0
"""Beyond a limit: the polling period of the process that enforces it."""
SETTLED_S = 2.0
"""A process that has run for so long has sent its first heartbeat."""
SHORTLY_S = 10.0
"""For so long after a head continues, its declarations about hosts may result from its pause."""
BEFORE_S = 6.0
"""Of faults that were over before a pause: their effects may be detected after it."""
LEAST_S = 1.0
"""A shorter pause has no effect on any process."""


@dataclass(slots=True)
class _Pause:
    """One standstill: when it began, by the world's clock and by the judge's clock, and its limit."""

    since_s: float
    judge_s: float
    limit_s: float | None


class FrozenProcesses:
    """See the module.

    Args:
        see: takes the facts.
        faults: of the run's schedule; faults that cut hosts off explain a silence.
    """

    def __init__(self, cluster: SimCluster, see: Callable[[Fact], None], faults: Sequence[AnyFault]) -> None:
        self._cluster, self._see = cluster, see
        self._blurs = [fault for fault in faults if isinstance(fault, Partition | BadLink | DiskFull)]
        self._pauses: dict[SimProcess, _Pause] = {}
        self._last: dict[SimProcess, tuple[float, float]] = {}  # the newest finished pause
        self._met: dict[SimProcess, float] = {}  # time of its detection
        self._met_judge_s: dict[SimProcess, float] = {}  # by the judge's clock
        self.watchdogs = 0
        """Node agents that their init system ended."""

    def look(self) -> None:
        """Poll: report the processes that are frozen for too long."""
        for process in self._processes():
            self.meet(process)
        for process, pause in self._pauses.items():
            if pause.limit_s is not None and not process.stopping and self._cluster.ended is None:
                for_s = self._judge_s(process) - pause.judge_s
                self._see(ProcessFrozen(self._now_s, process.name, for_s, pause.limit_s))

    def meet(self, process: SimProcess) -> None:
        """Register a process."""
        if process not in self._met and process.alive:
            self._met[process], self._met_judge_s[process] = self._now_s, self._judge_s(process)
            process.loop.at_freeze(partial(self._changed, process))
            process.loop.at_death(partial(self._died, process))
            if process.loop.frozen:
                self._changed(process, True)

    def declared_dead(self, host: str) -> None:
        """The head declares this host dead now."""
        head = self._cluster.hosts["head"].find("agent")
        if head is None or head not in self._last:
            return
        since_s, until_s = self._last[head]
        if until_s - since_s < LEAST_S or self._now_s - until_s > SHORTLY_S:
            return
        lives = not self._blurred(since_s - BEFORE_S) and self._runs_since(host, since_s - BEFORE_S)
        self._see(DeclaredDead(self._now_s, host, until_s - since_s, lives))

    def _runs_since(self, host: str, since_s: float) -> bool:
        agent = self._cluster.hosts[host].find("agent")
        if agent is None or agent in self._pauses or self._met.get(agent, self._now_s) > since_s:
            return False
        return agent.loop.slowness == 1.0 and self._last.get(agent, (0.0, 0.0))[1] < since_s

    def _blurred(self, since_s: float) -> bool:
        return any(fault.at_s <= self._now_s and fault.over_s >= since_s for fault in self._blurs)

    def _changed(self, process: SimProcess, frozen: bool) -> None:
        if frozen:
            self._pauses[process] = _Pause(self._now_s, self._judge_s(process), self._limit_s(process))
        elif (pause := self._pauses.pop(process, None)) is not None:
            self._last[process] = pause.since_s, self._now_s

    def _died(self, process: SimProcess) -> None:
        pause = self._pauses.pop(process, None)
        self._met.pop(process, None)
        self._met_judge_s.pop(process, None)
        self._last.pop(process, None)
        if pause is None or process.ended is None:
            return
        cause = process.ended.cause
        self.watchdogs += process.parent is None and bool(cause) and not self._others(process)
        for_s = self._judge_s(process) - pause.judge_s
        fact = ProcessFrozen(
            self._now_s, process.name, for_s, pause.limit_s or for_s, cause, self._others(process)
        )
        self._see(fact)

    def _others(self, process: SimProcess) -> str:
        if process.struck:
            return "a fault"
        if not process.host.up:
            return "the end of its host"
        if process.parent is not None and not process.parent.alive:
            return "the end of its parent"
        return "an order to stop" if process.stopping or self._cluster.ended is not None else ""

    def _limit_s(self, process: SimProcess) -> float | None:
        """Time in which it must be ended; None where no process must end it."""
        if process.parent is None:
            paces = self._cluster.setting.paces
            if not process.watchdog_s:
                return None
            ready = process.notified_s is not None
            return (process.watchdog_s if ready else paces.ready_s) * 1.25 + SLACK_S
        live = self._cluster.setting.config.liveness
        if not live.hung_s or HEARTBEAT_VARIABLE not in process.env:
            return None
        now_s = self._judge_s(process)  # a judge that is frozen itself gets no heartbeat
        met_s = self._met_judge_s.get(process, now_s)
        settled = process in self._cluster.systems and met_s < now_s - SETTLED_S
        return (live.hung_s if settled else max(live.start_s, live.hung_s)) * (1 + 2 / BEATS) + SLACK_S

    def _judge_s(self, process: SimProcess) -> float:
        """The judge's clock, which stops while the judge is frozen."""
        return self._now_s if process.parent is None else process.parent.loop.awake_s()

    def _processes(self) -> Iterator[SimProcess]:
        for host in self._cluster.hosts.values():
            if host.name != CLIENT:
                yield from list(host.processes)

    @property
    def _now_s(self) -> float:
        return self._cluster.loop.now_s
