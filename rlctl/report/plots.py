"""Plots of a report, as SVG text that takes its colours from the page.

Owns the contents and the form of the plots. Pure: a `Story` goes in, SVG comes out. Colours are named, not
fixed: every placeholder becomes a CSS variable, so that one picture serves the light and the dark scheme. A
long run is thinned: no plot draws more than a few hundred marks of a kind.
"""

import bisect
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gleaner.actors.training.history import Node
from gleaner.rlctl.report.model import PREEMPTIBLE, Story
from gleaner.rlctl.report.step_times import PARTS, StepTime, step_times

WIDTH_IN = 9.6
MAX_POINTS = 600
"""Points of one line; a screen shows no more."""
MAX_BARS = 120
MAX_MARKS = 300
LABELS = {"n_prem": "N_prem", "width": "width"}
RARE = frozenset({"recovery", "evaluation", "other"})
SEEN_S = 0.005
"""Parts that most steps lack are left out, with their entry in the legend, where no bar has more of them."""
MAX_RESTARTED = 6
"""Actors and processes with a row of restarts; the table of restarts has all."""
MAX_HOSTS = 16
"""Hosts that get a row of their own; more rows would be unreadable, and the counts suffice."""

# Placeholders: colours that matplotlib carries through to the SVG, where they become var(--name).
COLOURS = {
    name: f"#0000{index:02x}"
    for index, name in enumerate(
        ["ink", "muted", "grid", "reserved", "preemptible", "accent", "kill", "notice", "join", "restart",
         "seeding", "waiting", "training", "weights", "recovery", "evaluation", "other"],
        start=1,
    )
}  # fmt: skip

EVENTS = {  # event -> (colour, marker, word)
    "joined": ("join", "o", "joined"),
    "noticed": ("notice", "^", "notice"),
    "killed": ("kill", "X", "killed"),
    "left": ("muted", "s", "left"),
}
STYLE = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and takes the page's font
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": COLOURS["ink"],
    "axes.edgecolor": COLOURS["grid"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.6,
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def reward_plot(story: Story) -> str:
    """Mean reward of each step's samples; the held-out reward before the first and after the last step, and
    between them where `job.eval_every` asks for it."""

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        steps = thin([float(step.step) for step in story.steps])
        rewards = thin([math.nan if step.reward is None else step.reward for step in story.steps])
        marker = "o" if len(steps) <= 60 else ""
        axes.plot(steps, rewards, color=COLOURS["accent"], linewidth=1.8, marker=marker, markersize=3.5,
                  label="samples of a step")  # fmt: skip
        last_step = max([*steps, 1])
        ends = [
            ({"first": 0, "during": one.step, "last": last_step + 1}[one.when], one.reward)
            for one in story.evals
            if one.reward is not None
        ]
        if ends:
            axes.scatter(*zip(*ends, strict=True), marker="D", s=46, color=COLOURS["reserved"], zorder=3,
                         label="held-out problems")  # fmt: skip
        for at, reward in ends:
            axes.annotate(f"{reward:.2f}", (at, reward), (0, 9), textcoords="offset points", ha="center",
                          weight="bold")  # fmt: skip
        values = [*(one for one in rewards if not math.isnan(one)), *(reward for _, reward in ends)]
        if all(0 <= value <= 1 for value in values):
            axes.set_ylim(0, 1.08)
        axes.set_xlim(-0.7, last_step + 1.7)
        axes.set_xlabel("step (held-out: before the first, after the last)")
        axes.set_ylabel("mean reward")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="lower right")

    return svg("reward", "Mean reward by step", 3.3, draw)


def fleet_plot(story: Story, name: str = "") -> str:
    """Hosts over time with their events, throughput, migrations; one time axis for all. `name`: distinguishes
    the plot from another one on the same page."""
    names = sorted({life.node for life in story.lives if life.role == PREEMPTIBLE}, key=_natural)
    rows = names if len(names) <= MAX_HOSTS else []
    restarted = _restarted(story)
    heights = [1.35, 1.35, 1.15]
    if rows or restarted:
        heights.insert(0, 0.34 * (len(rows) + len(restarted)) + 0.35)

    def draw(figure: Any) -> None:
        grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
        panels: list[Any] = []
        for index in range(len(heights)):
            panels.append(figure.add_subplot(grid[index], sharex=panels[0] if panels else None))
        if len(panels) > 3:
            _rows(panels[0], story, rows, restarted)
        alive, throughput, migrations = panels[-3:]
        _alive(alive, story)
        times = thin([sample.t_s for sample in story.samples])
        rates = thin([sample.tokens_per_s for sample in story.samples])
        throughput.plot(times, rates, color=COLOURS["accent"], linewidth=1.2)
        throughput.fill_between(times, rates, color=COLOURS["accent"], alpha=0.15, linewidth=0)
        throughput.set_ylabel("tokens/s")
        moved = thin([float(sample.migrations) for sample in story.samples])
        migrations.step(times, moved, where="post", color=COLOURS["preemptible"], linewidth=1.6)
        migrations.set_ylabel("migrations")
        migrations.set_xlabel("seconds since the run began")
        for panel in panels:
            panel.tick_params(labelbottom=panel is panels[-1])
            _event_lines(panel, story)
            panel.set_xlim(0, max(story.end_s, 1.0) * 1.005)
        for panel in panels[-3:]:
            panel.set_ylim(0, max(panel.get_ylim()[1], 1))
            panel.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        figure.align_ylabels(panels)

    return svg(f"fleet{name}", "Hosts, throughput and migrations over time", sum(heights) + 0.6, draw)


def step_time_plot(story: Story, name: str = "") -> str:
    """Seconds of each step by use; a long run is averaged over neighbouring steps. `name`: see
    `fleet_plot`."""

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        step_bars(axes, step_times(story.steps, story.restarts))
        axes.set_xlabel("step")
        axes.set_ylabel("seconds")
        axes.set_xlim(0.3, max([step.step for step in story.steps] + [8]) + 0.7)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if story.steps:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(PARTS) + 1, borderaxespad=0.3,
                        handlelength=1, handleheight=1, columnspacing=1.4)  # fmt: skip

    return svg(f"steptime{name}", "Seconds of each step by part", 3.1, draw)


def step_bars(axes: Any, times: Sequence[StepTime]) -> None:
    """A bar for each step, its parts one above the other, and a mark over each in which something was
    restarted. Parts that most steps lack are drawn where they can be seen."""
    size = -(-len(times) // MAX_BARS) or 1
    at = thin([float(one.step) for one in times], MAX_BARS)
    base = [0.0] * len(at)
    for part in PARTS:
        heights = thin([one.part_s(part) for one in times], MAX_BARS)
        if part in RARE and not any(height > SEEN_S for height in heights):
            continue
        axes.bar(at, heights, bottom=base, width=0.78 * size, color=COLOURS[part], label=part, linewidth=0)
        base = [low + height for low, height in zip(base, heights, strict=True)]
    restarts = thin([float(one.restarts) for one in times], MAX_BARS)
    marked = [index for index, many in enumerate(restarts) if many]
    if marked:
        above = 0.04 * max(base)
        axes.scatter([at[index] for index in marked], [base[index] + above for index in marked], marker="v",
                     s=34, color=COLOURS["restart"], label="restarts", zorder=3, linewidth=0)  # fmt: skip


def seeding_plot(story: Story) -> str:
    """The seeding window of each step beside its plan, the stair in it, and the preemptible hosts that the
    plan wants; their engines' width where plans choose it."""
    widths = any(step.width for step in story.steps)

    def draw(figure: Any) -> None:
        window, *others = figure.subplots(2 + widths, 1, sharex=True)
        steps = thin([float(step.step) for step in story.steps])
        window.plot(steps, thin([step.seeding_s for step in story.steps]), color=COLOURS["seeding"],
                    label="seeding")  # fmt: skip
        # what a step planned holds for the next one
        window.plot([step + 1 for step in steps], thin([step.t_seed_s for step in story.steps]),
                    color=COLOURS["muted"], linestyle="--", label="planned")  # fmt: skip
        stairs = [(step.step, step.stair_s) for step in story.steps if step.stair_s is not None][-MAX_MARKS:]
        if stairs:
            window.scatter(*zip(*stairs, strict=True), marker="v", s=34, color=COLOURS["training"],
                           label="half of the engines left", zorder=3, linewidth=0)  # fmt: skip
        window.set_ylabel("seconds")
        window.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)
        for panel, name in zip(others, ("n_prem", "width"), strict=False):
            chosen = thin([float(getattr(step, name)) for step in story.steps])
            panel.step([step + 1 for step in steps], chosen, where="mid", color=COLOURS["preemptible"])
            panel.set_ylabel(LABELS[name])
        (others or [window])[-1].set_xlabel("step")
        for panel in (window, *others):
            panel.set_ylim(0, max(panel.get_ylim()[1], 1))
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))

    return svg("seeding", "Seeding window and wished hosts by step", 3.1 + 1.2 * widths, draw)


def _restarted(story: Story) -> list[str]:
    """The actors and processes that were restarted, the most often first."""
    counts = Counter(restart.actor for restart in story.restarts)
    return [name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))][:MAX_RESTARTED]


def _rows(panel: Any, story: Story, hosts: Sequence[str], restarted: Sequence[str]) -> None:
    """A row for each preemptible host: a bar while it was up, a mark for each event. Below them a row for
    each actor or process that was restarted, a mark for each time."""
    names = [*hosts, *restarted]
    row = {name: index for index, name in enumerate(hosts)}
    for life in story.lives:
        if life.node in row:
            panel.barh(row[life.node], life.to_s - life.from_s, left=life.from_s, height=0.42,
                       color=COLOURS["preemptible"], alpha=0.55, linewidth=0)  # fmt: skip
    for event, (colour, marker, word) in EVENTS.items():
        marks = [node for node in story.nodes if node.event == event and node.node in row]
        if marks:
            panel.scatter([node.t_s for node in marks], [row[node.node] for node in marks], marker=marker,
                          s=52, color=COLOURS[colour], label=word, zorder=3, linewidth=1.2)  # fmt: skip
    at = {name: len(hosts) + index for index, name in enumerate(restarted)}
    marks_s = [one for one in story.restarts if one.actor in at][:MAX_MARKS]
    if marks_s:
        panel.scatter([one.t_s for one in marks_s], [at[one.actor] for one in marks_s], marker="v", s=42,
                      color=COLOURS["restart"], label="restarted", zorder=3, linewidth=0)  # fmt: skip
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.4, -0.6)
    panel.grid(visible=False)
    panel.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=len(EVENTS) + 1, borderaxespad=0.1, handlelength=1
    )


def _alive(panel: Any, story: Story) -> None:
    """Hosts alive, exactly, from their joins and ends: reserved below, preemptible on top."""
    times = sorted({0.0, story.end_s, *(t for life in story.lives for t in (life.from_s, life.to_s))})
    low = [0.0] * len(times)
    for role in ("reserved", PREEMPTIBLE):
        lives = [life for life in story.lives if life.role == role]
        joins = sorted(life.from_s for life in lives)
        ends = sorted(life.to_s for life in lives if life.ended)
        high = [
            base + bisect.bisect_right(joins, t) - bisect.bisect_right(ends, t)
            for base, t in zip(low, times, strict=True)
        ]
        panel.fill_between(
            times, low, high, step="post", color=COLOURS[role], alpha=0.55, linewidth=0, label=role
        )
        low = high
    panel.set_ylabel("hosts alive")
    panel.legend(loc="lower left", bbox_to_anchor=(0, 0.98), ncols=2, borderaxespad=0.1, handlelength=1,
                 handleheight=0.8)  # fmt: skip


def _event_lines(panel: Any, story: Story) -> None:
    marks: list[Node] = [node for node in story.nodes if node.role == PREEMPTIBLE]
    for event in ("noticed", "killed"):
        for node in [node for node in marks if node.event == event][:MAX_MARKS]:
            panel.axvline(node.t_s, color=COLOURS[EVENTS[event][0]], linewidth=0.8, alpha=0.55, zorder=0)


def thin(values: Sequence[float], limit: int = MAX_POINTS) -> list[float]:
    """Means of neighbours, so that at most `limit` values remain."""
    size = -(-len(values) // limit) or 1
    groups = [values[at : at + size] for at in range(0, len(values), size)]
    return [sum(group) / len(group) for group in groups]


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts spot-9 before spot-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def svg(name: str, label: str, height_in: float, draw: Callable[[Any], None]) -> str:
    """A picture that `draw` draws into a figure, for a page that has `style.css`. name: unique on the page;
    label: for screen readers."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):  # ids of two pictures on a page must differ
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata=dict.fromkeys(_METADATA))
    text = out.getvalue()
    text = text[text.index("<svg") :]  # an inlined picture has no prolog
    text = re.sub(
        r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', rf'<svg \1 role="img" aria-label="{label}">', text, count=1
    )
    text = re.sub(r"font: ([^;\"]*?)(\d+(?:\.\d+)?)px [^;\"]*", r"font: \1\2px var(--font)", text)
    for colour, value in COLOURS.items():
        text = text.replace(value, f"var(--{colour})")
    return text


_METADATA = ("Date", "Creator", "Format", "Type")
