"""Bytes that deltas save in a job.

Usage: `python -m bench.weights.job_deltas [--json F] [--write-docs]`. The quickstart's job as it is, with its
preempted hosts, at the learning rate of a large model, at ten times that and at its own; once with weights of
float32. The job's own report has the bytes that its instances pulled.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import page_sections
from bench.runtime.machine import machine
from gleaner.rlctl.runs import every

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "job_deltas.json"
NAME = "deltas of a job"

CASES = ((1e-6, "bfloat16"), (1e-5, "bfloat16"), (4e-4, "bfloat16"), (1e-6, "float32"))
STEPS = 24


@dataclass(frozen=True, slots=True)
class Row:
    """One run. Versions that instances received, and their bytes, as deltas and whole; `image_bytes`: bytes
    of all of them as images."""

    learning_rate: float
    dtype: str
    delta_versions: int
    delta_bytes: int
    whole_versions: int
    whole_bytes: int
    image_bytes: int

    @property
    def spared(self) -> float:
        """Saved share of the bytes."""
        return 1 - (self.delta_bytes + self.whole_bytes) / max(1, self.image_bytes)


def run(learning_rate: float, dtype: str, steps: int) -> Row:
    """A job, as a user starts it."""
    with tempfile.TemporaryDirectory() as folder:
        settings = (
            f"training.learning_rate={learning_rate}",
            f"training.rollout_dtype={dtype}",
            f"job.steps={steps}",
        )
        command = [sys.executable, "-m", "gleaner.rlctl", "run", "quickstart", "--runs-dir", folder]
        command += [word for one in settings for word in ("--set", one)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        report = json.loads((every(Path(folder))[0].path / "report.json").read_text())
    return Row(learning_rate, dtype, **report["weights"])


def lines(results: Mapping[str, Any]) -> Iterator[str]:
    """The table."""
    yield "| learning rate | weights | as what changed | whole | pulled | images of all | spared |"
    yield "|---:|---|---:|---:|---:|---:|---:|"
    for one in results["rows"]:
        row = Row(**one)
        pulled = row.delta_bytes + row.whole_bytes
        yield (
            f"| {row.learning_rate:g} | {row.dtype} | {row.delta_versions} | {row.whole_versions} | "
            f"{pulled / 1e6:.2f} MB | {row.image_bytes / 1e6:.2f} MB | {row.spared:.0%} |"
        )


def text(results: Mapping[str, Any]) -> str:
    """The section of docs/weights.md."""
    return "\n".join(
        [
            "Measured by `python -m bench.weights.job_deltas --json docs/job_deltas.json`, begun at",
            f"{results['began']}, {results['took_s']} s; written by `--write-docs`. Versions that came to",
            f"instances in a run of {results['steps']} steps; a host that joins has none before.",
            "",
            *lines(results),
        ]
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.weights.job_deltas", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each job (default: {STEPS})")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help=f"write the section of docs/weights.md from --json, or {RESULTS.name}; measures nothing",
    )
    arguments = parser.parse_args()
    if arguments.write_docs:
        results = json.loads((arguments.json or RESULTS).read_text())
        page_sections.put(ROOT / "docs" / "weights.md", NAME, text(results))
        return
    before, began = machine(), datetime.now(UTC)
    rows = [run(*case, arguments.steps) for case in CASES]
    written = {
        "began": began.isoformat(timespec="seconds"),
        "took_s": round((datetime.now(UTC) - began).total_seconds()),
        "machine": before,
        "steps": arguments.steps,
        "rows": [asdict(row) for row in rows],
    }
    print("\n".join(lines(written)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
