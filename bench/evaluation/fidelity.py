"""Fidelity: cells that compare the product with the paper's whole policy and under other assumptions.

Owns these cells and their table, with the range over their seeds. By default one seed each: they show a
direction, and the size of an effect beside the spread of the page's other tables.
"""

from collections.abc import Iterator, Sequence

import msgspec

from bench.evaluation import cells
from bench.evaluation.cells import SEGMENTS, Cell
from bench.evaluation.claims import Results, cost_gain, gain
from bench.evaluation.grid import Run
from bench.evaluation.simulated import CellResult

SEEDS = (1,)
TAILS = "14b-tails-cache"
WANTED = (
    ("8b", "A", ("gleaner", "capped", "paper-capped")),
    ("8b", "B", ("capped",)),
    ("8b", "C", ("capped",)),
    ("14b", "B", ("gleaner", "paper", "artifact")),
    (TAILS, "A", ("gleaner", "paper")),
)
"""Model, segment and variants."""
Figures = tuple[float, float, float]
"""Throughput over veRL, tokens a dollar more than veRL in percent, instances."""


def first(seed: int) -> Iterator[Cell]:
    """Cells that depend on no other one, the cheapest answer first."""
    for model, segment, variants in WANTED:
        yield from cells.colocated([model], [seed])
        yield from cells.segments([model], [segment], [seed], variants)
    yield Cell(kind="join", model="14b", seed=seed, steps=cells.STEP)


def joins(calm: CellResult) -> Iterator[Cell]:
    """Three instances join within a step that began with two, with and without ContinuousLB."""
    for variant in ("gleaner", "no-continuous-lb"):
        begin_s = round(calm.steps[-1].begin_s, 1)
        yield msgspec.structs.replace(calm.cell, variant=variant, at_s=begin_s)


def record(run: Run, seeds: Sequence[int] = SEEDS) -> list[CellResult]:
    """All cells, by `run`, which may give fewer."""
    found: list[CellResult] = []
    for seed in seeds:
        found += run(list(dict.fromkeys(first(seed))))
        calm = [one for one in found if one.cell.kind == "join" and one.cell.seed == seed and one.ok]
        found += run([cell for one in calm for cell in joins(one)])
    return found


def text(results: Results) -> str:
    """Throughput, price and instances of each cell; cells without a result are named."""
    rows = [
        "| model | segment | variant | seeds | tokens a second over veRL | tokens a dollar | instances |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    missing: list[str] = []
    capped: list[Figures] = []
    for model, segment, variants in WANTED:
        base = results.base(model)
        for variant in variants:
            some = results.seeds(kind="segment", model=model, segment=segment, variant=variant)
            seeds = [seed for seed in some if seed in base]
            if not seeds:
                missing.append(f"{model} {segment} {variant}")
                continue
            figures = [_figures(some[seed], base[seed]) for seed in seeds]
            if (model, variant) == ("8b", "capped"):
                capped += figures
            rows.append(_row(model, segment, variant, len(seeds), figures))
    if all(f"8b {segment} capped" not in missing for segment in SEGMENTS):
        rows.append(_row("8b", "mean of A, B, C", "capped", len(capped) // len(SEGMENTS), capped))
    rows += ["", _join_text(results)]
    if missing:
        rows += ["", f"Not run: {', '.join(missing)}."]
    return "\n".join(rows)


def _figures(one: CellResult, base: CellResult) -> Figures:
    return gain(one, base), 100 * (cost_gain(one, base) - 1), one.hosts


def _row(model: str, segment: str, variant: str, seeds: int, figures: Sequence[Figures]) -> str:
    speed, money, hosts = (list(column) for column in zip(*figures, strict=True))
    cells = [
        model.upper(),
        segment,
        variant,
        str(seeds),
        _range(speed, ".2f", " x"),
        _range(money, "+.0f", " %"),
        _range(hosts, ".2f", ""),
    ]
    return f"| {' | '.join(cells)} |"


def _range(values: Sequence[float], form: str, unit: str) -> str:
    """The mean, and the least and the most where there are several."""
    mean = f"{sum(values) / len(values):{form}}{unit}"
    return mean if len(values) == 1 else f"{mean} ({min(values):{form}} to {max(values):{form}})"


def _join_text(results: Results) -> str:
    """The step in which instances join, with and without ContinuousLB."""
    with_lb, without = (
        {
            one.cell.seed: one.steps[-1].step_s
            for one in results.every()
            if one.cell.kind == "join" and one.cell.at_s and one.cell.variant == variant
        }
        for variant in ("gleaner", "no-continuous-lb")
    )
    seeds = sorted(with_lb.keys() & without.keys())
    if not seeds:
        return "Not run: three instances that join within a step, with and without ContinuousLB."
    longer = [100 * (without[seed] / with_lb[seed] - 1) for seed in seeds]
    quick, slow = (sum(some[seed] for seed in seeds) / len(seeds) for some in (with_lb, without))
    return (
        "14B, two instances at the start of a step and one more 60, 120 and 180 s into it: the step takes "
        f"{quick:.0f} s with ContinuousLB and {slow:.0f} s without it "
        f"({min(longer):+.1f} to {max(longer):+.1f} %, seeds: {len(seeds)})."
    )
