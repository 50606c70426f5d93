"""Cells whose rounds follow predictions, beside the same job without rounds and with fixed ones.

Owns the arithmetic and the two tables. Steps are settled in a whole period: the short rounds that its surplus
asks for, and the long one. The first steps of a job with `auto` are whole, so all of its steps are shown
too. Pure.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from bench.evaluation.cells import SEGMENTS, Cell
from bench.evaluation.rollpacker import grid
from bench.evaluation.rollpacker.periods import PLAIN, SHORT, Found
from bench.evaluation.rollpacker.setups import HARD, MODELS
from bench.evaluation.simulated import CellResult

Make = Callable[[str, int], Cell]
"""The cell of a variant and a seed."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A job beside the plain one of the same seed. every, settled: the mean plain step over the mean step, of
    all steps, and of whole periods or, without one, of the whole steps. factor: launched over counted groups
    of the newest short round, None without one."""

    steps: int
    every: float
    settled: float
    factor: float | None


def chosen(result: CellResult, plain: CellResult) -> Chosen | None:
    """Its figures; None for a job that has rounds in every step and no whole period."""
    plain_s = _mean(step.step_s for step in plain.steps)
    short = [one for one in result.rounds if one.round == SHORT]
    settled = [step.step_s for step in result.steps]
    if short:
        surplus = {one.step: one.launched - one.counted for one in short}
        whole = [
            period
            for period in result.periods
            if period.whole and period.short >= short[0].counted // surplus[period.first]
        ]
        inside = {step for period in whole for step in range(period.first, period.last + 1)}
        if not whole:
            others = {one.step for one in result.rounds if one.round != PLAIN}
            inside = {step.step for step in result.steps} - others
        settled = [step.step_s for step in result.steps if step.step in inside]
    if not settled:
        return None
    return Chosen(
        steps=len(result.steps),
        every=plain_s / _mean(step.step_s for step in result.steps),
        settled=plain_s / _mean(settled),
        factor=short[-1].launched / short[-1].counted if short else None,
    )


def places() -> list[tuple[str, Make, tuple[str, str]]]:
    """The set-ups of the table: words, cells, and the variants without rounds and with the defaults."""
    found: list[tuple[str, Make, tuple[str, str]]] = [
        (f"{model.split('-')[0].upper()}, {made.limit:,}", partial(grid.chosen_of, model), ("off", "tail"))
        for model, made in MODELS.items()
    ]
    for hard in grid.HARD_SHARES:
        if hard != HARD:
            words = f"14B/16k, {hard} % of hard prompts"
            found.append((words, partial(grid.chosen_by_share, hard), ("off", "tail")))
    found.append(("14B/16k on 8 devices instead of 32", grid.chosen_on_few_devices, ("off", "tail")))
    for segment in SEGMENTS:
        found.append((f"RLBoost: segment {segment}", partial(grid.rlboost, segment), grid.RLBOOST))
    found.append(("RLBoost: at most two instances", partial(grid.rlboost, ""), grid.RLBOOST))
    return found


def chosen_text(found: Found) -> str:
    """Every set-up with fixed rounds, with `auto`, and with `auto` and `prompts_plan = "model"`."""
    rows = [
        "| set-up | seeds | `tail` | `auto`: all steps | settled | `auto` and `model`: all steps | settled "
        "| its factor |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for words, make, (off, tail) in places():
        fixed = _of(found, make, tail, off)
        auto, model = (_of(found, make, variant, off) for variant in _variants(off))
        if not auto and not model:
            continue
        seeds = sorted({*auto, *model})
        factors = sorted({one.factor for one in model.values() if one.factor is not None})
        cells = [
            words,
            str(len(seeds)),
            spread([one.settled for seed, one in fixed.items() if seed in seeds]),
            spread([one.every for one in auto.values()]),
            spread([one.settled for one in auto.values()]),
            spread([one.every for one in model.values()]),
            spread([one.settled for one in model.values()]),
            ", ".join(f"{factor:g}" for factor in factors) or ("no rounds" if model else "-"),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def factors_text(found: Found) -> str:
    """The gain of fixed factors, over the share of hard prompts."""
    rows = [
        f"| hard prompts | {' | '.join(f'{factor:g}' for factor in grid.FACTOR_STEPS)} |",
        f"|---:|{'---:|' * len(grid.FACTOR_STEPS)}",
    ]
    for hard in grid.HARD_SHARES:
        cells = []
        for factor in grid.FACTOR_STEPS:
            some = _of(found, partial(grid.factor_swept, hard, factor), "tail", "off")
            cells.append(spread([one.settled for one in some.values()]))
        rows.append(f"| {hard} % | {' | '.join(cells)} |")
    return "\n".join(rows)


def returning_text(found: Found) -> str:
    """Jobs whose problems return, with the best fixed factor and with a history of problems: the mean seconds
    of all steps, and tokens that were aborted over those that were trained."""
    rows = [
        "| hard prompts | without, its factor | a step | aborted | with `history`, its factor | a step "
        "| aborted | gain |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for hard, variants in grid.RETURNING.items():
        for seed in grid.SEEDS:
            pair = [found.of(grid.returning(hard, variant, seed)) for variant in variants]
            if any(one is None for one in pair):
                continue
            cells, means = [f"{hard} %"], []
            for variant, one in zip(variants, pair, strict=True):
                assert one is not None
                means.append(_mean(step.step_s for step in one.steps))
                aborted = sum(row.aborted_tokens for row in one.rounds)
                share = aborted / sum(step.tokens for step in one.steps)
                cells += [variant.partition("-")[2], f"{means[-1]:.1f} s", f"{share:.0%}"]
            rows.append(f"| {' | '.join([*cells, f'{means[0] / means[1]:.2f} x'])} |")
    return "\n".join(rows)


def _variants(off: str) -> Sequence[str]:
    return grid.AUTO if off == "off" else grid.RLBOOST_AUTO


def _of(found: Found, make: Make, variant: str, off: str) -> dict[int, Chosen]:
    some = {}
    for seed in grid.SEEDS:
        one, plain = found.of(make(variant, seed)), found.of(make(off, seed))
        figures = chosen(one, plain) if one is not None and plain is not None else None
        if figures is not None:
            some[seed] = figures
    return some


def spread(values: Sequence[float]) -> str:
    """The mean, and the least and the most where they differ as shown; "-" without values."""
    if not values:
        return "-"
    mean, least, most = (f"{v:.2f}" for v in (_mean(values), min(values), max(values)))
    return f"{mean} x" if least == most else f"{mean} x ({least} to {most})"


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
