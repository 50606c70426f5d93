"""Speed of simulated jobs: cluster seconds for one second of one core.

    python -m bench.sim_speed                              the two settings, and a bare loop beside them
    python -m bench.sim_speed --instances 8,32,128,512     and the curve, at RLBoost's setting
    python -m bench.sim_speed --hours 2                    and what so many hours of RLBoost's setting take
    python -m bench.sim_speed --json speed.json --figure docs/images

Measured from the moment that all hosts have joined, over a window of virtual time, in processor seconds of
this process: other work of the machine slows it through shared caches and clocks, not through the queue.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.bare_loop import simulated_per_s
from gleaner.configs.load import load
from gleaner.rlctl.commands.simulate import PRESETS
from gleaner.rlctl.what_if_setup import setting_of
from gleaner.sim.cluster import SimCluster
from gleaner.sim.run_setup import RunSetup

DEMANDED = 300.0
"""Simulated seconds for one second of one core, at RLBoost's setting with `DEMANDED_AT` instances."""
DEMANDED_AT = 8
QUICK_S = 30.0
"""Virtual seconds of the quickstart's job that are measured; most of that job."""
WINDOW_S = 240.0
"""Of RLBoost's: rollout of 1000 requests, and some of the training."""
CURVE_S = 10.0
"""Of each point of the curve; the cost of a cluster of that size hardly changes within a step."""
BARE_S, BARE_RUNS = 60.0, 10  # of the bare loop: virtual seconds of each run, seeds
BOOTED_S = 60.0  # virtual: all hosts have joined and serve
BOOT_S = 20.0  # of a host here, up to twice that: machines of a cloud arrive one after the other


@dataclass(frozen=True, slots=True)
class Speed:
    """One measurement. simulated_per_s: virtual seconds for one processor second; turn_us: processor
    microseconds of one callback; instance_ms: processor milliseconds of one instance for one virtual second;
    instance_turns: its callbacks."""

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

    @property
    def instance_ms(self) -> float:
        return 1e3 * self.cpu_s / self.virtual_s / self.instances

    @property
    def instance_turns(self) -> float:
        return self.turns / self.virtual_s / self.instances


def quickstart() -> RunSetup:
    """The quickstart's job on models of a laptop's cores, with three permanent hosts."""
    return RunSetup(load("quickstart", ["fleet.trace="]))


def rlboost(instances: int, *, boot_s: float = BOOT_S, steps: int = 8) -> RunSetup:
    """1,024 requests a step on so many preemptible instances of two H100."""
    config = load("rlboost-14b", [f"fleet.n_prem_max={instances}", f"job.steps={steps}"])
    return setting_of(config, replace(PRESETS["rlboost-14b"], boot_s=boot_s))


def measure(name: str, setting: RunSetup, instances: int, *, from_s: float, window_s: float) -> Speed:
    """Run until `from_s`, then measure a window. The rest of the job is skipped."""
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
    """One line of text."""
    return (
        f"{speed.name:12} {speed.instances:5} instances  {speed.simulated_per_s:8.1f} simulated s per s  "
        f"{speed.turns / speed.virtual_s:9.0f} turns per simulated s of {speed.turn_us:5.1f} us each  "
        f"{speed.instance_ms:6.2f} ms and {speed.instance_turns:5.1f} turns per instance and simulated s"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.sim_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--instances", default="", metavar="N,N", help="points of the curve")
    parser.add_argument("--hours", type=float, default=0.0, metavar="H", help="run so much of RLBoost's job")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--figure", type=Path, metavar="DIR", help="draw the curve there")
    args = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)  # as a campaign does: 1000 runs log the same lines
    measured: list[Speed] = []

    def add(name: str, setting: RunSetup, instances: int, from_s: float, window_s: float) -> None:
        measured.append(measure(name, setting, instances, from_s=from_s, window_s=window_s))
        print(line_of(measured[-1]), flush=True)

    add("quickstart", replace(quickstart(), seed=1), 3, 4.0, QUICK_S)
    add("rlboost-14b", rlboost(DEMANDED_AT), DEMANDED_AT, BOOTED_S, WINDOW_S)
    at_goal = measured[-1]
    share = at_goal.simulated_per_s / DEMANDED
    print(f"{DEMANDED:g} simulated s per s are demanded there: {share:.2f} times that", flush=True)
    bare = BARE_RUNS / sum(1 / simulated_per_s(BARE_S, seed) for seed in range(BARE_RUNS))
    share = at_goal.simulated_per_s / bare
    print(f"three actors on a bare loop: {bare:.1f} simulated s per s; ours {share:.2f} of it", flush=True)
    for count in [int(text) for text in args.instances.split(",") if text]:
        add("curve", rlboost(count), count, BOOTED_S, CURVE_S)
    if args.hours:
        seconds = args.hours * 3600
        add(f"{args.hours:g} hours", rlboost(DEMANDED_AT, steps=1000), DEMANDED_AT, 0.0, seconds)
        print(f"{args.hours:g} hours of the job take {measured[-1].cpu_s:.1f} s of one core", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(speed) for speed in measured], indent=1) + "\n")
    if args.figure is not None:
        from bench import sim_speed_figure  # the others need no matplotlib

        curve = [
            sim_speed_figure.Point(one.instances, one.simulated_per_s, one.instance_ms, one.instance_turns)
            for one in measured
            if one.name == "curve"
        ]
        print(sim_speed_figure.write(curve, DEMANDED, DEMANDED_AT, args.figure))
    return 0


if __name__ == "__main__":
    sys.exit(main())
