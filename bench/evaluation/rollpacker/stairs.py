"""Figures of stairs (docs/seeding.md): RollPacker's 7B job with and without them.

    python -m bench.evaluation.rollpacker.stairs                 a table, some minutes of one core
    python -m bench.evaluation.rollpacker.stairs --write-docs    and the table of docs/seeding.md

Owns the choice of jobs and the table. Each job has five steps, a whole period of rounds, on virtual time; its
first step has no plan of the model yet.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.evaluation.rollpacker.grid import PERIOD, alone
from bench.evaluation.rollpacker.setups import setting
from bench.page_sections import put
from gleaner.actors.training.records import Round, Step
from gleaner.sim.cluster import SimCluster

PAGE = Path(__file__).parents[3] / "docs" / "seeding.md"
MODEL, SEED = "7b-8k", 0
JOBS = {
    "plain steps": ("off", "stairs-paper", "stairs-model"),
    '`rounds.mode = "tail"`': ("tail", "tail-stairs-paper", "tail-stairs-model"),
}
"""Variants of `setups`, in the order of the columns."""


def measured(variant: str) -> tuple[float, float, int]:
    """Seconds of all steps, seconds of the long round (0: there is none), and the number of stairs. Raises
    RuntimeError for a job that did not end."""
    outcome = SimCluster(setting(alone(MODEL, variant, SEED, PERIOD))).run()
    if outcome.ended != "done":
        raise RuntimeError(f"the job of {variant} ended as {outcome.ended}: {outcome.reason}")
    steps = [record for record in outcome.history if isinstance(record, Step)]
    rounds = {one.step: one.round for one in outcome.history if isinstance(one, Round)}
    long_s = sum(step.step_s for step in steps if rounds.get(step.step) == "long")
    return sum(step.step_s for step in steps), long_s, sum(step.stair_s is not None for step in steps)


def table() -> str:
    """Markdown: seconds of each job, by the setting of stairs."""
    lines = ["| | `off` | `paper` | `model` |", "|---|---:|---:|---:|"]
    for name, variants in JOBS.items():
        found = [measured(variant) for variant in variants]
        cells = [
            f"{total_s:.0f} ({stairs} stairs)" if stairs else f"{total_s:.0f}" for total_s, _, stairs in found
        ]
        lines.append(f"| {name}: {PERIOD} steps, seconds | {' | '.join(cells)} |")
        if any(long_s for _, long_s, _ in found):
            lines.append(
                f"| of these the long round | {' | '.join(f'{long_s:.0f}' for _, long_s, _ in found)} |"
            )
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.evaluation.rollpacker.stairs", description=__doc__)
    parser.add_argument("--write-docs", action="store_true", help="replace the table of docs/seeding.md")
    options = parser.parse_args(words)
    made = table()
    print(made)
    if options.write_docs:
        put(PAGE, "stairs", made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
