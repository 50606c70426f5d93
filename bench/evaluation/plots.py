"""Plots of docs/evaluation.md, from results of cells and claims.

Owns their form and file names. Every computed value is also in a table, except for curves over time.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from bench.evaluation import scenarios
from bench.evaluation.cells import KILLS_S, LIMITS, SEGMENTS, STATIC
from bench.evaluation.claims import (
    GPU_RATIO,
    Claim,
    Results,
    chosen,
    cost_gain,
    cost_rate,
    gain,
    over_segments,
    overhead_s,
    static,
)
from bench.evaluation.setups import MODELS, RESERVED_PER_HOUR
from bench.evaluation.simulated import CellResult

OURS, PAPER, ALONE, OTHER, THIRD = "#1b7f5c", "#b3541e", "#5b7a99", "#8e44ad", "#c9a227"
DPI = 110


def write_all(results: Results, claims: Sequence[Claim], directory: Path) -> list[Path]:
    """Every plot with data; returns the files."""
    made = [
        _save(_overall(claims), directory / "evaluation_overall.png"),
        _save(_segments(results), directory / "evaluation_segments.png"),
        _save(_sweeps(results), directory / "evaluation_sweeps.png"),
        _save(_scenarios(results), directory / "evaluation_scenarios.png"),
    ]
    return [file for file in made if file is not None]


def _save(drawing: Any | None, file: Path) -> Path | None:
    if drawing is None:
        return None
    drawing.tight_layout()
    drawing.savefig(file, dpi=DPI)
    pyplot.close(drawing)
    return file


def _overall(claims: Sequence[Claim]) -> Any | None:
    """R1, R2 and R5: the paper's bars beside ours, with the seeds as dots."""
    groups = [
        ("throughput over co-located", [claim for claim in claims if claim.id == "R1"]),
        ("tokens a dollar over co-located", [c for c in claims if c.id == "R2" and "mean of" in c.what]),
    ]
    if not all(group for _, group in groups):
        return None
    drawing, panels = pyplot.subplots(1, 2, figsize=(9, 3.4))
    for panel, (title, group) in zip(panels, groups, strict=True):
        for at, claim in enumerate(group):
            bend = (lambda v: 1 + v / 100) if claim.unit == "%" else float
            panel.bar(
                at - 0.2,
                bend(claim.paper or 0.0),
                0.36,
                color=PAPER,
                label="RLBoost (paper)" if not at else None,
            )
            panel.bar(
                at + 0.2, bend(claim.mean), 0.36, color=OURS, label="Gleaner (simulated)" if not at else None
            )
            panel.plot([at + 0.2] * len(claim.ours), [bend(v) for v in claim.ours], "k.", markersize=4)
        panel.axhline(1, color="grey", linewidth=0.8, linestyle="--")
        panel.set_xticks(range(len(group)), [claim.what.split(":")[0] for claim in group])
        panel.set_title(title, fontsize=10)
        panel.set_ylim(top=1.25 * panel.get_ylim()[1])  # space for the legend
        panel.legend(fontsize=8, loc="upper right")
    return drawing


def _steps(panel: Any, result: CellResult, color: str, label: str, begin_s: float = 0.0) -> None:
    """Throughput of each step, over its time."""
    for number, step in enumerate(result.steps):
        rate = step.tokens / step.step_s
        times = [(step.begin_s - begin_s) / 60, (step.begin_s + step.step_s - begin_s) / 60]
        panel.plot(times, [rate, rate], color=color, linewidth=2, label=None if number else label)


def _segments(results: Results) -> Any | None:
    """Plot in the style of the paper's figures 8 and 9: throughput and hosts over each segment, of the first
    seed."""
    models = [model for model in MODELS if all(_segment(results, model, name) for name in SEGMENTS)]
    if not models:
        return None
    drawing, panels = pyplot.subplots(len(models), 3, figsize=(12, 2.5 * len(models)), squeeze=False)
    for row, model in zip(panels, models, strict=True):
        base = next(iter(results.base(model).values()))
        for panel, name in zip(row, SEGMENTS, strict=True):
            found = _segment(results, model, name)
            if found is None:
                continue
            beside = panel.twinx()
            looks = [look for look in found.looks if look.t_s <= 7200]
            beside.fill_between(
                [look.t_s / 60 for look in looks],
                [look.hosts for look in looks],
                step="post",
                color=THIRD,
                alpha=0.3,
            )
            beside.set_ylim(0, 20)
            _steps(panel, found, OURS, "Gleaner")
            panel.axhline(base.tokens_per_s, color=ALONE, linestyle="--", label="co-located")
            panel.set_ylim(0, None)
            panel.set_title(f"{model.upper()}, segment {name}", fontsize=9)
            panel.set_zorder(beside.get_zorder() + 1)
            panel.patch.set_visible(False)
            if panel is row[0]:
                panel.set_ylabel("tokens/s trained")
            if panel is row[-1]:
                beside.set_ylabel("hosts (shaded)")
    panels[0][0].legend(fontsize=8, loc="lower right")
    for panel in panels[-1]:
        panel.set_xlabel("minutes")
    return drawing


def _segment(results: Results, model: str, segment: str) -> CellResult | None:
    return next(iter(results.seeds(kind="segment", model=model, segment=segment).values()), None)


def _means(pairs: Mapping[float, Sequence[float]]) -> tuple[list[float], list[float], list[list[float]]]:
    """Position of each place, the mean, and the distances of the least and the most from it."""
    places = sorted(place for place in pairs if pairs[place])
    means = [statistics.mean(pairs[place]) for place in places]
    below = [mean - min(pairs[place]) for place, mean in zip(places, means, strict=True)]
    above = [max(pairs[place]) - mean for place, mean in zip(places, means, strict=True)]
    return places, means, [below, above]


def _line(panel: Any, pairs: Mapping[float, Sequence[float]], color: str, label: str) -> None:
    places, means, spread = _means(pairs)
    panel.errorbar(places, means, spread, color=color, marker="o", capsize=3, label=label)


def _sweeps(results: Results) -> Any | None:
    """R5, R7, R12."""
    base = results.base("14b")
    counts: dict[float, tuple[list[float], list[float]]] = {0: ([1.0], [1.0])}
    for hosts in STATIC:
        found = static(results, hosts)
        pairs = [(found[seed], base[seed]) for seed in found if seed in base]
        counts[hosts] = [gain(*pair) for pair in pairs], [cost_gain(*pair) for pair in pairs]
    if len(counts) < 2 or not counts[1][0]:
        return None
    drawing, (number, length, price) = pyplot.subplots(1, 3, figsize=(13, 3.6))
    _line(number, {n: pair[0] for n, pair in counts.items()}, OURS, "throughput")
    _line(number, {n: pair[1] for n, pair in counts.items()}, ALONE, "tokens a dollar")
    number.plot([1, 6], [1.37, 1.37 * 1.64], "D", color=PAPER, label="throughput (paper)")
    number.plot(
        [1, 6],
        [1 / 0.78, 1 / (0.78 * 0.79)],
        "s",
        color=PAPER,
        fillstyle="none",
        label="tokens a dollar (paper)",
    )
    number.set(xlabel="instances, static", title="14B over no instance (R5)")
    by_limit: dict[float, tuple[list[float], list[float]]] = {}
    for limit in (*LIMITS, 0):
        alone = results.base("14b", limit)
        some = chosen(results, limit)
        pairs = [(some[seed], alone[seed]) for seed in some if seed in alone]
        by_limit[(limit or 14_336) / 1000] = [gain(*p) for p in pairs], [cost_gain(*p) for p in pairs]
    if any(pair[0] for pair in by_limit.values()):
        _line(length, {n: pair[0] for n, pair in by_limit.items()}, OURS, "throughput")
        _line(length, {n: pair[1] for n, pair in by_limit.items()}, ALONE, "tokens a dollar")
        length.plot([5, 14], [1.47, 2.22], "D", color=PAPER, label="throughput (paper)")
        length.plot(
            [5, 14], [1.24, 1.61], "s", color=PAPER, fillstyle="none", label="tokens a dollar (paper)"
        )
    length.set(xlabel="longest response, 1,000 tokens", title="14B over co-located (R7)")
    for model, color in zip(MODELS, (OURS, ALONE, OTHER), strict=True):
        discounts = list(range(0, 101, 5))
        curves = [over_segments(results, model, _at(discount)) for discount in discounts]
        if all(curves):
            price.plot(
                discounts, [statistics.mean(curve) for curve in curves], color=color, label=model.upper()
            )
    price.axhline(1, color="grey", linewidth=0.8, linestyle="--")
    price.axvline(30, color=PAPER, linestyle=":", label="break-even (paper)")
    price.set(xlabel="spot discount, %", title="tokens a dollar over co-located (R12)")
    for panel in (number, length, price):
        panel.legend(fontsize=7)
        panel.title.set_fontsize(10)
    return drawing


def _at(discount: float) -> Callable[[CellResult, CellResult], float]:
    """Tokens per money where a GPU on the spot market is so many percent cheaper."""
    price = RESERVED_PER_HOUR / GPU_RATIO * (1 - discount / 100)
    return lambda one, alone: gain(one, alone) * cost_rate(alone) / cost_rate(one, price)


def _scenarios(results: Results) -> Any | None:
    """R8 to R11."""
    calm = results.seeds(kind="kill", model="14b", at_s=0.0)
    waves = results.seeds(kind="wave", model="14b")
    if not calm or not waves:
        return None
    drawing, panels = pyplot.subplots(2, 2, figsize=(12, 7))
    (wave, join), (restart, kill) = panels
    for variant, color in (("gleaner", OURS), ("algorithm-1", ALONE), ("no-seeding", PAPER)):
        found = results.seeds(kind="wave", model="14b", variant=variant)
        if found:
            _steps(wave, next(iter(found.values())), color, variant, begin_s=scenarios.WAVE_S)
    wave.axvline(0, color="grey", linewidth=0.8)
    for number in range(1, scenarios.WAVE_GONE + 1):
        wave.axvline(scenarios.WAVE_EVERY_S * number / 60, color="grey", linewidth=0.5, linestyle=":")
    wave.set(
        title="5 of 6 go at 0, one comes back at each dotted line (R8, R9)",
        xlabel="minutes",
        ylabel="tokens/s trained",
    )
    _generation(join, results, "join", "an instance joins at each dotted line (R10)")
    _generation(restart, results, "restart", "an instance goes, another comes, at each dotted line (R10)")
    for at, after_s in enumerate(KILLS_S):
        for shift, variant, color in ((-0.2, "gleaner", OURS), (0.2, "recompute", PAPER)):
            values = [v for seed in calm if (v := overhead_s(results, seed, variant, after_s)) is not None]
            if values:
                name = {"gleaner": "migrate", "recompute": "recompute"}[variant]
                kill.bar(at + shift, statistics.mean(values), 0.36, color=color, label=None if at else name)
                kill.plot([at + shift] * len(values), values, "k.", markersize=4)
    kill.set_xticks(range(len(KILLS_S)), [f"{after_s:.0f} s into the step" for after_s in KILLS_S])
    kill.set(title="3 of 6 go at once: seconds that the step takes longer (R11)", ylabel="seconds")
    for panel in (wave, join, restart, kill):
        panel.legend(fontsize=8)
        panel.title.set_fontsize(10)
    return drawing


def _generation(panel: Any, results: Results, kind: str, title: str) -> None:
    """Tokens generated a second within the step with the event."""
    for variant, color, name in (
        ("gleaner", OURS, "pulled weights"),
        ("synchronous", PAPER, "synchronous weights"),
    ):
        found = [one for one in _with_event(results, kind, variant)]
        for one in found[:1]:
            last = one.steps[-1]
            looks = [look for look in one.looks if last.begin_s <= look.t_s <= last.begin_s + last.step_s]
            times = [look.t_s - last.begin_s for look in looks]
            panel.plot(times, [look.tokens_per_s for look in looks], color=color, label=name, linewidth=1.2)
    for at_s in scenarios.JOINS_S:
        panel.axvline(at_s, color="grey", linewidth=0.5, linestyle=":")
    panel.set(title=title, xlabel="seconds from the step's begin", ylabel="tokens/s generated")


def _with_event(results: Results, kind: str, variant: str) -> Iterable[CellResult]:
    return (
        one
        for one in results.every()
        if one.cell.kind == kind and one.cell.at_s and one.cell.variant == variant
    )
