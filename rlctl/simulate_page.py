"""What-if output: a table for the terminal, a self-contained page with plots.

Owns the figures and their wording; `templates/what_if.html.jinja` has the page's layout and captions. Pure:
figures and histories go in, text comes out. The plots are from `what_if_plots`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gleaner.configs.load import dump
from gleaner.configs.schema import Config
from gleaner.configs.trace import Trace
from gleaner.rlctl.page_templates import render
from gleaner.rlctl.quantity_format import duration, short
from gleaner.rlctl.report.model import PREEMPTIBLE, story_of
from gleaner.rlctl.simulate import Simulated
from gleaner.rlctl.what_if import Figures, begin_of, ratio
from gleaner.rlctl.what_if_setup import WhatIfOptions

Cell = Callable[[Figures], str]
UNKNOWN = "–"
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_CELLS = 24

ROWS: tuple[tuple[str, Cell], ...] = (
    ("steps", lambda f: f"{f.steps} of {f.steps_planned} in {duration(f.training_s)}"),
    ("tokens trained", lambda f: f"{f.tokens:,}"),
    ("throughput", lambda f: _number(f.tokens_per_s, "tokens/s")),
    ("a step", lambda f: _seconds(f, f.parts.step_s if f.parts else None)),
    ("  seeding", lambda f: _seconds(f, f.parts.seeding_s if f.parts else None)),
    ("  waiting", lambda f: _seconds(f, f.parts.waiting_s if f.parts else None)),
    ("  training", lambda f: _seconds(f, f.parts.training_s if f.parts else None)),
    ("  weights", lambda f: _seconds(f, f.parts.weights_s if f.parts else None)),
    ("  recovery", lambda f: _seconds(f, f.parts.recovery_s if f.parts else None)),
    ("  evaluation", lambda f: _seconds(f, f.parts.evaluation_s if f.parts else None)),
    ("  other", lambda f: _seconds(f, f.parts.other_s if f.parts else None)),
    ("T_seed at the end", lambda f: _t_seed(f)),
    ("instances in use", lambda f: _instances(f)),
    ("hosts taken away", lambda f: f"{f.killed} without notice, {f.noticed} with"),
    ("requests migrated", lambda f: f"{f.migrations:,}"),
    ("  to balance load", lambda f: f"{f.moves:,}"),
    ("cost", lambda f: f"{f.cost:.4g} {f.currency}"),
    ("  a step", lambda f: _money(f, f.account.per_step if f.account else None)),
    ("  a million trained tokens", lambda f: _money(f, f.account.per_million_tokens if f.account else None)),
    ("GPU hours", lambda f: _gpu_hours(f)),
    ("tokens wasted", lambda f: _wasted(f)),
    ("tokens for the money", lambda f: _number(f.tokens_per_unit, f"tokens/{f.currency}")),
)
CAPTION = (
    "Modelled, not measured: docs/simulator.md lists what is assumed, the measured error, what is left out."
)


@dataclass(frozen=True, slots=True)
class RequestText:
    """The request as text. notes: lines about the sources of the figures."""

    config: Config
    words: WhatIfOptions
    trace: Trace | None
    notes: Sequence[str] = ()

    @property
    def machines(self) -> str:
        """The machines in one line."""
        prices, words = self.config.prices, self.words
        each = f"{prices.currency} an hour"
        return (
            f"{words.model or 'the model of the settings'}; reserved {words.reserved} at "
            f"{prices.reserved_per_hour:g} {each}; preemptible {words.preemptible} at "
            f"{prices.preemptible_per_hour:g} {each}, {self._availability()}"
        )

    def _availability(self) -> str:
        most = self.config.fleet.n_prem_max
        if self.trace is None:
            return f"{most} of them at any time (no trace)"
        return f"at most {most} of those that {Path(self.trace.name).name} offers"


def rows_of(asked: RequestText, done: Sequence[Simulated]) -> list[str]:
    """The table, line by line, and its conclusion."""
    sparks = _sparks(done)
    names = [*[name for name, _ in ROWS], *sparks]
    columns = [
        [one.name, *[cell(one.figures) for _, cell in ROWS], *[lines[number] for lines in sparks.values()]]
        for number, one in enumerate(done)
    ]
    width = max(map(len, names))
    widths = [max(map(len, column)) for column in columns]
    lines = [f"{asked.config.job.name}: {asked.machines}", *asked.notes, ""]
    for index, name in enumerate(["", *names]):
        cells = "  ".join(column[index].ljust(room) for column, room in zip(columns, widths, strict=True))
        lines.append(f"  {name:{width}}  {cells}".rstrip())
    lines += ["", *verdicts(done), CAPTION]
    return lines


def page_of(asked: RequestText, done: Sequence[Simulated]) -> str:
    """The page."""
    # loads matplotlib, a second that other commands need not pay
    from gleaner.rlctl import what_if_plots as plots
    from gleaner.rlctl.report.plots import fleet_plot

    config = asked.config
    lines = [plots.Line(one.name, story_of(one.records)) for one in done]
    sampled, stepped = all(line.story.samples for line in lines), all(line.story.steps for line in lines)
    return render(
        "what_if",
        title=config.job.name,
        lead=_lead(done),
        notes=(asked.machines, *asked.notes),
        unfinished=_unfinished(done),
        tiles=_tiles(done),
        progress_plot=plots.progress_plot(lines, asked.trace) if sampled else None,
        step_plot=plots.step_plot(lines) if stepped else None,
        seeding_plot=plots.seeding_plot(lines[0]) if stepped else None,
        money_plot=plots.money_plot(lines, config) if stepped else None,
        names=("", *[one.name for one in done]),
        rows=[(name, *[cell(one.figures) for one in done]) for name, cell in ROWS],
        caption=CAPTION,
        fleets=[
            (line.name, fleet_plot(line.story, f"-{number}"))
            for number, line in enumerate(lines)
            if line.story.samples and any(life.role == PREEMPTIBLE for life in line.story.lives)
        ],
        settings=dump(config),
    )


def verdicts(done: Sequence[Simulated]) -> list[str]:
    """The comparison of the two runs, and the runs that did not end."""
    return [*_unfinished(done), *_compared(done)]


def _unfinished(done: Sequence[Simulated]) -> list[str]:
    return [
        f"{one.name}: {one.outcome.ended}, {one.outcome.reason}"
        for one in done
        if one.outcome.ended != "done"
    ]


def _compared(done: Sequence[Simulated]) -> list[str]:
    if len(done) < 2:
        return []
    ours, theirs = done[0].figures, done[1].figures
    faster = ratio(ours.tokens_per_s, theirs.tokens_per_s)
    cheaper = ratio(ours.tokens_per_unit, theirs.tokens_per_unit)
    if faster is None or cheaper is None:
        return []
    return [
        f"{done[0].name} has {faster:.2f} times the throughput of {done[1].name}, "
        f"and {cheaper:.2f} times its tokens for the same money"
    ]


def _lead(done: Sequence[Simulated]) -> str:
    compared = _compared(done)
    return f"{compared[0]}." if compared else "One run, and nothing to hold it against."


def _tiles(done: Sequence[Simulated]) -> list[tuple[str, str, str]]:
    """The most wanted figures, each with the other run's below it."""
    names = ("throughput", "tokens for the money", "a step", "instances in use", "T_seed at the end", "cost")
    cells = dict(ROWS) | {
        "throughput": lambda f: UNKNOWN if f.tokens_per_s is None else f"{short(f.tokens_per_s)} tokens/s",
        "tokens for the money": lambda f: _tokens_per_unit(f),
        "a step": lambda f: UNKNOWN if f.parts is None else f"{f.parts.step_s:.1f} s",
    }
    tiles = []
    for name in names:
        value = cells[name](done[0].figures).partition(",")[0]
        beside = [f"{one.name}: {cells[name](one.figures)}" for one in done[1:]]
        tiles.append((name, value, "; ".join(beside)))
    return tiles


def _sparks(done: Sequence[Simulated]) -> dict[str, list[str]]:
    """Rows of small bars over time, on one scale for all runs."""
    rates, hosts = [], []
    for one in done:
        story = story_of(one.records)
        looks = [look for look in story.samples if look.t_s >= begin_of(story)]
        rates.append(_binned([look.tokens_per_s for look in looks]))
        hosts.append(_binned([float(look.preemptible) for look in looks]))
    return {"tokens/s over time": _spark(rates), "instances over time": _spark(hosts)} if any(rates) else {}


def _binned(values: Sequence[float]) -> list[float]:
    """Means of `SPARK_CELLS` pieces of equal length; fewer, where there are fewer values."""
    count = min(SPARK_CELLS, len(values))
    edges = [len(values) * number // count for number in range(count + 1)] if count else []
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def _spark(series: Sequence[Sequence[float]]) -> list[str]:
    most = max((value for values in series for value in values), default=0.0)
    if most <= 0:
        return ["" for _ in series]
    top = len(SPARKS) - 1
    drawn = ["".join(SPARKS[round(value / most * top)] for value in values) for values in series]
    return [
        f"{bars} up to {short(max(values, default=0.0))}" for bars, values in zip(drawn, series, strict=True)
    ]


def _t_seed(figures: Figures) -> str:
    """A host alone rolls out to the end: then the window has no meaning."""
    alone = figures.t_seed_s is None or not figures.peak_instances
    return UNKNOWN if alone else f"{figures.t_seed_s:.2f} s"


def _instances(figures: Figures) -> str:
    if not figures.peak_instances:
        return "none"
    return f"{figures.instances:.1f} on average, {figures.peak_instances} at most"


def _tokens_per_unit(figures: Figures) -> str:
    if figures.tokens_per_unit is None:
        return UNKNOWN
    return f"{short(figures.tokens_per_unit)} tokens/{figures.currency}"


def _seconds(figures: Figures, value: float | None) -> str:
    if value is None or figures.parts is None:
        return UNKNOWN
    whole = figures.parts.step_s
    return f"{value:.2f} s" if value == whole or not whole else f"{value:.2f} s ({value / whole:.0%})"


def _money(figures: Figures, value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g} {figures.currency}"


def _gpu_hours(figures: Figures) -> str:
    """Device hours of both price classes, and the share of the preemptible ones that had requests."""
    if figures.account is None:
        return UNKNOWN
    reserved, preemptible = figures.account.reserved, figures.account.preemptible
    busy, whole = preemptible.parts_hours.get("busy"), preemptible.gpu_hours
    share = f" ({busy / whole:.0%} busy)" if busy is not None and whole else ""
    return f"{reserved.gpu_hours:.3g} reserved, {preemptible.gpu_hours:.3g} preemptible{share}"


def _wasted(figures: Figures) -> str:
    if figures.account is None or figures.account.wasted_share is None:
        return UNKNOWN
    causes = ", ".join(f"{name.replace('_', ' ')} {short(n)}" for name, n in figures.account.wasted.items())
    return f"{figures.account.wasted_share:.1%}" + (f": {causes}" if causes else "")


def _number(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{value:,.0f} {unit}"
