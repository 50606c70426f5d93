"""Measures the shipped job beside TRL's.

Usage: `python -m bench.quickstart [--seeds N] [--json FILE]`.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from bench.quickstart import page
from bench.quickstart.contenders import SIDES, TRL, CommandFailed
from bench.quickstart.inputs import parameters, prepared
from bench.runtime.harness import ROOT
from bench.runtime.machine import machine

RESULTS = ROOT / "docs" / "quickstart.json"


def main() -> int:
    """The command line; 1 where a side failed, 2 where TRL is missing."""
    parser = argparse.ArgumentParser(prog="python -m bench.quickstart", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="jobs of each side (3)")
    parser.add_argument("--preset", default="quickstart", help="settings whose job it is (quickstart)")
    parser.add_argument("--only", action="append", metavar="SIDE", help=f"of {', '.join(SIDES)}; may repeat")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="a setting of all sides")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help=f"write the section of docs/benchmarks.md from --json, or {RESULTS.name}; measures nothing",
    )
    arguments = parser.parse_args()
    console = Console(width=130, soft_wrap=False)
    if arguments.write_docs:
        larger = json.loads(RESULTS.with_name(page.LARGER).read_text())
        page.write(json.loads((arguments.json or RESULTS).read_text()), larger, ROOT / "docs")
        return 0
    names = arguments.only or list(SIDES)
    if unknown := [name for name in names if name not in SIDES]:
        parser.error(f"there is no side {unknown[0]!r}; there are {', '.join(SIDES)}")
    if "TRL" in names and not TRL.exists():
        parser.error(f"{TRL} is not there: run `make bench-quickstart` first, or name other sides by --only")
    results = {
        "machine": machine(),
        "began": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "preset": arguments.preset,
        "settings": arguments.set,
    }
    found: dict[str, list[dict[str, object]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="gleaner-bench-") as scratch:
        # One step of each, not measured: it compiles the imports, and reads them from the disk.
        warm = prepared(arguments.preset, [*arguments.set, "job.steps=1"], 0, Path(scratch) / "warm")
        for at, name in enumerate(names):
            folder = Path(scratch) / f"warm-{at}"
            folder.mkdir()
            try:
                SIDES[name](warm, folder)
            except CommandFailed as problem:
                console.print(f"{name}, before the first seed: {problem}", highlight=False)
                return 1
        for seed in range(arguments.seeds):
            job = prepared(arguments.preset, arguments.set, seed, Path(scratch) / f"job-{seed}")
            results["parameters"] = parameters(job.model)
            # A side runs first for one seed and last for another, because the machine's speed varies.
            turn = seed % len(names)
            for name in names[turn:] + names[:turn]:
                folder = Path(scratch) / f"{seed}-{names.index(name)}"
                folder.mkdir()
                try:
                    outcome = SIDES[name](job, folder)
                except CommandFailed as problem:
                    console.print(f"{name}, seed {seed}: {problem}", highlight=False)
                    return 1
                found[name].append({"seed": seed, **asdict(outcome)})
                console.print(page.line(name, seed, outcome), highlight=False)
    results["sides"] = found
    console.print(page.table(results))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
