"""Figure: a panel a row, a bar a system, a dot a round, a line a goal."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes

from bench.runtime.rows import OURS, ROWS, RowSpec, Samples, bound_of, met, middle
from bench.runtime.table import figure as shown

COLUMNS = 3
NAME = "benchmarks.png"
_COLOURS = {OURS: "#1b7f5c", "pyzmq": "#888888"}
_PEER = "#9db4c8"
_SMALL: dict[str, Any] = {"fontsize": 8}
_LABEL = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
_LOG_SPAN = 12.0
"""Largest over smallest from which a panel is logarithmic: below, a linear axis from zero shows more."""


def write(results: Mapping[str, Any], directory: Path) -> Path:
    """Draw the results into `directory`; returns the file."""
    samples: Samples = results["samples"]
    specs = [spec for spec in ROWS if spec.name in samples]
    rows = math.ceil(len(specs) / COLUMNS)
    drawing, axes = pyplot.subplots(rows, COLUMNS, figsize=(15, 2.7 * rows), squeeze=False)
    for axis, spec in zip(axes.flat, specs, strict=False):
        _panel(axis, spec, samples, results["notes"].get(spec.name, {}))
    for axis in list(axes.flat)[len(specs) :]:
        axis.set_visible(False)
    drawing.tight_layout()
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / NAME
    drawing.savefig(file, dpi=110)
    pyplot.close(drawing)
    return file


def _panel(axis: Axes, spec: RowSpec, samples: Samples, notes: Mapping[str, str]) -> None:
    metric = spec.metrics[0]
    medians = {system: middle(samples, spec.name, system, metric.name) for system in spec.systems}
    finite = [value for value in medians.values() if value is not None and value > 0]
    goals = [goal for goal in spec.goals if goal.metric == metric.name]
    bounds = [bound for goal in goals if (bound := bound_of(spec, goal, samples)) is not None]
    span = [*finite, *(bound for bound in bounds if bound > 0)]
    if span and max(span) / min(span) >= _LOG_SPAN:
        axis.set_xscale("log")
        axis.set_xlim(min(span) / 3, max(span) * 6)
    elif span:
        axis.set_xlim(0, max(span) * 1.35)
    for place, system in enumerate(spec.systems):
        value = medians[system]
        if value is None or math.isnan(value):
            label = "never noticed" if value is not None else _absent(notes.get(system, ""))
            axis.text(0.02, place, label, transform=axis.get_yaxis_transform(), va="center", **_SMALL)
            continue
        axis.barh(place, value, color=_COLOURS.get(system, _PEER), height=0.7)
        rounds = [one for one in samples[spec.name][system][metric.name] if not math.isnan(one)]
        axis.plot(rounds, [place] * len(rounds), "k.", markersize=3, alpha=0.6)
        beside: dict[str, Any] = {
            "xytext": (5, 0),
            "textcoords": "offset points",
            "va": "center",
            "bbox": _LABEL,
        }
        axis.annotate(shown(value), (max([value, *rounds]), place), **beside, **_SMALL)
    for bound in bounds:
        axis.axvline(bound, color="#c0392b", linestyle="--", linewidth=1, zorder=0.5)
    axis.set_ylim(len(spec.systems) - 0.4, -0.6)
    axis.set_yticks(range(len(spec.systems)), spec.systems)
    better = "less" if metric.lower else "more"
    verdict = {True: ", goal met", False: ", goal missed", None: ""}[met(spec, samples)]
    axis.set_title(
        f"{spec.title}\n{metric.label} ({better} is better){verdict}",
        fontsize=9,
    )
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def _absent(note: str) -> str:
    reason = note.partition(":")[0]
    return reason if 0 < len(reason) < 50 else "not measured"
