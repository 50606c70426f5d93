"""Figure of the simulator's speed and cost of an instance, by cluster size."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.ticker import ScalarFormatter

NAME = "sim_speed.png"
_OURS, _DEMAND, _TURNS = "#1b7f5c", "#c0392b", "#5b7a99"


@dataclass(frozen=True, slots=True)
class Point:
    """One size of the cluster. instance_ms: processor milliseconds of one instance for a simulated second;
    instance_turns: its callbacks."""

    instances: int
    simulated_per_s: float
    instance_ms: float
    instance_turns: float


def write(curve: Sequence[Point], demanded: float, demanded_at: int, directory: Path) -> Path:
    """Draw the curve into `directory`; returns the file."""
    sizes = [point.instances for point in curve]
    drawing, (speed, cost) = pyplot.subplots(1, 2, figsize=(11, 3.8))
    speed.plot(sizes, [point.simulated_per_s for point in curve], "o-", color=_OURS, label="measured")
    speed.plot([demanded_at], [demanded], "D", color=_DEMAND, label=f"demanded at {demanded_at}")
    speed.plot(
        sizes,
        [demanded * demanded_at / size for size in sizes],
        "--",
        color=_DEMAND,
        linewidth=1,
        label="the same, cost in proportion",
    )
    speed.set_xscale("log")
    speed.set_yscale("log")
    speed.set_title("simulated seconds for a second of one core", fontsize=10)
    cost.plot(sizes, [point.instance_ms for point in curve], "o-", color=_OURS, label="milliseconds")
    cost.set_xscale("log")
    cost.set_ylim(0, 1.25 * max(point.instance_ms for point in curve))
    cost.set_ylabel("milliseconds of one core")
    cost.set_title("what one instance costs for a simulated second", fontsize=10)
    beside = cost.twinx()
    beside.plot(sizes, [point.instance_turns for point in curve], "s:", color=_TURNS, label="callbacks")
    beside.set_ylim(0, 1.25 * max(point.instance_turns for point in curve))
    beside.set_ylabel("callbacks")
    lines = [*cost.get_lines(), *beside.get_lines()]
    cost.legend(lines, [str(line.get_label()) for line in lines], fontsize=8, loc="lower right")
    speed.legend(fontsize=8)
    for axes in (speed, cost):
        axes.set_xlabel("preemptible instances")
        axes.set_xticks(sizes)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.spines[["top"]].set_visible(False)
    drawing.tight_layout()
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / NAME
    drawing.savefig(file, dpi=110)
    pyplot.close(drawing)
    return file
