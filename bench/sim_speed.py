"""How fast whole simulated jobs run: seconds of the cluster for one second of one core.

    python -m bench.sim_speed                              the two settings
    python -m bench.sim_speed --instances 8,16,32,64       and the curve, at RLBoost's setting
    python -m bench.sim_speed --json speed.json

Measured from the moment that all hosts have joined, over a window of virtual time, in processor seconds of
this process: what else runs on the machine slows it through shared caches and clocks, not through the queue.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from configs.load import load
from rlctl.commands.simulate import PRESETS
from rlctl.modelled import setting_of
from sim.cluster import SimCluster
from sim.setting import Setting

QUICK_S = 30.0
"""Virtual seconds of the quickstart's job that are measured; most of that job."""
WINDOW_S = 240.0
"""Of RLBoost's: rollout of a thousand requests, and some of the training."""
CURVE_S = 10.0
"""Of each point of the curve; what a cluster of that size costs hardly changes within a step."""
BOOTED_S = 60.0  # virtual: all hosts have joined and serve
BOOT_S = 20.0  # of a host here, up to twice that: a thousand that join at once overrun the head


@dataclass(frozen=True, slots=True)
class Speed:
    """One measurement. simulated_per_s: virtual seconds for one processor second; turn_us: processor
    microseconds of one callback; turns_per_s: callbacks of one virtual second."""

    name: str
    instances: int
    virtual_s: float
    cpu_s: float
    turns: int

    @property
    def simulated_per_s(self) -> float:
        return self.virtual_s / self.cpu_s

    @property
    def turn_us(self) -> float:
        return 1e6 * self.cpu_s / max(self.turns, 1)


def quickstart() -> Setting:
    """The quickstart's job on models of a laptop's cores, with three hosts that stay."""
    return Setting(load("quickstart", ["fleet.trace="]))


def rlboost(instances: int) -> Setting:
    """1,024 requests a step on so many preemptible instances of two H100."""
    config = load("rlboost-14b", [f"fleet.n_prem_max={instances}"])
    return setting_of(config, replace(PRESETS["rlboost-14b"], boot_s=BOOT_S))


def measure(name: str, setting: Setting, instances: int, *, from_s: float, window_s: float) -> Speed:
    """Run until `from_s`, then measure a window. The rest of the job is left."""
    cluster = SimCluster(setting)
    cluster.begin()
    cluster.advance(from_s)
    turns, began_s, begun_cpu_s = cluster.loop.turns, cluster.loop.now_s, time.process_time()
    cluster.advance(from_s + window_s)
    cpu_s = time.process_time() - begun_cpu_s
    speed = Speed(name, instances, cluster.loop.now_s - began_s, cpu_s, cluster.loop.turns - turns)
    cluster.finish(stopped=True)
    return speed


def line_of(speed: Speed) -> str:
    """For people."""
    per_instance_ms = 1e3 * speed.cpu_s / speed.virtual_s / speed.instances
    return (
        f"{speed.name:12} {speed.instances:5} instances  {speed.simulated_per_s:8.1f} simulated s per s  "
        f"{speed.turns / speed.virtual_s:9.0f} turns per simulated s of {speed.turn_us:5.1f} us each  "
        f"{per_instance_ms:6.2f} ms per instance and simulated s"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.sim_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--instances", default="", metavar="N,N", help="points of the curve")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    args = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)  # as a campaign does: a thousand runs say the same things
    quick = replace(quickstart(), seed=1)
    measured = [
        measure("quickstart", quick, 3, from_s=4.0, window_s=QUICK_S),
        measure("rlboost-14b", rlboost(8), 8, from_s=BOOTED_S, window_s=WINDOW_S),
    ]
    for speed in measured:
        print(line_of(speed), flush=True)
    for count in [int(text) for text in args.instances.split(",") if text]:
        speed = measure("curve", rlboost(count), count, from_s=BOOTED_S, window_s=CURVE_S)
        measured.append(speed)
        print(line_of(speed), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(speed) for speed in measured], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
