"""Two real runs, one undisturbed and one whose hosts vanish, compared.

`python -m bench.evaluation.exact_runs`. Owns the comparison of their rewards and final weights (R13): with
`job.exact` they are the same bits.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from bench.evaluation.simulated import ROOT
from bench.page_sections import put
from gleaner.actors.training.history import read_history
from gleaner.actors.training.records import Node, Step

STEPS = 12
RUN_S = 900.0
EXACT = ("job.exact=true", f"job.steps={STEPS}")
RUNS = {"undisturbed": ("fleet.trace=",), "preempted": ()}
"""The second one under the quickstart's trace, which kills a host every few seconds."""
IMAGE = "evaluation_exact.png"


def run(folder: Path, sets: Sequence[str]) -> dict[str, object]:
    """A real quickstart to its end. Raises CalledProcessError, TimeoutExpired."""
    words = [arg for one in (*EXACT, *sets) for arg in ("--set", one)]
    argv = [sys.executable, "-m", "gleaner.rlctl", "run", "quickstart", *words, "--runs-dir", str(folder)]
    subprocess.run(argv, check=True, timeout=RUN_S, stdout=subprocess.DEVNULL)
    (found,) = [path for path in folder.iterdir() if (path / "history.jsonl").exists()]
    records = read_history(found / "history.jsonl")
    (weights,) = (found / "checkpoints" / f"step-{STEPS:06d}").glob("model.safetensors")
    gone = [record for record in records if isinstance(record, Node) and record.event == "killed"]
    return {
        "rewards": [record.reward for record in records if isinstance(record, Step)],
        "killed": len(gone),
        "weights": hashlib.sha256(weights.read_bytes()).hexdigest(),
    }


def draw(found: dict[str, dict[str, object]], file: Path) -> None:
    """Both reward curves."""
    drawing, panel = pyplot.subplots(figsize=(6, 3))
    for (name, one), style in zip(found.items(), ("-", "--"), strict=True):
        rewards = one["rewards"]
        assert isinstance(rewards, list)
        panel.plot(range(1, len(rewards) + 1), rewards, style, label=f"{name}, {one['killed']} hosts killed")
    panel.set(xlabel="step", ylabel="mean reward")
    panel.legend(fontsize=8)
    drawing.tight_layout()
    drawing.savefig(file, dpi=110)
    pyplot.close(drawing)


def text(found: dict[str, dict[str, object]], same: bool) -> str:
    """Text for the page."""
    peace, hit = found["undisturbed"], found["preempted"]
    verdict = "equal bit for bit" if same else "**not equal**"
    image = f"![Mean reward of each step of both runs: one line](images/{IMAGE})"
    return (
        "R13 (the paper's figure 15: rewards as veRL's) cannot be simulated. Two real quickstarts "
        f"with `job.exact`, {STEPS} steps, one undisturbed ({peace['killed']} hosts killed), one under the "
        f"preset's trace ({hit['killed']} killed): rewards and final weights are {verdict} "
        f"(SHA-256 of `model.safetensors`: `{str(hit['weights'])[:16]}...`). "
        f"`python -m bench.evaluation.exact_runs` repeats it.\n\n{image}"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.evaluation.exact_runs", description=__doc__)
    parser.add_argument("--write-docs", action="store_true", help="into docs/evaluation.md, with the plot")
    arguments = parser.parse_args()
    found: dict[str, dict[str, object]] = {}
    for name, sets in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = run(Path(folder), sets)
            print(json.dumps({name: found[name]}), flush=True)
    first, second = found.values()
    same = (first["rewards"], first["weights"]) == (second["rewards"], second["weights"])
    print("equal bit for bit" if same else "NOT equal")
    if arguments.write_docs:
        draw(found, ROOT / "docs" / "images" / IMAGE)
        put(ROOT / "docs" / "evaluation.md", "exact", text(found, same))
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
