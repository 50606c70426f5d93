"""A whole simulated job under faults.

`python whole_system.py SEED` prints the outcome, with its hash.
"""

import logging
import sys
from collections.abc import Callable

from gleaner.configs.load import load
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.run_setup import RunSetup

SMALL = [
    "job.steps=6",
    "task.heldout_problems=4",
    "rollout.prompts=6",
    "rollout.samples=4",
    "engine.slots=4",
    "fleet.trace=",
    "fleet.n_prem_max=3",
]


def history(seed: int) -> str:
    """A job whose manager is frozen, and whose spot hosts lose their power, their network and an engine. Odd
    seeds have turns in a drawn order."""
    order_seed = seed if seed % 2 else 0
    setting = RunSetup(load("quickstart", SMALL), seed=seed, deadline_s=300.0, order_seed=order_seed)
    cluster = SimCluster(setting)
    breaking = FaultInjector(cluster)
    fired: list[bool] = []

    def at(when_s: float, fault: Callable[[], bool]) -> None:
        breaking.at(when_s, lambda: fired.append(fault()))

    at(3.0, lambda: breaking.freeze("head", "rollout"))
    at(3.7, lambda: breaking.thaw("head", "rollout"))
    at(4.0, lambda: breaking.kill_host("spot-2"))
    at(4.2, lambda: breaking.partition("spot-1", "head", both=False))
    breaking.at(5.2, lambda: breaking.heal("spot-1", "head"))
    at(4.6, lambda: breaking.kill_process("spot-3", "engine"))
    outcome = cluster.run()
    summary = outcome.turns, round(outcome.virtual_s, 6), len(outcome.findings)
    return f"{outcome.ended} {sum(fired)} faults {outcome.trace_hash} {summary}"


if __name__ == "__main__":
    logging.disable()
    for word in sys.argv[1:]:
        print(history(int(word)))
