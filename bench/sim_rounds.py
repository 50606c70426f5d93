"""Speed of simulated jobs with rounds beside the same jobs without.

    python -m bench.sim_rounds                     RLBoost's setting, four steps, three seeds
    python -m bench.sim_rounds --seeds 5 --json rounds.json

A job with rounds takes longer by the cluster's clock and makes more tokens, which are thrown away in part. So
what the simulator takes is given for a simulated second and for a token that was made, in processor seconds
of this process; a ratio above 1 is of a simulator that is slower with rounds. The third figure is of the same
jobs: the share of their time in which the manager looks at races and decides them, the only work that a job
without rounds does not have.
"""

import argparse
import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from unittest import mock

from gleaner.actors.rollout.batches.group_selection import GroupSelection
from gleaner.configs.load import load
from gleaner.rlctl.commands.simulate import PRESETS
from gleaner.rlctl.cost_account import account_of
from gleaner.rlctl.what_if_setup import setting_of
from gleaner.sim.cluster import SimCluster

ALLOWED = 1.1
"""Processor time of a simulated second with rounds over that without."""


@dataclass(frozen=True, slots=True)
class Job:
    """One whole job. cpu_s: processor seconds; virtual_s: seconds of the cluster; tokens: made by modelled
    engines, each of which counts for 64 (`--token-scale` of `rlctl simulate`); race_s: of `cpu_s`, what the
    manager took for races."""

    mode: str
    seed: int
    cpu_s: float
    race_s: float
    virtual_s: float
    tokens: int

    @property
    def second_ms(self) -> float:
        """Processor milliseconds of a simulated second."""
        return 1e3 * self.cpu_s / self.virtual_s

    @property
    def token_us(self) -> float:
        """Processor microseconds of a modelled token."""
        return 1e6 * self.cpu_s / self.tokens


def measure(mode: str, seed: int, steps: int) -> Job:
    """Run RLBoost's setting with `rounds.mode` from its start to its end.

    Raises RuntimeError for a job that is not done: its figures would mean nothing.
    """
    config = load("rlboost-14b", [f"job.steps={steps}", f"rounds.mode={mode}"])
    cluster = SimCluster(replace(setting_of(config, PRESETS["rlboost-14b"]), seed=seed))
    with _races_timed() as races_s:
        begun_cpu_s = time.process_time()
        outcome = cluster.run()
        cpu_s = time.process_time() - begun_cpu_s
    if outcome.ended != "done":
        raise RuntimeError(f"seed {seed}, rounds.mode={mode}: {outcome.ended}: {outcome.reason}")
    account = account_of(cluster.history, config.prices)
    made = account.collected + account.wasted.get("generated_twice", 0)
    return Job(mode, seed, cpu_s, sum(races_s), cluster.loop.now_s, made)


@contextlib.contextmanager
def _races_timed() -> Iterator[list[float]]:
    """Processor seconds of each look at a race, and of each decision."""
    found: list[float] = []
    with contextlib.ExitStack() as patches:
        for name in ("look", "frame_arrived"):
            call = getattr(GroupSelection, name)

            def timed(*args: object, call: Callable[..., object] = call) -> None:
                begun_s = time.process_time()
                call(*args)
                found.append(time.process_time() - begun_s)

            patches.enter_context(mock.patch.object(GroupSelection, name, timed))
        yield found


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.sim_rounds", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4, help="of each job: at least a whole period")
    parser.add_argument("--seeds", type=int, default=3, help="jobs of each mode")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    args = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)  # as a campaign does
    jobs: list[Job] = []
    for seed in range(args.seeds):
        for mode in ("off", "tail"):
            job = measure(mode, seed, args.steps)
            jobs.append(job)
            print(
                f"seed {seed}  {mode:4}  {job.cpu_s:6.1f} s of one core  {job.virtual_s:7.1f} simulated s  "
                f"{job.tokens:7,} modelled tokens  {job.second_ms:6.2f} ms a simulated s  "
                f"{job.token_us:5.1f} us a token",
                flush=True,
            )
    pairs = list(zip(jobs[::2], jobs[1::2], strict=True))
    second = median(tail.second_ms / off.second_ms for off, tail in pairs)
    token = median(tail.token_us / off.token_us for off, tail in pairs)
    print(f"rounds: {second:.2f} of the time of a simulated second without ({ALLOWED:g} is allowed)")
    print(f"        {token:.2f} of the time of a token")
    race = median(tail.race_s / tail.cpu_s for _, tail in pairs)
    print(f"        {race:.1%} of the time is the manager's, for races")
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(job) for job in jobs], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
