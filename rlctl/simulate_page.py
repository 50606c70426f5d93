"""What a what-if is shown as: a table for the terminal, a page with plots that needs nothing beside it.

Owns words and layout. Pure: figures and histories go in, text comes out. The plots are those of the report.
"""

from collections.abc import Callable, Sequence
from html import escape
from importlib import resources

from configs.load import dump
from configs.schema import Config
from rlctl.modelled import Words
from rlctl.report import plots
from rlctl.report.model import story_of
from rlctl.simulate import Simulated
from rlctl.what_if import Figures, ratio
from rlctl.wording import duration

Cell = Callable[[Figures], str]
UNKNOWN = "–"

ROWS: tuple[tuple[str, Cell], ...] = (
    ("steps", lambda f: f"{f.steps} of {f.steps_planned} in {duration(f.training_s)}"),
    ("tokens trained", lambda f: f"{f.tokens:,}"),
    ("throughput", lambda f: _number(f.tokens_per_s, "tokens/s")),
    ("a step", lambda f: _seconds(f.parts.step_s if f.parts else None)),
    ("  seeding", lambda f: _seconds(f.parts.seeding_s if f.parts else None)),
    ("  waiting", lambda f: _seconds(f.parts.waiting_s if f.parts else None)),
    ("  training", lambda f: _seconds(f.parts.training_s if f.parts else None)),
    ("  weights", lambda f: _seconds(f.parts.weights_s if f.parts else None)),
    ("  other", lambda f: _seconds(f.parts.other_s if f.parts else None)),
    ("T_seed at the end", lambda f: _seconds(f.t_seed_s)),
    ("instances in use", lambda f: f"{f.instances:.1f} on average, {f.peak_instances} at most"),
    ("hosts taken away", lambda f: f"{f.killed} killed, {f.noticed} noticed"),
    ("requests migrated", lambda f: f"{f.migrations:,}"),
    ("cost", lambda f: f"{f.cost:.4g} {f.currency}"),
    ("tokens per money", lambda f: _number(f.tokens_per_unit, f"tokens/{f.currency}")),
)
CAPTION = "Modelled, not measured: see docs/simulator.md for what is assumed and what is left out."


def rows_of(config: Config, words: Words, done: Sequence[Simulated]) -> list[str]:
    """The table, line by line, and what it comes to."""
    names = [name for name, _ in ROWS]
    columns = [[one.name, *[cell(one.figures) for _, cell in ROWS]] for one in done]
    width = max(map(len, names))
    widths = [max(map(len, column)) for column in columns]
    lines = [f"{config.job.name}: {_machines(words)}", ""]
    for index, name in enumerate(["", *names]):
        cells = "  ".join(column[index].ljust(room) for column, room in zip(columns, widths, strict=True))
        lines.append(f"  {name:{width}}  {cells}".rstrip())
    lines += ["", *_verdicts(done), CAPTION]
    return lines


def page_of(config: Config, words: Words, done: Sequence[Simulated]) -> str:
    """The page."""
    head = "".join(f'<th class="number">{escape(one.name)}</th>' for one in done)
    rows = "".join(
        f"<tr><td>{escape(name)}</td>"
        + "".join(f'<td class="number">{escape(cell(one.figures))}</td>' for one in done)
        + "</tr>"
        for name, cell in ROWS
    )
    body = [
        '<header><p class="eyebrow">Gleaner · what-if</p>',
        f'<h1>{escape(config.job.name)}</h1><p class="lead">{escape(_machines(words))}</p>',
        *[f"<p>{escape(line)}</p>" for line in _verdicts(done)],
        "</header>",
        f'<div class="scroll"><table><thead><tr><th></th>{head}</tr></thead>',
        f"<tbody>{rows}</tbody></table></div>",
        f'<p class="muted">{CAPTION}</p>',
    ]
    for one in done:
        story = story_of(one.outcome.history)
        body.append(f"<h2>{escape(one.name)}: hosts, throughput and migrations</h2>")
        body.append(f"<figure>{plots.fleet_plot(story, one.name)}</figure>" if story.samples else "<p>–</p>")
        if story.steps:
            body.append(f"<h2>{escape(one.name)}: where the time of a step went</h2>")
            body.append(f"<figure>{plots.step_time_plot(story, one.name)}</figure>")
            body.append(f"<h2>{escape(one.name)}: T_seed and instances wished for</h2>")
            body.append(f"<figure>{plots.seeding_plot(story, one.name)}</figure>")
    settings = escape(dump(config))
    body.append(f"<details><summary>Settings</summary><pre>{settings}</pre></details>")
    style = resources.files("rlctl.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(config.job.name)} · what-if · Gleaner</title><style>\n{style}</style></head>\n"
        f"<body><main>\n{chr(10).join(body)}\n</main></body></html>\n"
    )


def _machines(words: Words) -> str:
    model = words.model or "the model of the settings"
    return f"{model}; reserved {words.reserved}, preemptible {words.preemptible}"


def _verdicts(done: Sequence[Simulated]) -> list[str]:
    """The one run against the other, and what did not end."""
    lines = [
        f"{one.name}: {one.outcome.ended}, {one.outcome.reason}"
        for one in done
        if one.outcome.ended != "done"
    ]
    if len(done) > 1:
        ours, theirs = done[0].figures, done[1].figures
        faster = ratio(ours.tokens_per_s, theirs.tokens_per_s)
        cheaper = ratio(ours.tokens_per_unit, theirs.tokens_per_unit)
        if faster is not None:
            lines.append(f"{done[0].name} has {faster:.2f} times the throughput of {done[1].name}")
        if cheaper is not None:
            lines.append(f"and {cheaper:.2f} times the tokens for the same money")
    return lines


def _seconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f} s"


def _number(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{value:,.0f} {unit}"
