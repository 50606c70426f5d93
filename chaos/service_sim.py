"""ServiceObserver: calls of the shared reward service of a simulated cluster, as facts.

Counts connections at the clients' ends, and reads the size of the service's queue. Judges nothing.
"""

from array import array
from collections.abc import Callable
from functools import partial

import msgspec

from gleaner.actors.names import REWARD
from gleaner.actors.reward import pipe
from gleaner.chaos.invariants.facts import Fact
from gleaner.chaos.invariants.service_facts import CallBegan, CallEnded, ServiceSeen, response_key
from gleaner.sim.cluster import SimCluster
from gleaner.sim.hosts import SimProcess
from gleaner.sim.models.scored_texts import response_of
from gleaner.sim.run_setup import SCORES, SERVICE, role_of
from gleaner.sim.service_calls import ServiceCall

LOOK_S = 1.0


class _Body(msgspec.Struct, frozen=True):
    """Of a call."""

    task: str
    problem: msgspec.Raw
    response: str


class ServiceObserver:
    """See the module. struck_s: when the last fault of a host was, or until when it lasts."""

    def __init__(
        self, cluster: SimCluster, see: Callable[[Fact], None], struck_s: Callable[[str], float]
    ) -> None:
        self._cluster, self._see, self._struck_s = cluster, see, struck_s
        self._open: dict[SimProcess, set[int]] = {}
        self._process = 0
        self._changed_s = 0.0

    def begin(self) -> None:
        """Start observing, where the cluster has a service."""
        if self._cluster.setting.shares:
            self._cluster.service_calls.began = self._began
            self._cluster.service_calls.over = self._over
            self._cluster.loop.call_later(LOOK_S, self._look)

    def _began(self, call: ServiceCall) -> None:
        process = call.process
        if process not in self._open:
            self._open[process] = set()
            process.loop.at_death(partial(self._died, process))
        self._open[process].add(call.number)
        body = msgspec.json.decode(call.body, type=_Body)
        item = response_of(pipe.TextItem(body.task, bytes(body.problem), body.response))
        key = response_key(item.split, item.index, array("I", item.tokens).tobytes())
        name = f"{process.name}#{process.pid}"
        self._see(CallBegan(self._now_s, call.number, name, role_of(process.host.name), key))

    def _over(self, call: ServiceCall, left: bool) -> None:
        if call.number in self._open.get(call.process, ()):
            self._open[call.process].discard(call.number)
            self._see(CallEnded(self._now_s, call.number, left))

    def _died(self, process: SimProcess) -> None:
        for number in sorted(self._open.pop(process, ())):
            self._see(CallEnded(self._now_s, number, left=True, died=True))

    def _look(self) -> None:
        process = self._cluster.hosts[SCORES].find(SERVICE)
        pid = 0 if process is None else process.pid
        disturbed = process is None or process.loop.frozen or process.loop.slowness != 1.0
        if pid != self._process or disturbed:
            self._process, self._changed_s = pid, self._now_s
        system = None if process is None else self._cluster.systems.get(process)
        if system is not None:
            for actor in system.inspection.state().actors:
                if actor.name == REWARD:
                    found = [actor.figures.get(name, 0) for name in ("queued", "running")]
                    items = sum(int(count) for count in found)
                    calm_s = self._now_s - max(self._changed_s, self._struck_s(SCORES))
                    self._see(ServiceSeen(self._now_s, items, calm_s))
        self._cluster.loop.call_later(LOOK_S, self._look)

    @property
    def _now_s(self) -> float:
        return self._cluster.loop.now_s
