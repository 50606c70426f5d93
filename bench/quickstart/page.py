"""Section of docs/benchmarks.md on the shipped job beside TRL.

Has a table, goals and a picture.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean, median
from typing import Any

from rich.table import Table

from bench import page_sections
from bench.quickstart.contenders import Outcome
from bench.runtime.table import VERDICTS

NAME = "quickstart"
HOW = Path(__file__).with_name("how.md")
PLAIN, CALM, KILLED, ONE = "TRL", "Gleaner, calm", "Gleaner, hosts killed", "Gleaner, one host"
BUSY = 1.0
LARGER = "quickstart_larger.json"

COLUMNS: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "all steps, s": lambda one: sum(one["each_s"]),
    "a step, s": lambda one: median(one["each_s"]),
    "first step after, s": lambda one: one["cost"]["first_step_s"],
    "command, s": lambda one: one["cost"]["wall_s"],
    "processor, s": lambda one: one["cost"]["cpu_s"],
    "memory, MiB": lambda one: one["cost"]["peak_mib"],
    "processes": lambda one: one["cost"]["processes"],
    "held-out reward before": lambda one: one["first"],
    "after": lambda one: one["last"],
}
DIGITS = {"held-out reward before": 3, "after": 3, "memory, MiB": 0, "processes": 0, "a step, s": 2}


def line(name: str, seed: int, outcome: Outcome) -> str:
    """One job, as soon as it is over."""
    return (
        f"{name}, seed {seed}: {sum(outcome.each_s):.1f} s for {len(outcome.each_s)} steps, command "
        f"{outcome.cost.wall_s:.1f} s, processor {outcome.cost.cpu_s:.1f} s, "
        f"{outcome.cost.peak_mib:.0f} MiB, held-out {outcome.first:.3f} to {outcome.last:.3f}"
    )


def medians(results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Medians of each side and column, over the seeds; the rewards are means."""
    found = {}
    for name, jobs in results["sides"].items():
        found[name] = {
            column: (mean if column in ("held-out reward before", "after") else median)(map(of, jobs))
            for column, of in COLUMNS.items()
        }
    return found


def table(results: Mapping[str, Any]) -> Table:
    """Table for a terminal."""
    shown = Table("side", title="The same job, medians over the seeds")
    for column in COLUMNS:
        shown.add_column(column, justify="right")
    for name, values in medians(results).items():
        shown.add_row(name, *_cells(values))
    return shown


def _cells(values: Mapping[str, float]) -> list[str]:
    return [f"{values[column]:.{DIGITS.get(column, 1)}f}" for column in COLUMNS]


def goals(results: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Goals: name, measured ratio, upper bound."""
    found = medians(results)

    def ratio(column: str, name: str, to: str) -> float:
        if name not in found or to not in found:
            return float("nan")
        return found[name][column] / found[to][column]

    steps = "all steps, s"
    return [
        ("time of the steps, calm, to TRL's", ratio(steps, CALM, PLAIN), 1.0),
        ("time of the steps, one host, to TRL's", ratio(steps, ONE, PLAIN), 0.75),
        ("time of the steps, hosts killed, to the calm run's", ratio(steps, KILLED, CALM), 1.10),
        ("processor time of the command, calm, to TRL's", ratio("processor, s", CALM, PLAIN), 1.0),
    ]


def write(results: Mapping[str, Any], larger: Mapping[str, Any], directory: Path) -> None:
    """Put the section into benchmarks.md of `directory`, and its picture beside it. larger: results with a
    larger model."""
    from bench.quickstart import figure

    figure.draw(results, directory / "images" / "quickstart.png")
    page_sections.put(directory / "benchmarks.md", NAME, text(results, larger))


def rows(results: Mapping[str, Any]) -> list[str]:
    """The table of medians, in Markdown."""
    return [
        f"| side | {' | '.join(COLUMNS)} |",
        "|---" + "|---:" * len(COLUMNS) + "|",
        *(f"| {name} | {' | '.join(_cells(values))} |" for name, values in medians(results).items()),
    ]


def text(results: Mapping[str, Any], larger: Mapping[str, Any]) -> str:
    """The section."""
    machine = results["machine"]
    seeds = max(map(len, results["sides"].values()))
    busy = float(machine["load before the run"]) >= BUSY
    return "\n".join(
        [
            "# The shipped job beside a plain trainer",
            "",
            "Written by `python -m bench.quickstart --write-docs` from `quickstart.json`, which one run of",
            f"`python -m bench.quickstart --json docs/quickstart.json` wrote: begun at {results['began']}, "
            f"{seeds} seeds.",
            *(["**The machine was busy with other work meanwhile.**"] if busy else []),
            "",
            "Machine: " + "; ".join(f"{key} {value}" for key, value in machine.items()) + ".",
            "",
            HOW.read_text().strip(),
            "",
            *rows(results),
            "",
            "![Seconds of every step, each side a line](images/quickstart.png)",
            "",
            "| goal | measured | at most | verdict |",
            "|---|---:|---:|---|",
            *(
                f"| {what} | {ratio:.2f} | {most:.2f} | {VERDICTS[ratio <= most]} |"
                for what, ratio, most in goals(results)
            ),
            "",
            f"## The same with {larger['parameters'] / 1e6:.0f} million parameters",
            "",
            f"From `{LARGER}`: `--seeds {max(map(len, larger['sides'].values()))} "
            + " ".join(f"--set {one}" for one in larger["settings"])
            + "`. Held-out rewards mean nothing here: the model is hardly trained.",
            "",
            *rows(larger),
        ]
    )
