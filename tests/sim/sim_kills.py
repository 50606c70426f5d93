"""Simulated jobs whose processes are killed, and the steps that they trained."""

import random
from collections import Counter
from collections.abc import Callable

from gleaner.actors.cluster.fleet import RESERVED
from gleaner.actors.protocol.cluster import StepTrained
from gleaner.actors.protocol.instances import Dispatch
from gleaner.configs.load import load
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.outcome import Outcome
from gleaner.sim.run_setup import HEAD, RunSetup

KILLS = 3


def steps_of(outcome: Outcome) -> dict[int, StepTrained]:
    """The record of each step; for a repeated step, the last one."""
    return {one.step: one for one in evidence(outcome).trained if isinstance(one, StepTrained)}


def trained(outcome: Outcome) -> Counter[tuple[int, int]]:
    """The samples of all steps, each as number and CRC-32 of its tokens. In these runs tokens follow from the
    prompt's seed alone, as with weights that do not change."""
    steps = steps_of(outcome).values()
    return Counter((sample.count, sample.crc) for step in steps for sample in step.samples)


def harried(seed: int, settings: list[str]) -> tuple[Outcome, int]:
    """A run that kills processes when requests reach an instance, and the number of kills."""
    cluster = SimCluster(RunSetup(load("quickstart", settings), seed=seed))
    breaking, rng, hit = FaultInjector(cluster), random.Random(f"{seed}/kills"), list[bool]()

    def strike(host: str) -> None:
        where, kind = rng.choice([(host, "engine"), (RESERVED, "trainer"), ("head", "rollout")])
        hit.append(breaking.kill_process(where, kind))

    def look(seen: ObservedMessage) -> None:
        host = seen.process.host.name
        if not isinstance(seen.message, Dispatch) or seen.direction != "in" or host == RESERVED:
            return
        if rng.random() < 0.2 and len(hit) < KILLS:
            cluster.loop.call_later(rng.uniform(0.0, 0.1), lambda: strike(host))

    cluster.watch(look)
    return cluster.run(), sum(hit)


def beset(setup: RunSetup) -> tuple[Outcome, Counter[str]]:
    """A run with faults of `FAULTS` when requests reach an engine, and how often each fault was injected."""
    cluster = SimCluster(setup)
    faults, rng = Faults(cluster, setup.seed), random.Random(f"{setup.seed}/faults")
    hit = Counter[str]()
    ordered = list[str]()

    def strike(name: str) -> None:
        if FAULTS[name](faults):
            hit[name] += 1

    def look(seen: ObservedMessage) -> None:
        if not isinstance(seen.message, Dispatch) or seen.direction != "in":
            return
        if len(ordered) < MOST_FAULTS and rng.random() < OFTEN:
            ordered.append(rng.choice(list(FAULTS)))
            cluster.loop.call_later(rng.uniform(0.0, 0.5), strike, ordered[-1])

    cluster.watch(look)
    return cluster.run(), hit


MOST_FAULTS = 6
OFTEN = 0.08
"""Faults for each message with requests: they are spread over the steps."""
NOTICES_S = (0.0, 0.3, 2.0)
"""Of a preemption: shorter than a drain, and longer."""
AWAY_S = 3.0
"""A host of no cloud has its power again so long after it was lost."""


class Faults(FaultInjector):
    """Faults of a cluster, each of which returns whether it could be injected."""

    def __init__(self, cluster: SimCluster, seed: int) -> None:
        super().__init__(cluster)
        self._loop, self._rng = cluster.loop, random.Random(f"{seed}/targets")

    def instance(self) -> str:
        """The name of a preemptible host that has power; "" if there is none."""
        up = self.hosts("preemptible")
        return self._rng.choice(up) if up else ""

    def power_loss(self, host: str) -> bool:
        """Of a host of no cloud."""
        self._loop.call_later(AWAY_S, self.start_host, host)
        return self.kill_host(host)

    def engine(self) -> bool:
        """SIGKILL to the engine of an instance."""
        return self.kill_process(self.instance(), "engine")

    def preemption(self) -> bool:
        """A notice, and the end of the host at its deadline."""
        return self.notice(self.instance(), self._rng.choice(NOTICES_S))


FAULTS: dict[str, Callable[[Faults], bool]] = {
    "engine": Faults.engine,
    "trainer": lambda faults: faults.kill_process(RESERVED, "trainer"),  # with its engine
    "reserved host": lambda faults: faults.power_loss(RESERVED),
    "manager": lambda faults: faults.kill_process(HEAD, "rollout"),
    "controller": lambda faults: faults.crash_actor(HEAD, "agent", "controller"),
    "head": lambda faults: faults.kill_process(HEAD, "agent"),  # its other processes are its children
    "power of the head": lambda faults: faults.power_loss(HEAD),
    "instance": lambda faults: faults.kill_host(faults.instance()),
    "preemption": Faults.preemption,
}
