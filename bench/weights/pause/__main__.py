"""Measures the cost of new weights to an engine's users.

Usage: `python -m bench.weights.pause [--json FILE] [--write-docs] [--python .engines/sglang/bin/python]
[--engines builtin,sglang]`.
"""

import argparse
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.console import Console

from bench.runtime.harness import ROOT
from bench.runtime.machine import machine
from bench.weights.pause import page
from bench.weights.pause.measurement import EngineResult, Sizes, measure

RESULTS = ROOT / "docs" / "pause.json"
PYTHON = ROOT / ".engines" / "sglang" / "bin" / "python"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.weights.pause", description=__doc__)
    parser.add_argument("--engines", default="builtin,sglang", help="which, in this order (builtin,sglang)")
    parser.add_argument("--python", type=Path, default=PYTHON, help=f"that has SGLang ({PYTHON})")
    parser.add_argument("--versions", type=int, default=Sizes().versions, help="of each kind (5)")
    parser.add_argument("--joins", type=int, default=Sizes().joins, help="hosts that join (2)")
    parser.add_argument("--baselines", type=int, default=Sizes().baselines, help="rounds of these (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help=f"write the section of docs/benchmarks.md and its picture from --json, or {RESULTS.name}; "
        "measures nothing",
    )
    arguments = parser.parse_args()
    if arguments.write_docs:
        page.write(json.loads((arguments.json or RESULTS).read_text()), ROOT / "docs")
        return
    engines = arguments.engines.split(",")
    if not set(engines) <= {"builtin", "sglang"}:
        sys.exit(f"--engines: expected builtin, sglang or both, got {arguments.engines!r}")
    if "sglang" in engines and not arguments.python.exists():
        sys.exit(f"there is no {arguments.python}: `make engines` makes it; or --engines builtin")
    console = Console(width=130, soft_wrap=False)
    before, began = machine(), datetime.now(UTC)
    torch.set_num_threads(1)
    sizes = Sizes(versions=arguments.versions, joins=arguments.joins, baselines=arguments.baselines)

    def say(line: str) -> None:
        console.print(line, highlight=False)

    found: list[EngineResult] = []
    for engine in engines:
        found.append(measure(engine, arguments.python, sizes, say))
        results = {
            "began": began.isoformat(timespec="seconds"),
            "took_s": round((datetime.now(UTC) - began).total_seconds()),
            "machine": before,
            "load": asdict(sizes.load),
            "flips": [asdict(flip) for one in found for flip in one.flips],
            "joins": [asdict(join) for one in found for join in one.joins],
        }
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    for line in page.tables(results):
        say(line)


if __name__ == "__main__":
    main()
