"""Page docs/benchmarks.md, written from a run's results; it has all their numbers.

The texts are in `words.toml`; the reason of a missed goal is written there by hand, after reading the
results.
"""

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import page_sections
from bench.runtime import figure as drawing
from bench.runtime.harness import Results
from bench.runtime.rows import OURS, ROWS, SYSTEMS, RowSpec, Samples, bound_of, met, middle
from bench.runtime.table import VERDICTS, figure, lines

WORDS = Path(__file__).with_name("words.toml")


def write(results: Mapping[str, Any], directory: Path) -> Path:
    """Write benchmarks.md into `directory`, and keep the sections of other benches; returns the file."""
    file = directory / "benchmarks.md"
    others = page_sections.kept(file)
    file.write_text(text(results, tomllib.loads(WORDS.read_text())) + others)
    return file


def text(results: Mapping[str, Any], words: Mapping[str, Any]) -> str:
    """The page."""
    return "\n".join(
        [
            *_opening(results),
            *_figures(results),
            *_goals(results["samples"], words["reasons"]),
            *_systems(results, words["how"]),
            "## Rules",
            "",
            words["rules"].strip(),
            "",
        ]
    )


def _opening(results: Mapping[str, Any]) -> list[str]:
    sizes = results["sizes"]
    minutes = f"{results['took_s'] / 60:.0f}"
    return [
        "# Actor runtimes, side by side",
        "",
        "Written by `python -m bench.runtime --write-docs` from `benchmarks.json`, which one run of",
        "`python -m bench.runtime --json docs/benchmarks.json` wrote: begun at",
        f"{results['began']}, {minutes} minutes, {results['rounds']} rounds in which the systems took turns.",
        f"Medians are shown. One rate or latency is measured for {sizes['seconds']:g} s after",
        f"{sizes['warm_up_s']:g} s of warm-up, the storm for {sizes['storm_s']:g} s.",
        *(
            f"The rows {', '.join(f'`{row}`' for row in again['rows'])} were measured again, by all systems, "
            f"at {again['began']}."
            for again in results.get("again", [])
        ),
        "`make bench-peers` makes the environments of the others.",
        "",
        "Machine: " + "; ".join(f"{key} {value}" for key, value in results["machine"].items()) + ".",
        "",
        f"![Every row as a panel](images/{drawing.NAME})",
        "",
        "Dashed lines are goals, dots are rounds.",
        "",
    ]


def _figures(results: Mapping[str, Any]) -> list[str]:
    found = [f"| what | unit | {' | '.join(SYSTEMS)} |", "|---|---|" + "---:|" * len(SYSTEMS)]
    before: RowSpec | None = None
    for spec, metric, cells in lines(Results(results["samples"], results["notes"], results["versions"])):
        title = "" if spec is before else spec.title
        found.append(f"| {title} | {metric.label} | {' | '.join(cells)} |")
        before = spec
    never = f"{results['sizes']['never_s']:.0f} s"
    return [
        *found,
        "",
        f"`-`: does not apply, or was not run; `no`: see below; `never`: not noticed within {never}.",
        "",
    ]


def _goals(samples: Samples, reasons: Mapping[str, str]) -> list[str]:
    found = ["## Goals", "", "| what | goal | measured | verdict |", "|---|---|---|---|"]
    missed = []
    for spec in ROWS:
        if not spec.goals or spec.name not in samples:
            continue
        verdict = met(spec, samples)
        found.append(f"| {spec.title} | {spec.aim} | {_against(spec, samples)} | {VERDICTS[verdict]} |")
        if verdict is False:
            missed.append(f"- **{spec.title}**: {_joined(reasons.get(spec.name, 'not explained yet'))}")
    return [*found, "", *(["Why a goal was missed:", "", *missed, ""] if missed else [])]


def _systems(results: Mapping[str, Any], how: Mapping[str, str]) -> list[str]:
    found = ["## How each system is measured", ""]
    for system in SYSTEMS:
        version = results["versions"].get(system, "not run")
        found.append(f"- **{system}** ({version}). {_joined(how[system])}")
    notes = [
        f"- `{name}`, {system}: {note}"
        for name, by_system in results["notes"].items()
        for system, note in by_system.items()
    ]
    return [*found, "", *(["What was not measured:", "", *notes, ""] if notes else [])]


def _joined(text: str) -> str:
    return " ".join(text.split())


def _against(spec: RowSpec, samples: Samples) -> str:
    """Our figures beside the references of the goals."""
    found = []
    for goal in spec.goals:
        ours = middle(samples, spec.name, OURS, goal.metric)
        metric = spec.metric(goal.metric)
        if ours is not None and math.isnan(ours):
            found.append("never")
            continue
        bound = bound_of(spec, goal, samples)
        sign = ("<" if metric.lower else ">") + ("" if goal.strict else "=")
        held = "not measured" if bound is None else figure(bound)
        whose = f", {goal.of}" if goal.of else ""
        found.append(f"{figure(ours)} {metric.unit} (goal {sign} {held}{whose})")
    return "; ".join(found)
