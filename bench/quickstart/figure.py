"""Figure of the comparison: seconds of every step, a line for each side."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt


def draw(results: Mapping[str, Any], file: Path) -> None:
    """Medians over the seeds as lines, every job as dots."""
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    for number, (name, jobs) in enumerate(results["sides"].items()):
        steps = range(1, 1 + min(len(job["each_s"]) for job in jobs))
        middle = [median(job["each_s"][step - 1] for job in jobs) for step in steps]
        axes.plot(steps, middle, color=f"C{number}", label=f"{name}: {sum(middle):.0f} s")
        for job in jobs:
            axes.plot(range(1, 1 + len(job["each_s"])), job["each_s"], ".", color=f"C{number}", alpha=0.3)
    axes.set_xlabel("step")
    axes.set_ylabel("seconds")
    axes.set_ylim(bottom=0)
    axes.set_title("The same job, step by step: medians of the seeds, each job a dot")
    axes.legend(frameon=False)
    figure.savefig(file, dpi=110)
    plt.close(figure)
