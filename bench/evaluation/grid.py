"""The grid of record: which cells make the page, and those that follow from what others came to.

Owns the choice: every model, segment and seed with the product as it is; ablations and sweeps where the paper
has them (14B), with fewer seeds. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from bench.evaluation import cells
from bench.evaluation.cells import SEEDS, SEGMENTS, Cell
from bench.evaluation.setups import MODELS
from bench.evaluation.simulated import CellResult

FEWER = (1, 2, 3)
ABLATIONS = ("no-seeding", "no-memory", "no-continuous-lb", "recompute", "synchronous")
"""On segment B, where most changes."""


def first(ablations: Sequence[str], controllers: Sequence[str]) -> Iterator[Cell]:
    """Cells that need nothing but themselves. controllers: variants that are run on every segment."""
    yield from cells.undisturbed(SEEDS)
    yield from cells.colocated(MODELS, SEEDS)
    yield from cells.segments(MODELS, SEGMENTS, SEEDS, ["gleaner"])
    yield from cells.segments(["14b"], ["B"], FEWER, ablations)
    yield from cells.segments(["14b"], SEGMENTS, FEWER, controllers)
    yield from cells.static(FEWER[:2])
    yield from cells.others(MODELS, FEWER[:2])
    yield from cells.lengths(FEWER)
    yield from cells.waves(FEWER)
    yield from cells.scales(MODELS, [1])


def second(results: Iterable[CellResult]) -> Iterator[Cell]:
    """Something happens within a step of which it is known now when it begins."""
    for result in results:
        if result.cell.kind in ("kill", "join") and not result.cell.at_s and result.ok:
            yield from cells.disturbed(result.cell, round(result.steps[-1].begin_s, 1))


Run = Callable[[Sequence[Cell]], list[CellResult]]


def record(
    run: Run, ablations: Sequence[str] = ABLATIONS, controllers: Sequence[str] = ()
) -> list[CellResult]:
    """All of it, by `run`, which gives the results of cells in their order."""
    results = run(list(dict.fromkeys(first(ablations, controllers))))
    return results + run(list(second(results)))
