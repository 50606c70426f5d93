"""Measures recoveries.

Usage: `python -m bench.recovery [--kills N] [--returns N] [--json FILE] [--write-docs]`.
"""

import argparse
import json
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.recovery import engine_deaths, manager_deaths, page
from bench.recovery.goals import goals
from bench.runtime.harness import ROOT
from bench.runtime.machine import machine
from bench.runtime.table import VERDICTS, figure

RESULTS = ROOT / "docs" / "recovery.json"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="engines killed (30)")
    parser.add_argument("--stops", type=int, default=5, help="engines stopped, so that they fall silent (5)")
    parser.add_argument("--returns", type=int, default=5, help="managers killed (5)")
    parser.add_argument("--requests", type=int, default=10_000, help="in flight meanwhile (10000)")
    parser.add_argument(
        "--step-s", type=float, default=0.25, help="a decode step of a modelled engine (0.25)"
    )
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="a setting of the job")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help=f"write the section of docs/benchmarks.md from --json, or {RESULTS.name}; measures nothing",
    )
    arguments = parser.parse_args()
    console = Console(width=130, soft_wrap=False)
    if arguments.write_docs:
        page.write(json.loads((arguments.json or RESULTS).read_text()), ROOT / "docs")
        return
    before, began = machine(), datetime.now(UTC)

    def say(line: str) -> None:
        console.print(line, highlight=False)

    died, came = None, []
    with tempfile.TemporaryDirectory(prefix="gleaner-bench-") as folder:
        if arguments.returns:
            came = manager_deaths.measure(
                Path(folder), arguments.requests, arguments.returns, arguments.step_s, APART_S, say
            )
        if arguments.kills or arguments.stops:
            died = engine_deaths.measure(Path(folder), arguments.kills, arguments.stops, arguments.set, say)
    table = Table("what", "measured", "at most", "verdict", title="Recoveries")
    for goal in goals(died, came):
        table.add_row(goal.what, f"{figure(goal.value)} {goal.unit}", f"{goal.bound:g}", VERDICTS[goal.met])
    for line in page.lines(died, came):
        say(line)
    console.print(table)
    if arguments.json is not None:
        written = {
            "began": began.isoformat(timespec="seconds"),
            "took_s": round((datetime.now(UTC) - began).total_seconds()),
            "machine": before,
            "deaths": asdict(died) if died is not None else None,
            "returns": [asdict(one) for one in came],
        }
        arguments.json.write_text(json.dumps(written, indent=1) + "\n")


APART_S = 5.0
"""Decoding before each death of the manager: longer than a supervisor of the bench remembers the last one."""


if __name__ == "__main__":
    main()
