"""Plots of a what-if: the job and its co-located baseline on the same axes.

Owns the contents and the form of the plots. Pure: stories go in, SVG comes out, in the colours of the
report's page.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.ticker import FuncFormatter, MaxNLocator

from gleaner.actors.training.account import used_between
from gleaner.actors.training.records import AnyRecord
from gleaner.configs.schema import Config
from gleaner.configs.trace import Availability, Event, Trace
from gleaner.rlctl.quantity_format import short
from gleaner.rlctl.report.model import PREEMPTIBLE, Story
from gleaner.rlctl.report.plots import COLOURS, EVENTS, MAX_MARKS, step_bars, svg, thin
from gleaner.rlctl.report.step_times import step_times
from gleaner.rlctl.what_if import begin_of

RUN_COLOURS = ("accent", "reserved")
"""Of the job, and of its baseline."""
UNITS = ((7200.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""Units of a time axis, each with the seconds from which it is used."""


@dataclass(frozen=True, slots=True)
class Line:
    """One run: its name, and its story in tokens of the model."""

    name: str
    story: Story


def progress_plot(lines: Sequence[Line], trace: Trace | None) -> str:
    """Throughput and trained tokens of both, and the first one's preemptible hosts in use and on offer."""
    job = lines[0].story
    end_s = max(line.story.end_s - begin_of(line.story) for line in lines)
    unit_s, unit = time_unit(end_s)

    def draw(figure: Any) -> None:
        rates, hosts, trained = figure.subplots(3, 1, sharex=True, height_ratios=(1.2, 1.1, 1.2))
        for line, colour in zip(lines, RUN_COLOURS, strict=False):
            begin_s = begin_of(line.story)
            looks = [look for look in line.story.samples if look.t_s >= begin_s]
            times = thin([(look.t_s - begin_s) / unit_s for look in looks])
            per_s = thin([look.tokens_per_s for look in looks])
            rates.plot(times, per_s, color=COLOURS[colour], linewidth=1.2, label=line.name)
            rates.fill_between(times, per_s, color=COLOURS[colour], alpha=0.1, linewidth=0)
            ends, totals = _trained(line.story, begin_s)
            trained.plot([end / unit_s for end in ends], totals, color=COLOURS[colour], linewidth=1.8,
                         marker="o" if len(ends) <= 40 else "", markersize=3.5)  # fmt: skip
        _hosts(hosts, job, trace, unit_s)
        rates.set_ylabel("generated tokens/s")
        hosts.set_ylabel("preemptible hosts")
        trained.set_ylabel("trained tokens")
        trained.set_xlabel(f"{unit} since the first step began")
        rates.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
        for panel in (rates, hosts, trained):
            panel.set_ylim(0, max(panel.get_ylim()[1], 1))
            panel.set_xlim(0, max(end_s / unit_s, 1e-3) * 1.005)
            panel.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        for panel in (rates, trained):
            panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        figure.align_ylabels([rates, hosts, trained])

    return svg("progress", "Throughput, hosts and trained tokens over time", 5.4, draw)


def step_plot(lines: Sequence[Line]) -> str:
    """Seconds of each step by use, side by side on one scale."""

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, len(lines), sharey=True, squeeze=False)[0]
        for panel, line in zip(panels, lines, strict=True):
            steps = line.story.steps
            step_bars(panel, step_times(steps, line.story.restarts))
            panel.set_title(line.name, loc="left", fontsize=10)
            panel.set_xlabel("step")
            panel.set_xlim(0.3, max([step.step for step in steps] + [4]) + 0.7)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panels[0].set_ylabel("seconds of a step")
        shown = {
            name: one
            for panel in panels
            for one, name in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        figure.legend(shown.values(), shown.keys(), loc="outside upper left", ncols=len(shown),
                      handlelength=1, handleheight=1)  # fmt: skip

    return svg("steps", "Seconds of each step by part", 3.4, draw)


def seeding_plot(line: Line) -> str:
    """Algorithm 1: the seeding window of each next step, and the preemptible hosts that it requested."""

    def draw(figure: Any) -> None:
        window, wished = figure.subplots(1, 2)
        steps = thin([float(step.step) for step in line.story.steps])
        marker = "o" if len(steps) <= 40 else ""
        window.plot(steps, thin([step.t_seed_s for step in line.story.steps]), color=COLOURS["seeding"],
                    marker=marker, markersize=3.5)  # fmt: skip
        window.set_title("T_seed, seconds", loc="left", fontsize=10)
        wished.step(steps, thin([float(step.n_prem) for step in line.story.steps]), where="mid",
                    color=COLOURS["preemptible"])  # fmt: skip
        wished.set_title("N_prem, hosts wished for", loc="left", fontsize=10)
        for panel in (window, wished):
            panel.set_xlabel("step")
            panel.set_ylim(0, max(panel.get_ylim()[1], 1))
            panel.set_xlim(0.3, max([*steps, 4]) + 0.7)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))

    return svg("seeding", "Seeding window and wished hosts by step", 2.7, draw)


def money_plot(lines: Sequence[Line], config: Config) -> str:
    """Trained tokens for one unit of the currency, from the first step's start to each step's end."""

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        last_step = 4
        for line, colour in zip(lines, RUN_COLOURS, strict=False):
            values = tokens_per_unit(line.story, config)
            steps = [step.step for step in line.story.steps][: len(values)]
            label = f"{line.name}, {short(values[-1])} in the end" if values else line.name
            axes.plot(steps, values, color=COLOURS[colour], linewidth=1.8, label=label,
                      marker="o" if len(steps) <= 40 else "", markersize=3.5)  # fmt: skip
            last_step = max([last_step, *steps])
        axes.set_ylabel(f"tokens/{config.prices.currency}")
        axes.set_xlabel("step")
        axes.set_ylim(0, max(axes.get_ylim()[1], 1) * 1.05)
        axes.set_xlim(0.3, last_step + 0.7)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)

    return svg("money", "Tokens for the money by step", 2.7, draw)


def tokens_per_unit(story: Story, config: Config) -> list[float]:
    """At the end of each step, of all until then; ends with the first step that cost nothing."""
    begin_s, values = begin_of(story), list[float]()
    records: list[AnyRecord] = [*story.runs, *story.nodes, *story.steps]
    for used in used_between(records, [(begin_s, step.t_s) for step in story.steps]):
        cost = sum(used.cost(config.prices))
        if cost <= 0:
            break
        values.append(used.trained / cost)
    return values


def time_unit(span_s: float) -> tuple[float, str]:
    """The best unit for an axis of so many seconds: its seconds and its name."""
    return next((unit_s, name) for least_s, unit_s, name in UNITS if span_s >= least_s)


def _trained(story: Story, begin_s: float) -> tuple[list[float], list[int]]:
    """Seconds since the start, and tokens trained until then, from 0 on."""
    ends, totals = [0.0], [0]
    for step in story.steps:
        ends.append(step.t_s - begin_s)
        totals.append(totals[-1] + step.tokens)
    return ends, totals


def _hosts(panel: Any, story: Story, trace: Trace | None, unit_s: float) -> None:
    """Draw hosts in use, exactly, from joins and ends, and hosts on offer by the trace, whose clock starts
    with the first step."""
    begin_s = begin_of(story)
    lives = [life for life in story.lives if life.role == PREEMPTIBLE]
    joins = sorted(life.from_s for life in lives)
    ends = sorted(life.to_s for life in lives if life.ended)
    times = sorted({begin_s, story.end_s, *joins, *ends})
    used = [bisect.bisect_right(joins, t) - bisect.bisect_right(ends, t) for t in times]
    panel.fill_between([(t - begin_s) / unit_s for t in times], used, step="post", linewidth=0, alpha=0.55,
                       color=COLOURS["preemptible"], label="in use")  # fmt: skip
    if trace is not None:
        span_s = max(story.end_s - begin_s, 0.0)
        moments = sorted({0.0, span_s, *(it.t_s for it in trace.events if it.t_s <= span_s)})
        offered = offers(trace, moments)
        panel.step([t / unit_s for t in moments], offered, where="post", color=COLOURS["muted"],
                   linewidth=1.0, label="on offer")  # fmt: skip
    for event in ("noticed", "killed"):
        gone = [node for node in story.nodes if node.role == PREEMPTIBLE and node.event == event][:MAX_MARKS]
        for number, node in enumerate(gone):
            panel.axvline((node.t_s - begin_s) / unit_s, color=COLOURS[EVENTS[event][0]], linewidth=0.8,
                          alpha=0.6, label=EVENTS[event][2] if not number else None)  # fmt: skip
    panel.legend(loc="lower left", bbox_to_anchor=(0, 0.97), ncols=4, borderaxespad=0.2, handlelength=1)


def offers(trace: Trace, moments_s: Sequence[float]) -> list[int]:
    """How many instances were up at each of these times, which are in order."""
    found, up, at_s = [], 0, -1.0
    look = Availability(trace)
    for moment_s in moments_s:
        for event in look.events_between(at_s, moment_s + 1e-9):
            up += {Event.ADD: 1, Event.REMOVE: -1, Event.NOTICE: 0}[event.event]
        found.append(up)
        at_s = moment_s + 1e-9
    return found
