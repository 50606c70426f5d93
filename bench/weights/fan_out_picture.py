"""Picture of a weight wave: sources of each receiver, and its progress over time.

Owns the scene (twelve receivers, one of which vanishes, and a late one) and its drawing. The SVG is
self-contained and takes its colours from the viewer's colour scheme.
"""

import re
from dataclasses import replace
from typing import Any

from bench.weights.wave_cases import PLAIN, joining
from bench.weights.wave_model import spread
from bench.weights.wave_world import ORIGIN, Event, Outcome
from gleaner.rlctl.page_templates import style_sheet
from gleaner.rlctl.report.plots import COLOURS, svg

NAME = "wave.svg"
RECEIVERS, DEAD, LATE = 12, "r1", "late"
DIES_S, JOINS_S = 0.8, 1.3
HEIGHT_IN = 3.6
NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
LABEL = "A wave of weights: the source of each receiver, and its share of the version over time"


def scene() -> Outcome:
    """The drawn scene."""
    events = (*joining(RECEIVERS), Event(DIES_S, "vanish", DEAD), Event(JOINS_S, "join", LATE))
    return spread(replace(PLAIN, sample_s=0.02), events)


def picture() -> str:
    """The file's text."""
    outcome = scene()

    def draw(figure: Any) -> None:
        tree, curves = figure.subplots(1, 2, width_ratios=[1, 1.15])
        _draw_tree(tree, outcome)
        _draw_curves(curves, outcome)

    return alone(svg("wave", LABEL, HEIGHT_IN, draw))


def alone(text: str) -> str:
    """A drawing of the report's, as a self-contained file. Raises ValueError where it is none."""
    colours = re.match(r"\s*(:root \{.*?\})\s*(@media [^{]*\{.*?\}\s*\})", style_sheet(), re.DOTALL)
    if colours is None:
        raise ValueError("style.css of the pages does not begin with its colours")
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    if box is None:
        raise ValueError("the drawing has no viewBox")
    page = f'<rect width="{box[1]}" height="{box[2]}" rx="8" style="fill:var(--page)"/>'
    rules = " ".join(" ".join(colours.groups()).split())
    head, rest = text.split(">", 1)
    head = head.replace("<svg", f"<svg {NAMESPACES}", 1)
    return f"{head}><style>{rules}</style>{page}{rest}"


def _places(outcome: Outcome) -> dict[str, tuple[float, float]]:
    """Position of each: its depth under its first parent, and its chain."""
    places: dict[str, tuple[float, float]] = {}
    chains = 0
    for _, name, parent in outcome.edges:
        if name in places:
            continue
        if parent == ORIGIN:
            places[name] = (1.0, -float(chains))
            chains += 1
        else:
            depth, row = places[parent]
            places[name] = (depth + 1, row)
    places[ORIGIN] = (0.0, -(chains - 1) / 2)
    return places


def _colour(name: str, below_dead: set[str]) -> str:
    if name == DEAD:
        return COLOURS["kill"]
    if name == LATE:
        return COLOURS["accent"]
    return COLOURS["preemptible"] if name in below_dead else COLOURS["reserved"]


def _below_dead(outcome: Outcome) -> set[str]:
    first: dict[str, str] = {}
    for _, name, parent in outcome.edges:
        first.setdefault(name, parent)
    found: set[str] = set()
    for name in first:
        at = first.get(name, ORIGIN)
        while at not in (ORIGIN, DEAD):
            at = first[at]
        if at == DEAD:
            found.add(name)
    return found


def _draw_tree(axes: Any, outcome: Outcome) -> None:
    places, below_dead, seen = _places(outcome), _below_dead(outcome), set()
    for at_s, name, parent in outcome.edges:
        again = name in seen
        seen.add(name)
        axes.annotate(
            "",
            xy=places[name],
            xytext=places[parent],
            arrowprops={
                "arrowstyle": "-|>",
                "color": _colour(name, below_dead),
                "linestyle": "--" if again else "-",
                "linewidth": 1.2,
                "shrinkA": 11,
                "shrinkB": 11,
                "connectionstyle": "arc3,rad=-0.25" if again else "arc3",
            },
        )
        if again:
            x, y = places[name]
            axes.text(x, y + 0.32, f"after {at_s:.1f} s", fontsize=8, ha="center", color=COLOURS["muted"])
    for name, (x, y) in places.items():
        colour = COLOURS["ink"] if name == ORIGIN else _colour(name, below_dead)
        axes.text(x, y, name, ha="center", va="center", color=colour, fontsize=9)
    x, y = places[DEAD]
    axes.text(x, y - 0.4, f"gone at {DIES_S:g} s", fontsize=8, ha="center", color=COLOURS["kill"])
    x, y = places[LATE]
    axes.text(x, y + 0.3, f"joins at {JOINS_S:g} s", fontsize=8, ha="center", color=COLOURS["accent"])
    depths, rows = zip(*places.values(), strict=True)
    axes.set_xlim(-0.4, max(depths) + 0.5)
    axes.set_ylim(min(rows) - 0.5, max(rows) + 0.7)
    axes.set_title("source of each receiver", fontsize=10, loc="left")
    axes.axis("off")


def _draw_curves(axes: Any, outcome: Outcome) -> None:
    below_dead = _below_dead(outcome)
    for name, points in outcome.curves.items():
        axes.plot(
            [at_s for at_s, _ in points],
            [100 * share for _, share in points],
            color=_colour(name, below_dead),
            linewidth=1.4,
        )
    at_s, share = outcome.curves[DEAD][-1]
    axes.plot([at_s], [100 * share], "x", color=COLOURS["kill"])
    axes.set_xlabel("seconds")
    axes.set_ylim(0, 103)
    axes.set_title("share of 16 GB that each holds, %", fontsize=10, loc="left")
