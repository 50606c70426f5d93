"""Generated parts of docs/evaluation.md: tables from results, between marks.

Owns the tables. The page's other text, and the reasons of differences (`words.toml`), are written by hand,
after reading the results.
"""

import statistics
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.evaluation import figures
from bench.evaluation.cells import SCALES, SEGMENTS
from bench.evaluation.claims import (
    Claim,
    Results,
    cost_gain,
    gain,
    over_segments,
    overhead_s,
    segment_gains,
)
from bench.evaluation.figures import Figure
from bench.evaluation.setups import MODELS
from bench.evaluation.simulated import CellResult
from bench.page_sections import put

WORDS = Path(__file__).with_name("words.toml")
FAR = 0.15
"""From this difference on, the page gives a reason."""


def write(file: Path, results: Results, claims: Sequence[Claim]) -> None:
    """Bring the page's tables up to date, and the figures beside it."""
    figures.write(file.with_suffix(".json"), figures.figures_of(claims))
    reprint(file)
    put(file, "segments", segments_text(results))
    put(file, "controllers", controllers_text(results))
    put(file, "ablations", ablations_text(results))
    put(file, "scales", scales_text(results))
    put(file, "cells", cells_text(results.every()))


def reprint(file: Path) -> None:
    """Write the comparison with the paper anew, from the figures beside the page."""
    rows = figures.read(file.with_suffix(".json"))
    put(file, "claims", claims_text(rows, tomllib.loads(WORDS.read_text())["reasons"]))
    put(file, "six instances", six_text(rows))


def claims_text(rows: Sequence[Figure], reasons: Mapping[str, str]) -> str:
    """The paper's figures and ours, and the reasons of large differences."""
    found = [
        "| | figure | paper | ours | least to most (seeds) | ours / paper's |",
        "|---|---|---:|---:|---:|---:|",
    ]
    far: dict[str, None] = {}
    for row in rows:
        text = _against(row)
        if "**" in text:
            far[row.id] = None
        paper = "-" if row.paper is None else shown(row.paper, row.unit)
        least, most = shown(row.least, row.unit), shown(row.most, row.unit)
        spread = f"{least} to {most} ({row.seeds})"
        found.append(f"| {row.id} | {row.what} | {paper} | {shown(row.mean, row.unit)} | {spread} | {text} |")
    lines = [f"- **{name}**: {' '.join(reasons.get(name, 'not explained yet').split())}" for name in far]
    heading = "Why figures differ by more than 15 %, have another sign or are absent:"
    return "\n".join([*found, "", *([heading, "", *lines] if lines else [])])


def _against(row: Figure) -> str:
    """Our effect over the paper's; bold where it needs a reason."""
    if row.ratio is None:
        return ""
    if row.absent:
        return "**absent**"
    if row.opposite:
        return f"**other sign** ({row.ratio:.2f})"
    return f"**{row.ratio:.2f}**" if abs(row.ratio - 1) > FAR else f"{row.ratio:.2f}"


def six_text(rows: Sequence[Figure]) -> str:
    """Three figures for 14B with about six instances, and what differs between their cells."""
    by = {row.what: row for row in rows}
    found = ["| 14B over veRL | instances | ours | paper |", "|---|---:|---:|---:|"]
    mean = by.get("14B: throughput over veRL, mean of A, B, C")
    used = by.get("14B: instances used (derived)")
    one = by.get("14B, one instance: throughput over none")
    six = by.get("14B, six instances over one: throughput")
    chosen = by.get("14B, responses of at most 14,336: throughput over veRL")
    count = by.get("14B, responses of at most 14,336: instances")
    if mean and used and mean.paper and used.paper:
        found.append(
            f"| R1: two hours of a trace, all steps, instances boot, come and go "
            f"| {used.mean:.1f}, paper {used.paper:.1f} | {mean.mean:.2f} x | {mean.paper:.2f} x |"
        )
    if one and six and one.paper and six.paper:
        found.append(
            f"| R5: always there, without the first step (one over none, times six over one) "
            f"| 6 | {one.mean * six.mean:.2f} x | {one.paper * six.paper:.2f} x |"
        )
    if chosen and count and chosen.paper and count.paper:
        found.append(
            f"| R7: always there, all of four steps, as many as the controller wants "
            f"| {count.mean:.1f}, paper {count.paper:.1f} | {chosen.mean:.2f} x | {chosen.paper:.2f} x |"
        )
    return "\n".join(found)


def shown(value: float, unit: str) -> str:
    """One figure as the table has it."""
    match unit:
        case "x":
            return f"{value:.2f} x"
        case "%":
            return f"{value:+.0f} %"
        case "share" | "%p":
            return f"{value:.0f} %"
        case _:
            return f"{value:.2f}"


def segments_text(results: Results) -> str:
    """Throughput over the co-located run, segment by segment, of every variant with all of them."""
    variants = list(dict.fromkeys(one.cell.variant for one in results.every() if one.cell.kind == "segment"))
    found = [
        "| model | variant | "
        + " | ".join(f"{name}: x (least to most), hosts" for name in SEGMENTS)
        + " | mean |",
        "|---|---|" + "---:|" * (len(SEGMENTS) + 1),
    ]
    for model in MODELS:
        for variant in variants:
            cells = [_segment(results, model, name, variant) for name in SEGMENTS]
            if all(cells):
                mean = statistics.mean(over_segments(results, model, gain, variant) or [float("nan")])
                found.append(f"| {model.upper()} | {variant} | {' | '.join(cells)} | {mean:.2f} x |")
    return "\n".join(found)


def _segment(results: Results, model: str, segment: str, variant: str) -> str:
    gains = segment_gains(results, model, segment, variant)
    if not gains:
        return ""
    used = results.seeds(kind="segment", model=model, segment=segment, variant=variant).values()
    hosts = statistics.mean(one.hosts for one in used)
    return f"{statistics.mean(gains):.2f} ({min(gains):.2f} to {max(gains):.2f}), {hosts:.1f}"


def controllers_text(results: Results) -> str:
    """The default controller against Algorithm 1: the same model, segment and seed."""
    found = [
        "| model | segment | seeds | tokens a second | least to most | tokens a dollar | least to most "
        "| instances (Algorithm 1, default) |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for model in MODELS:
        for name in SEGMENTS:
            ours = results.seeds(kind="segment", model=model, segment=name)
            theirs = results.seeds(kind="segment", model=model, segment=name, variant="algorithm-1")
            seeds = [seed for seed in ours if seed in theirs]
            if not seeds:
                continue
            fast = [100 * (gain(ours[seed], theirs[seed]) - 1) for seed in seeds]
            cheap = [100 * (cost_gain(ours[seed], theirs[seed]) - 1) for seed in seeds]
            hosts = [statistics.mean(some[seed].hosts for seed in seeds) for some in (theirs, ours)]
            found.append(
                f"| {model.upper()} | {name} | {len(seeds)} | {statistics.mean(fast):+.1f} % "
                f"| {min(fast):+.1f} to {max(fast):+.1f} % | {statistics.mean(cheap):+.1f} % "
                f"| {min(cheap):+.1f} to {max(cheap):+.1f} % | {hosts[0]:.1f}, {hosts[1]:.1f} |"
            )
    return "\n".join(found)


def ablations_text(results: Results) -> str:
    """Cost of each switch in segment B, seed by seed against the product as it is."""
    full = results.seeds(kind="segment", model="14b", segment="B")
    found = [
        "| 14B, segment B | throughput against all of it | least to most (seeds) | dispatched again |",
        "|---|---:|---:|---:|",
    ]
    variants = dict.fromkeys(one.cell.variant for one in results.every() if one.cell.segment == "B")
    for variant in variants:
        some = results.seeds(kind="segment", model="14b", segment="B", variant=variant)
        ratios = [100 * (gain(some[seed], full[seed]) - 1) for seed in some if seed in full]
        if variant == "gleaner" or not ratios:
            continue
        again = statistics.mean(one.migrations for one in some.values())
        found.append(
            f"| {variant} | {statistics.mean(ratios):+.1f} % | {min(ratios):+.1f} to {max(ratios):+.1f} % "
            f"({len(ratios)}) | {again:.0f} |"
        )
    rows = ["", "| 14B, three of six go | migrate: the step takes longer by | recompute |", "|---|---:|---:|"]
    calm = results.seeds(kind="kill", model="14b", at_s=0.0)
    for after_s in (100.0, 200.0):
        cells = []
        for variant in ("gleaner", "recompute"):
            values = [v for seed in calm if (v := overhead_s(results, seed, variant, after_s)) is not None]
            cells.append(
                f"{statistics.mean(values):.0f} s ({min(values):.0f} to {max(values):.0f})" if values else "-"
            )
        rows.append(f"| {after_s:.0f} s into a step | {' | '.join(cells)} |")
    return "\n".join([*found, *rows])


def scales_text(results: Results) -> str:
    """Step times with the usual token scale, and with half of it."""
    found = [
        f"| mean step | {SCALES[0]} tokens each | {SCALES[1]} tokens each | off |",
        "|---|---:|---:|---:|",
    ]
    for model in MODELS:
        for kind, name in (("colocated", "co-located"), ("static", "six instances")):
            by = [
                results.seeds(kind=kind, model=model, token_scale=scale, variant=_of(kind))
                for scale in SCALES
            ]
            if all(by):
                usual, half = (statistics.mean(_step_s(one) for one in some.values()) for some in by)
                found.append(
                    f"| {model.upper()}, {name} | {usual:.1f} s | {half:.1f} s | {usual / half - 1:+.1%} |"
                )
    return "\n".join(found)


def _of(kind: str) -> str:
    return "static" if kind == "static" else "gleaner"


def _step_s(result: CellResult) -> float:
    return result.seconds / len(result.steps)


def cells_text(results: Sequence[CellResult]) -> str:
    """Costs of the simulation."""
    if not results:
        return ""
    minutes = sum(one.cpu_s for one in results) / 60
    hours = sum(one.virtual_s for one in results) / 3600
    codes = {one.code for one in results}
    return (
        f"{len(results)} cells, {hours:.0f} simulated hours, {minutes:.0f} minutes of one core's time; "
        f"code {', '.join(sorted(codes))}."
    )


def crosscheck_text(found: Mapping[str, Any], machine: str) -> str:
    """Predicted and measured steps of real runs; the measurements of the machine."""
    rows = [
        "| real run | slower than alone, by the rehearsal | measured | predicted | off | goal |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines = []
    for name, run in found["runs"].items():
        measured, predicted = zip(*run["steps"], strict=True)
        rows.append(
            f"| {name}, {len(measured)} steps | {run['rehearsed']:.2f} x "
            f"| {statistics.mean(measured):.2f} s a step | "
            f"{statistics.mean(predicted):.2f} s | {run['off']:+.0%} | {found['goal']:.0%} |"
        )
        steps = "; ".join(f"{one:.1f} / {other:.1f}" for one, other in run["steps"])
        lines.append(f"- {name}, seconds measured / predicted, step by step: {steps}.")
    parts = [
        "| mean seconds | seeding | waiting | training | weights | step |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, run in found["runs"].items():
        for what in ("measured", "predicted"):
            cells = " | ".join(f"{value:.2f}" for value in run[f"parts_{what}"].values())
            parts.append(f"| {name}, {what} | {cells} |")
    shown = ["Measured of the machine:", "", "```", machine, "```"]
    return "\n".join([*rows, "", *parts, "", *lines, "", *shown])
