"""Simulated jobs whose processes are killed, and the steps that they trained."""

import random
from collections import Counter

from gleaner.actors.cluster.fleet import RESERVED
from gleaner.actors.protocol.cluster import StepTrained
from gleaner.actors.protocol.instances import Dispatch
from gleaner.configs.load import load
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.outcome import Outcome
from gleaner.sim.run_setup import RunSetup

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
