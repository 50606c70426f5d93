"""Figure of the results: rate, cost and latency by the number of rows in a frame."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes

from bench.token_plane.goals import AT_ROWS, OURS, PARSED, PASSED, SYSTEMS, goals
from bench.token_plane.sizes import SystemResult

NAME = "token_plane.png"
_COLOURS = {OURS: "#1b7f5c", PARSED: "#c0392b", PASSED: "#7f8c8d"}


def write(results: Mapping[str, Any], directory: Path) -> Path:
    """Draw the results into `directory`; returns the file."""
    found = [SystemResult(**one) for one in results["found"]]
    drawing, (rate, cost, latency) = pyplot.subplots(1, 3, figsize=(15, 4.2))
    _lines(rate, found, lambda one: one.tokens_per_s, "-")
    bounds = [goal.bound for goal in goals(found) if goal.bound is not None]
    if bounds:
        rate.plot([AT_ROWS], [max(bounds)], "_", color="black", markersize=18, label="goal")
    rate.set_title("tokens/s (more is better)", fontsize=10)
    _lines(cost, found, lambda one: one.cpu_s_per_m + one.router_cpu_s_per_m, "-")
    cost.set_title("CPU seconds a million tokens, receiver and router (less is better)", fontsize=10)
    _lines(latency, found, lambda one: one.p50_ms, "-")
    _lines(latency, found, lambda one: one.p99_ms, "--", label=False)
    latency.set_title("ms from sent to visible at an engine's pace, p99 dashed", fontsize=10)
    for axis in (rate, cost, latency):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(sorted({one.rows for one in found}), sorted({one.rows for one in found}))
        axis.set_xlabel("requests decoded together (rows of a frame)", fontsize=8)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(fontsize=8)
    drawing.tight_layout()
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / NAME
    drawing.savefig(file, dpi=110)
    pyplot.close(drawing)
    return file


def _lines(
    axis: Axes,
    found: list[SystemResult],
    value: Callable[[SystemResult], float],
    style: str,
    *,
    label: bool = True,
) -> None:
    for system in SYSTEMS:
        points = sorted((one.rows, value(one)) for one in found if one.system == system)
        points = [point for point in points if not math.isnan(point[1])]
        if points:
            rows, values = zip(*points, strict=True)
            axis.plot(
                rows,
                values,
                f"o{style}",
                color=_COLOURS[system],
                label=system if label else None,
                markersize=4,
            )
