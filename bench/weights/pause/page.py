"""Section of docs/benchmarks.md on the pause and the lag, from a run's results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import page_sections
from bench.runtime.table import figure
from bench.weights.pause import figure as drawing
from bench.weights.pause.flips import Flip
from bench.weights.pause.joiners import Join
from bench.weights.pause.measurement import median

NAME = "weight pause"
HOW = Path(__file__).with_name("how.md")
BUSY = 1.0  # load of the machine before the run from which its figures count as those of a busy one

Column = tuple[str, Callable[[Flip], float]]
FLIPS: tuple[Column, ...] = (
    ("pause", lambda one: one.pause_s),
    ("a step before", lambda one: one.usual_s),
    ("the engine paused", lambda one: one.still_s),
    ("lag", lambda one: one.lag_s),
    ("described", lambda one: one.describe_s),
    ("on the host", lambda one: one.fetch_s),
    ("pulled", lambda one: one.pull_s),
    ("MB", lambda one: one.pulled_mb),
    ("staged", lambda one: one.stage_s),
    ("tokens/s before", lambda one: one.before),
    ("until the new version", lambda one: one.during),
)
JOINS: tuple[tuple[str, Callable[[Join], float]], ...] = (
    ("registered", lambda one: one.registered_s),
    ("weights here", lambda one: one.pulled_s),
    ("of it the pull", lambda one: one.pull_s),
    ("engine ready", lambda one: one.ready_s),
    ("serves", lambda one: one.serves_s),
    ("first token", lambda one: one.first_s),
)


def write(results: Mapping[str, Any], directory: Path) -> None:
    """Put the section into benchmarks.md of `directory`, and the picture beside it."""
    page_sections.put(directory / "benchmarks.md", NAME, text(results))
    drawing.write(*read(results), directory / "images")


def read(results: Mapping[str, Any]) -> tuple[list[Flip], list[Join]]:
    """Contents of a results file."""
    return [Flip(**one) for one in results["flips"]], [Join(**one) for one in results["joins"]]


def text(results: Mapping[str, Any]) -> str:
    """The section."""
    machine, load = results["machine"], results["load"]
    busy = float(machine["load before the run"]) >= BUSY
    return "\n".join(
        [
            "# The pause for new weights, and late joiners",
            "",
            "Written by `python -m bench.weights.pause --write-docs` from `pause.json`, which one run of",
            f"`python -m bench.weights.pause --json docs/pause.json` wrote: begun at {results['began']},",
            f"{results['took_s']} s, {load['together']} requests at a time.",
            *(["**The machine was busy with other work meanwhile.**"] if busy else []),
            "",
            "Machine: " + "; ".join(f"{key} {value}" for key, value in machine.items()) + ".",
            "",
            f"![What is silent, and how late a version is](images/{drawing.NAME})",
            "",
            *tables(results),
            "",
            HOW.read_text().strip(),
        ]
    )


def tables(results: Mapping[str, Any]) -> list[str]:
    """Medians: of the versions of each way, and of the hosts that joined."""
    flips, joins = read(results)
    found = _head("engine, way", "versions", [name for name, _ in FLIPS])
    for (engine, way), some in groups(flips).items():
        cells = (median([value(one) for one in some]) for _, value in FLIPS)
        found.append(_row(f"{engine}, {way}", len(some), cells))
    found += ["", *_head("a host joins", "hosts", [name for name, _ in JOINS])]
    for engine in dict.fromkeys(one.engine for one in joins):
        these = [one for one in joins if one.engine == engine]
        found.append(_row(engine, len(these), (median([value(one) for one in these]) for _, value in JOINS)))
    return found


def groups(flips: Sequence[Flip]) -> dict[tuple[str, str], list[Flip]]:
    """Flips by engine and way, in the order of the measurement."""
    found: dict[tuple[str, str], list[Flip]] = {}
    for one in flips:
        found.setdefault((one.engine, one.way), []).append(one)
    return found


def _head(what: str, count: str, names: Sequence[str]) -> list[str]:
    return [f"| {what} | {count} | {' | '.join(names)} |", "|---" + "|---:" * (len(names) + 1) + "|"]


def _row(what: str, count: int, cells: Iterable[float]) -> str:
    return f"| {what} | {count} | {' | '.join(figure(cell) if cell else '-' for cell in cells)} |"
