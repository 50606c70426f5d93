"""The results as one figure: a panel a row, a bar a system, every round a dot, the goal a line."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes

from bench.runtime.rows import OURS, ROWS, RowSpec, Samples, bound_of, middle
from bench.runtime.table import figure as shown

COLUMNS = 3
NAME = "benchmarks.png"
_COLOURS = {OURS: "#1b7f5c", "pyzmq": "#888888"}
_PEER = "#9db4c8"
_LOG_SPAN = 12.0
"""Largest over smallest from which a panel is logarithmic: below, a linear axis from zero shows more."""


def write(results: Mapping[str, Any], directory: Path) -> Path:
    """Draw what was measured into `directory`; returns the file."""
    samples: Samples = results["samples"]
    specs = [spec for spec in ROWS if spec.name in samples]
    rows = math.ceil(len(specs) / COLUMNS)
    drawing, axes = pyplot.subplots(rows, COLUMNS, figsize=(15, 2.7 * rows), squeeze=False)
    for axis, spec in zip(axes.flat, specs, strict=False):
        _panel(axis, spec, samples)
    for axis in list(axes.flat)[len(specs) :]:
        axis.set_visible(False)
    drawing.tight_layout()
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / NAME
    drawing.savefig(file, dpi=110)
    pyplot.close(drawing)
    return file


def _panel(axis: Axes, spec: RowSpec, samples: Samples) -> None:
    metric = spec.metrics[0]
    medians = {system: middle(samples, spec.name, system, metric.name) for system in spec.systems}
    present = {system: value for system, value in medians.items() if value is not None}
    finite = [value for value in present.values() if not math.isnan(value) and value > 0]
    goals = [goal for goal in spec.goals if goal.metric == metric.name]
    bounds = [bound for goal in goals if (bound := bound_of(spec, goal, samples)) is not None]
    span = [*finite, *(bound for bound in bounds if bound > 0)]
    if span and max(span) / min(span) >= _LOG_SPAN:
        axis.set_xscale("log")
        axis.set_xlim(min(span) / 3, max(span) * 6)
    elif span:
        axis.set_xlim(0, max(span) * 1.35)
    for place, (system, value) in enumerate(present.items()):
        if math.isnan(value):
            axis.text(
                0.02, place, "never noticed", transform=axis.get_yaxis_transform(), va="center", fontsize=8
            )
            continue
        axis.barh(place, value, color=_COLOURS.get(system, _PEER), height=0.7)
        rounds = [one for one in samples[spec.name][system][metric.name] if not math.isnan(one)]
        axis.plot(rounds, [place] * len(rounds), "k.", markersize=3, alpha=0.6)
        axis.annotate(
            shown(value),
            (max([value, *rounds]), place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    for bound in bounds:
        axis.axvline(bound, color="#c0392b", linestyle="--", linewidth=1)
    axis.set_yticks(range(len(present)), list(present))
    axis.invert_yaxis()
    better = "less" if metric.lower else "more"
    axis.set_title(
        f"{spec.title}\n{metric.label} ({better} is better)",
        fontsize=9,
    )
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
