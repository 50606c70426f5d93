"""Share of the weights that a step changes.

Usage: `python -m bench.weights.change_rates [--json F] [--write-docs]`. Simulated: `simulated_adam` at three
learning rates. Real: the quickstart's job (`rlctl run`, its model, its trainer, no preemption) at its own
learning rate and at 1e-6, read from the checkpoints of consecutive steps; its weights as they are, float32,
and as the bfloat16 that large models are served in.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from bench import page_sections
from bench.runtime.machine import machine
from bench.runtime.table import figure
from bench.weights.simulated_adam import bfloat16, versions
from gleaner.actors.training.policy_update import MODEL
from gleaner.actors.training.trainer_files import STATE_FILE
from gleaner.actors.weights.delta.codec import encode_chunk
from gleaner.rlctl.runs import every

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "change_rates.json"
NAME = "change rates"

RATES = (1e-7, 1e-6, 1e-5)
ELEMENTS, STEPS = 4 << 20, 40
APART = (1, 2, 4, 8)
"""Versions between the two that are compared: a receiver may have missed some."""
OWN, SMALL = 4e-4, 1e-6
"""Learning rates of the quickstart's job: configs/quickstart.toml's, and that of a large model."""
REAL_STEPS = 24
"""The quickstart's: the change of a step depends on the progress of the training."""
CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Change:
    """Between two versions, `apart` steps of each other, medians over the pairs. Shares of 1: `elements`
    that differ, and of those that went to the next number (`next_number`); `delta`: bytes of the delta of the
    image. `first`: from the initial weights, whose optimizer has no history; `last`: between the last two."""

    what: str
    learning_rate: float
    dtype: str
    apart: int
    first: bool
    elements: float
    next_number: float
    delta: float
    last: bool = False


def compared(
    what: str,
    learning_rate: float,
    dtype: str,
    images: Sequence[NDArray[Any]],
    apart: int,
    first: bool,
    last: bool = False,
) -> Change:
    """The change between images `apart` steps of each other: all such pairs, or the first. `last`: they are a
    run's last ones."""
    found = []
    for old, new in list(zip(images, images[apart:], strict=False))[: 1 if first else None]:
        changed = old != new
        steps = np.abs(new.astype(np.int64) - old.astype(np.int64))[changed]
        found.append((changed.mean(), (steps == 1).mean() if steps.size else 0.0, delta_share(old, new)))
    elements, next_number, delta = (float(median(column)) for column in zip(*found, strict=True))
    return Change(what, learning_rate, dtype, apart, first, elements, next_number, delta, last)


def delta_share(old: NDArray[Any], new: NDArray[Any]) -> float:
    """Bytes of the delta, in chunks as an image has them, over the bytes of the image."""
    was, now = old.data.cast("B"), new.data.cast("B")
    width = 4 if old.itemsize == 4 else 1
    parts = [slice(at, at + CHUNK_BYTES) for at in range(0, len(now), CHUNK_BYTES)]
    sent = sum(len(encode_chunk(was[part], now[part], width)[1]) for part in parts)
    return sent / len(now)


def simulated(elements: int, steps: int) -> Iterator[Change]:
    """Changes of weights under Adam, at each learning rate."""
    for rate in RATES:
        kept: deque[NDArray[np.uint16]] = deque(maxlen=max(APART) + 1)
        for number, image in enumerate(versions(rate, elements, steps, seed=2)):
            kept.append(image)
            if number == 1:
                yield compared("simulated", rate, "bfloat16", list(kept), 1, True)
        last = list(kept)
        for apart in APART:
            yield compared("simulated", rate, "bfloat16", last[-1 - apart :], apart, False)


def real(learning_rate: float, steps: int) -> Iterator[Change]:
    """Changes of a job of this machine."""
    with tempfile.TemporaryDirectory(prefix="gleaner-bench-") as folder:
        settings = {
            "job.steps": steps,
            "training.learning_rate": learning_rate,
            "training.checkpoint_keep": steps + 1,
            "fleet.trace": "",
            "fleet.n_prem_max": 1,
            "task.heldout_problems": 8,
        }
        sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        config = str(ROOT / "configs" / "quickstart.toml")
        command = [
            sys.executable,
            "-m",
            "gleaner.rlctl",
            "run",
            config,
            "--plain",
            "--runs-dir",
            folder,
            *sets,
        ]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        (run,) = every(Path(folder))
        images = [master(path / STATE_FILE) for path in sorted(run.checkpoints.glob("step-*"))]
    if len(images) < 3:
        raise RuntimeError(f"{len(images)} checkpoints of {steps} steps: nothing to compare")
    for dtype, given in (
        ("bfloat16", [bfloat16(image) for image in images]),
        ("float32", [image.view(np.uint32) for image in images]),
    ):
        for apart in (one for one in (1, 4) if one < len(given)):
            yield compared("quickstart", learning_rate, dtype, given, apart, False)
        yield compared("quickstart", learning_rate, dtype, given[-2:], 1, False, last=True)


def master(file: Path) -> NDArray[np.float32]:
    """The weights of a checkpoint, one after the other, float32 [parameters]."""
    state: Mapping[str, NDArray[np.float32]] = load_file(file)
    names = sorted(name for name in state if name.startswith(MODEL))
    return np.concatenate([state[name].reshape(-1) for name in names])


def lines(results: Mapping[str, Any]) -> list[str]:
    """The table."""
    heads = ("weights", "learning rate", "versions apart", "elements changed", "to the next number", "delta")
    found = [f"| {' | '.join(heads)} |", "|---|---:|---:|---:|---:|---:|"]
    for row in [Change(**one) for one in results["rows"]]:
        which = ", the first step" if row.first else ", the last step" if row.last else ""
        apart = f"{row.apart}{which}"
        shares = " | ".join(
            f"{figure(100 * share)} %" for share in (row.elements, row.next_number, row.delta)
        )
        found.append(f"| {row.what}, {row.dtype} | {row.learning_rate:g} | {apart} | {shares} |")
    return found


def text(results: Mapping[str, Any]) -> str:
    """The section of docs/weights.md."""
    return "\n".join(
        [
            f"Measured by `python -m bench.weights.change_rates --json docs/{RESULTS.name}`, begun at",
            f"{results['began']}, {results['took_s']} s; written by `--write-docs`. *To the next number*: of",
            "those elements, how many went to the next number of their format. *Delta*: bytes of the payload",
            "over those of the image. Medians over the pairs of versions, where there are several.",
            "",
            *lines(results),
        ]
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.weights.change_rates", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--steps", type=int, default=REAL_STEPS, help="of the real jobs; 0 for none")
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
    rows = list(simulated(ELEMENTS, STEPS))
    for rate in (OWN, SMALL) if arguments.steps else ():
        rows += real(rate, arguments.steps)
    written = {
        "began": began.isoformat(timespec="seconds"),
        "took_s": round((datetime.now(UTC) - began).total_seconds()),
        "machine": before,
        "rows": [asdict(row) for row in rows],
    }
    print("\n".join(lines(written)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
