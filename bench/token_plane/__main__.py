"""Measures the token plane.

Usage: `python -m bench.token_plane [--quick] [--json FILE] [--write-docs]`.
"""

import argparse
import json
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.runtime.harness import ROOT
from bench.runtime.machine import machine
from bench.runtime.table import VERDICTS, figure
from bench.token_plane import figure as drawing
from bench.token_plane import manager_rate, memory, page, router
from bench.token_plane.goals import goals
from bench.token_plane.memory import MemoryUse
from bench.token_plane.sizes import Sizes, SystemResult

RESULTS = ROOT / "docs" / "token_plane.json"


def measure(sizes: Sizes, console: Console) -> tuple[list[SystemResult], list[MemoryUse]]:
    """Everything, in one run."""
    python = router.environment()
    if python is None:
        console.print("SKIPPED: the router has no environment here; `make bench-peers` makes it")
    found: list[SystemResult] = []
    with tempfile.TemporaryDirectory(prefix="gleaner-bench-") as folder:
        found += manager_rate.measure(sizes, Path(folder))
        if python is not None:
            found += router.measure(python, sizes, Path(folder))
    return found, [memory.measure(requests) for requests in sizes.requests]


def show(found: list[SystemResult], held: list[MemoryUse], console: Console) -> None:
    """The tables."""
    table = Table("rows", "system", title="Tokens into one process")
    for column in ("tokens/s", "CPU s / M", "router's", "p50 ms", "p99 ms", "full p50", "full p99"):
        table.add_column(column, justify="right")
    for one in sorted(found, key=lambda one: one.rows):
        table.add_row(str(one.rows), one.system, *page.figures(one))
    console.print(table)
    for goal in goals(found):
        bound = "not measured" if goal.bound is None else f"{goal.bound:,.0f}"
        console.print(f"{goal.what}: {goal.ours:,.0f} tokens/s, goal {bound}: {VERDICTS[goal.met]}")
    for state in held:
        cost = f"{figure(state.bytes_per_request)} bytes each, {figure(state.bytes_per_token)} a token"
        console.print(f"{state.requests:,} requests in flight: {state.refused or cost}", highlight=False)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.token_plane", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, for looking only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help=f"write the section of docs/benchmarks.md and its plot from --json, or {RESULTS.name}; "
        "measures nothing",
    )
    arguments = parser.parse_args()
    console = Console(width=120, soft_wrap=False)
    if arguments.write_docs:
        results = json.loads((arguments.json or RESULTS).read_text())
        page.write(results, ROOT / "docs")
        drawing.write(results, ROOT / "docs" / "images")
        return
    sizes = Sizes.quick() if arguments.quick else Sizes()
    before, began = machine(), datetime.now(UTC)
    found, held = measure(sizes, console)
    show(found, held, console)
    if arguments.json is not None:
        written = {
            "began": began.isoformat(timespec="seconds"),
            "took_s": round((datetime.now(UTC) - began).total_seconds()),
            "machine": before,
            "sizes": asdict(sizes),
            "found": [asdict(one) for one in found],
            "memory": [asdict(one) for one in held],
        }
        arguments.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
