"""Draws the diagrams of docs/states.md from its tables, as SVG.

Run `python -m tests.docs.state_diagrams`. Owns the positions of the states and the form of the drawing. The
page owns the transitions.
"""

import math
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "states.md"
Edges = dict[tuple[str, str], list[str]]
_SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| ([\w-]+) \| ([\w-]+) \| (`.*`) \|$", re.MULTILINE)

GRID: dict[str, dict[str, tuple[float, float]]] = {
    "Request": {"-": (0, 1), "queued": (1, 1), "dispatched": (2, 0), "finished": (3, 1), "dropped": (2, 2)},
    "Group": {
        "-": (0, 1),
        "open": (1, 1),
        "complete": (2, 1),
        "taken": (3, 0),
        "kept": (3, 1),
        "dropped": (3, 2),
        "aborted": (2, 2.2),
    },
    "Instance": {
        "-": (0, 1),
        "registered": (1, 1),
        "serving": (2, 0),
        "draining": (2, 2),
        "unreachable": (3, 1),
        "gone": (4, 1),
    },
    "Weight version": {"-": (0, 1), "known": (1, 1), "lost": (2, 0), "failed": (2, 2)},
}
_STEP_X, _STEP_Y, _MARGIN = 250, 150, 70
_WIDTH, _HEIGHT, _BEND = 100, 34, 0.13
_STYLE = (
    "text{font:12px sans-serif;fill:#24292f;text-anchor:middle;dominant-baseline:middle}"
    ".e{font-size:10px;fill:#57606a}rect{fill:#e6f4f1;stroke:#00796b;rx:8px}"
    "path.l{fill:none;stroke:#8c959f}.b{fill:#fff}"
)


def tables(text: str) -> dict[str, Edges]:
    """The transitions of each section of the page: events by (from, to)."""
    return {
        title: {(old, new): re.findall(r"`(\w+)`", events) for old, new, events in rows}
        for title, body in _SECTION.findall(text)
        if (rows := _ROW.findall(body))
    }


def file_of(title: str) -> Path:
    """The path of a section's diagram."""
    return DOCS / "images" / f"states_{title.split()[-1].lower()}.svg"


def draw(title: str, edges: Edges) -> str:
    """One diagram. The end of an object, which every state has, is only in the table."""
    places = {name: (_MARGIN + x * _STEP_X, 40 + y * _STEP_Y) for name, (x, y) in GRID[title].items()}
    width = max(x for x, _ in places.values()) + _MARGIN
    height = max(y for _, y in places.values()) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'role="img" aria-label="{title}">',
        f"<style>{_STYLE}</style>",
        '<rect class="b" style="fill:#fff;stroke:none" width="100%" height="100%"/>',
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="#8c959f"/></marker></defs>',
    ]
    shown = {pair: events for pair, events in edges.items() if pair[1] != "-"}
    labels: list[str] = []
    for (old, new), events in shown.items():
        path, label = _edge(places[old], places[new], events, begins=old == "-")
        parts.append(path)
        labels.append(label)
    for name, (x, y) in places.items():
        if name == "-":
            parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="7" fill="#00796b"/>')
        else:
            parts.append(
                f'<rect x="{x - _WIDTH / 2:g}" y="{y - _HEIGHT / 2:g}" width="{_WIDTH}" height="{_HEIGHT}"/>'
                f'<text x="{x:g}" y="{y:g}">{name}</text>'
            )
    return "\n".join([*parts, *labels, "</svg>", ""])


def _edge(
    start: tuple[float, float], end: tuple[float, float], events: list[str], *, begins: bool
) -> tuple[str, str]:
    """A bent arrow with its label, so that arrows in opposite directions do not overlap."""
    (x1, y1), (x2, y2) = start, end
    bend_x = (x1 + x2) / 2 - (y2 - y1) * _BEND * 2
    bend_y = (y1 + y2) / 2 + (x2 - x1) * _BEND * 2
    (x1, y1), (x2, y2) = start if begins else _border(start, (bend_x, bend_y)), _border(end, (bend_x, bend_y))
    curve = f"M{x1:.0f} {y1:.0f}Q{bend_x:.0f} {bend_y:.0f} {x2:.0f} {y2:.0f}"
    path = f'<path class="l" marker-end="url(#a)" d="{curve}"/>'
    x, y = (x1 + 2 * bend_x + x2) / 4, (y1 + 2 * bend_y + y2) / 4
    lines = "".join(
        f'<text class="e" x="{x:.0f}" y="{y + 11 * (n - (len(events) - 1) / 2):.0f}" '
        f'stroke="#fff" stroke-width="3" paint-order="stroke">{event}</text>'
        for n, event in enumerate(events)
    )
    return path, lines


def _border(centre: tuple[float, float], towards: tuple[float, float]) -> tuple[float, float]:
    """The point where the line from the centre of a box leaves it."""
    dx, dy = towards[0] - centre[0], towards[1] - centre[1]
    share = min(_WIDTH / 2 / abs(dx) if dx else math.inf, _HEIGHT / 2 / abs(dy) if dy else math.inf)
    return centre[0] + dx * share, centre[1] + dy * share


def main() -> int:
    """Write every diagram."""
    for title, edges in tables(PAGE.read_text(encoding="utf-8")).items():
        file_of(title).write_text(draw(title, edges), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
