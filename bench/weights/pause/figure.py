"""Figure of the pause and the lag of each way, and of a joining host."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes

from bench.weights.pause.flips import Flip
from bench.weights.pause.joiners import Join
from bench.weights.pause.measurement import median

NAME = "weight_pause.png"
_OURS, _OTHERS = "#1b7f5c", "#c0392b"
_PARTS = ("#7f8c8d", "#2e86c1", "#e67e22", "#1b7f5c", "#34495e")


def write(flips: Sequence[Flip], joins: Sequence[Join], directory: Path) -> Path:
    """Draw the results into `directory`; returns the file."""
    drawing, (pause, lag, late) = pyplot.subplots(1, 3, figsize=(16, 4.6), width_ratios=(1, 1, 1.1))
    ways = list(dict.fromkeys((one.engine, one.way) for one in flips))
    names = [f"{engine}, {way}" for engine, way in ways]
    for place, (engine, way) in enumerate(ways):
        some = [one for one in flips if (one.engine, one.way) == (engine, way)]
        colour = _OURS if some[0].describe_s else _OTHERS
        for axis, values in ((pause, [one.pause_s for one in some]), (lag, [one.lag_s for one in some])):
            axis.barh(place, median(values), color=colour, alpha=0.75)
            axis.plot(values, [place] * len(values), ".", color="black", markersize=4)
        pause.plot([median([one.usual_s for one in some])] * 2, [place - 0.4, place + 0.4], color="black")
    pause.set_title("longest silence of a request, s (line: a step before)", fontsize=10)
    lag.set_title("from the trainer's call to the first new token, s", fontsize=10)
    for axis in (pause, lag):
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.invert_yaxis()
    lag.set_yticklabels([])
    _joins(late, joins)
    for axis in (pause, lag, late):
        axis.grid(axis="x", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    drawing.tight_layout()
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / NAME
    drawing.savefig(file, dpi=110)
    pyplot.close(drawing)
    return file


def _joins(axis: Axes, joins: Sequence[Join]) -> None:
    """A row for each event, over time, with overlaps visible."""
    place, names = 0, []
    for engine in dict.fromkeys(one.engine for one in joins):
        some = [one for one in joins if one.engine == engine]
        registered, pulled, ready, serves, first = (
            median([getattr(one, name) for one in some])
            for name in ("registered_s", "pulled_s", "ready_s", "serves_s", "first_s")
        )
        begins = max(pulled, ready)
        spans = (
            ("processes", 0.0, registered),
            ("pull", registered, pulled),
            ("engine", registered, ready),
            ("load", begins, serves),
            ("first token", serves, first),
        )
        for (what, begin, end), colour in zip(spans, _PARTS, strict=True):
            axis.barh(place, max(0.0, end - begin), left=begin, color=colour)
            names.append(f"{engine}: {what}")
            place += 1
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set_title("a host joins: s from the start of its processes", fontsize=10)
