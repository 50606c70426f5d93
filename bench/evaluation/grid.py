"""Grid of record: the cells of the page, and cells that depend on other results.

Owns the choice: every model, segment and seed with the product as it is; ablations and sweeps where the paper
has them (14B), with fewer seeds. One seed of everything runs first: a user who stops early has a whole page
of fewer seeds. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from bench.evaluation import cells
from bench.evaluation.cells import SEEDS, SEGMENTS, Cell
from bench.evaluation.setups import MODELS
from bench.evaluation.simulated import CellResult

FEWER = 3
"""Seeds of results that the paper has for 14B alone; static numbers and the other systems have one less."""
ABLATIONS = ("no-seeding", "algorithm-1-no-memory", "no-continuous-lb", "recompute", "synchronous")
"""On segment B, which has the most changes."""
CONTROLLERS = ("algorithm-1",)
"""On every segment, 8B and 14B: the paper's own."""


def first(seed: int) -> Iterator[Cell]:
    """Cells of a seed that depend on no other cell."""
    number, one = SEEDS.index(seed), [seed]
    yield from cells.colocated(MODELS, one)
    yield from cells.segments(MODELS, SEGMENTS, one, ["gleaner"])
    yield from cells.undisturbed(one)
    if number < FEWER:
        yield from cells.waves(one)
        yield from cells.lengths(one)
        yield from cells.segments(["8b", "14b"], SEGMENTS, one, CONTROLLERS)
        yield from cells.segments(["14b"], ["B"], one, ABLATIONS)
    if number < FEWER - 1:
        yield from cells.static(one)
        yield from cells.others(MODELS, one)
    if number == 0:
        yield from cells.scales(MODELS, one)


def at_choice(result: CellResult) -> Cell:
    """With the number of instances chosen in the last steps of this cell, in which a surplus stays."""
    last = [step.n_prem for step in result.steps[-SETTLED:]]
    return Cell(
        kind="static",
        model=result.cell.model,
        seed=result.cell.seed,
        limit=result.cell.limit,
        hosts=round(sum(last) / len(last)),
        variant="static",
        steps=cells.SWEEP_STEPS,
    )


def second(results: Iterable[CellResult]) -> Iterator[Cell]:
    """An event within a step whose start time is now known; with the chosen number of instances."""
    for result in results:
        if result.cell.kind == "chosen" and result.ok:
            yield at_choice(result)
        if result.cell.kind in ("kill", "join") and not result.cell.at_s and result.ok:
            yield from cells.disturbed(result.cell, round(result.steps[-1].begin_s, 1))


SETTLED = 3
"""Last steps of a cell in which the number of instances is chosen."""
Run = Callable[[Sequence[Cell]], list[CellResult]]


def record(run: Run, seeds: Sequence[int] = SEEDS) -> list[CellResult]:
    """All of it, by `run`, which gives the results of cells in their order; it may give fewer."""
    results: list[CellResult] = []
    for seed in seeds:
        found = run(list(dict.fromkeys(first(seed))))
        results += found + run(list(second(found)))
    return results
