"""Compares what the shipped job learns with rounds and without.

Usage: `python -m bench.quickstart.rounds [--seeds N] [--json FILE]`. Real processes: a run takes half a
minute on two cores. Exit code 0 if the mean held-out reward with rounds is within the plain runs' range; 1
if it is not, or a run failed.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table

from bench.quickstart.contenders import CommandFailed, Outcome, on_gleaner
from bench.quickstart.inputs import prepared

PLAIN, ROUNDS = "off", "tail"
RUNS = {mode: on_gleaner(f"rounds.mode={mode}") for mode in (PLAIN, ROUNDS)}
Found = Mapping[str, Sequence[Outcome]]
"""By mode of rounds, in the order of the seeds."""


def within(found: Found) -> bool:
    """Whether the mean held-out reward with rounds, after the last step, is between the least and the most
    of the plain runs."""
    plain = [one.last for one in found[PLAIN]]
    return min(plain) <= mean(one.last for one in found[ROUNDS]) <= max(plain)


def table(found: Found) -> Table:
    """A row a run, and the means."""
    shown = Table(title="The quickstart with rounds and without: held-out rewards")
    for column in ("rounds.mode", "seed", "before", "after", "steps", "all steps, s"):
        shown.add_column(column, justify="right")
    for mode, outcomes in found.items():
        for seed, one in enumerate(outcomes):
            figures = f"{one.first:.3f}", f"{one.last:.3f}", str(len(one.each_s)), f"{sum(one.each_s):.1f}"
            shown.add_row(mode, str(seed), *figures)
        means = mean(one.first for one in outcomes), mean(one.last for one in outcomes)
        shown.add_row(mode, "mean", *(f"{reward:.3f}" for reward in means), "", "", end_section=True)
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.quickstart.rounds", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each mode (3), from seed 0 on")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="a setting of all runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    arguments = parser.parse_args(argv)
    if arguments.seeds < 1:
        parser.error(f"--seeds {arguments.seeds}: expected 1 or more")
    console = Console()
    found: dict[str, list[Outcome]] = {mode: [] for mode in RUNS}
    with tempfile.TemporaryDirectory(prefix="gleaner-bench-") as scratch:
        for seed in range(arguments.seeds):
            job = prepared("quickstart", arguments.set, seed, Path(scratch) / f"job-{seed}")
            for mode, run in RUNS.items():
                folder = Path(scratch) / f"{mode}-{seed}"
                folder.mkdir()
                try:
                    found[mode].append(run(job, folder))
                except CommandFailed as problem:
                    console.print(f"rounds.mode={mode}, seed {seed}: {problem}", highlight=False)
                    return 1
                reward = found[mode][-1].last
                console.print(f"rounds.mode={mode}, seed {seed}: held-out {reward:.3f}", highlight=False)
    console.print(table(found))
    inside = within(found)
    range_ = "within" if inside else "outside"
    console.print(f"The mean with rounds is {range_} the range of the plain runs.", highlight=False)
    if arguments.json is not None:
        made = {mode: [asdict(one) for one in outcomes] for mode, outcomes in found.items()}
        arguments.json.write_text(json.dumps({"settings": arguments.set, "runs": made}, indent=1) + "\n")
    return 0 if inside else 1


if __name__ == "__main__":
    sys.exit(main())
