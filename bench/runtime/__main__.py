"""Measures the actor runtimes side by side.

Usage: `python -m bench.runtime [--quick] [--only ROW] [--json FILE]`.
"""

import argparse
import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.runtime import figure, page
from bench.runtime.harness import ROOT, Results, available, measure
from bench.runtime.machine import machine
from bench.runtime.rows import ROWS, SYSTEMS, row
from bench.runtime.table import show
from bench.runtime.task import Sizes

RESULTS = ROOT / "docs" / "benchmarks.json"


def replaced(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """The results of `earlier` with the newly measured rows, and the time of their measurement.

    Raises ValueError where the two do not fit in one table.
    """
    for what in ("sizes", "rounds"):
        if earlier[what] != later[what]:
            raise ValueError(f"rows with other {what} do not belong together: measure all of them again")
    merged = dict(earlier)
    for part in ("samples", "notes", "versions"):
        merged[part] = {**earlier[part], **later[part]}
    dated = {"rows": sorted(later["samples"]), **{key: later[key] for key in ("began", "machine")}}
    before = [again for again in earlier.get("again", []) if not set(again["rows"]) <= set(dated["rows"])]
    merged["again"] = [*before, dated]
    return merged


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.runtime", description=__doc__)
    names = [spec.name for spec in ROWS]
    parser.add_argument("--rounds", type=int, default=5, help="alternated rounds; medians are shown (5)")
    parser.add_argument("--only", action="append", choices=names, metavar="ROW", help=", ".join(names))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="of these only")
    parser.add_argument("--quick", action="store_true", help="small sizes, for looking only")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the results here; with --only into what is there: the rows are replaced, and dated",
    )
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help=f"write docs/benchmarks.md and its plot from --json, or {RESULTS.name}; measures nothing",
    )
    arguments = parser.parse_args()
    console = Console(width=150, soft_wrap=False)
    if arguments.write_docs:
        written = json.loads((arguments.json or RESULTS).read_text())
        page.write(written, ROOT / "docs")
        figure.write(written, ROOT / "docs" / "images")
        return
    specs = [row(name) for name in arguments.only] if arguments.only else list(ROWS)
    sizes = Sizes.quick() if arguments.quick else Sizes()
    systems = available(arguments.systems, console.print)
    before = machine()
    began = datetime.now(UTC)
    results = Results()
    try:
        measure(
            specs,
            systems,
            arguments.rounds,
            sizes,
            lambda line: console.print(line, highlight=False),
            results,
        )
    finally:
        show(results, console)
        if arguments.json is not None:
            written = {
                "began": began.isoformat(timespec="seconds"),
                "took_s": round((datetime.now(UTC) - began).total_seconds()),
                "rounds": arguments.rounds,
                "sizes": asdict(sizes),
                "machine": before,
                **asdict(results),
            }
            if arguments.only and arguments.json.exists():
                written = replaced(json.loads(arguments.json.read_text()), written)
            arguments.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
