"""Cells of the page on rounds.

Owns the choice. Everything is compared seed by seed with a job without rounds; a whole period of a factor of
1.25 takes five steps. One seed of everything runs first: a user who stops early has a page of fewer seeds.
Pure.
"""

from collections.abc import Iterator, Sequence

from bench.evaluation.cells import Cell
from bench.evaluation.grid import Run
from bench.evaluation.rollpacker.setups import HARD, MODELS
from bench.evaluation.simulated import CellResult

SEEDS = (1, 2)
LARGE = "14b-16k"
"""The model of ablations and sweeps."""
PERIOD, STEPS = 5, 10
"""Steps of one period at the default factor, and of the cells of every model: two periods."""
MAIN = ("off", "tail", "preset")
ABLATIONS = ("samples", "both", "new-seeds", "by-time")
FACTORS = {"tail-1.125": 9, "tail-1.5": 6}
"""Steps of one period, and of two."""
HARD_SHARES = (2, HARD, 10, 20)
"""Percent of hard prompts."""
FINE_SCALE = 64
"""Tokens of the model per message token, half of what the other cells have."""
RLBOOST = ("gleaner", "rounds")
"""The variants of RLBoost's set-up (`bench.evaluation.setups`): without rounds, and with the defaults."""
FEW_HOSTS = 2


def alone(model: str, variant: str, seed: int, steps: int) -> Cell:
    """A co-located job of RollPacker's."""
    return Cell(kind="colocated", model=model, variant=variant, seed=seed, steps=steps)


def swept(hard: int, variant: str, seed: int) -> Cell:
    """With another share of hard prompts; the assumed share is among the other cells."""
    if hard == HARD:
        return alone(LARGE, variant, seed, STEPS)
    return Cell(kind="colocated", model=LARGE, variant=variant, seed=seed, steps=PERIOD, hard=hard)


def on_few_devices(variant: str, seed: int) -> Cell:
    """The same job on 8 devices instead of 32."""
    return Cell(kind="colocated", model=LARGE, variant=variant, seed=seed, steps=PERIOD, hosts=1)


def fine(variant: str, seed: int) -> Cell:
    """With half the token scale."""
    return Cell(
        kind="colocated", model=LARGE, variant=variant, seed=seed, steps=PERIOD, token_scale=FINE_SCALE
    )


def rlboost(kind: str, variant: str, seed: int) -> Cell:
    """RLBoost's set-up: 8 reserved devices and a segment of availability, or two instances."""
    if kind == "segment":
        return Cell(kind=kind, model="14b", segment="B", variant=variant, seed=seed, steps=PERIOD)
    return Cell(kind="static", model="14b", hosts=FEW_HOSTS, variant=variant, seed=seed, steps=PERIOD)


def cells(seed: int) -> Iterator[Cell]:
    """All cells of a seed; those that the page's first table needs come first."""
    for model in (LARGE, *(name for name in MODELS if name != LARGE)):
        for variant in MAIN:
            yield alone(model, variant, seed, STEPS)
    for variant in ABLATIONS:
        yield alone(LARGE, variant, seed, PERIOD)
    for hard in HARD_SHARES:
        for variant in ("off", "tail"):
            yield swept(hard, variant, seed)
    for variant in RLBOOST:
        yield rlboost("segment", variant, seed)
        yield rlboost("static", variant, seed)
    for variant in ("off", "tail"):
        yield on_few_devices(variant, seed)
    if seed == SEEDS[0]:  # what must be exact, and the check of the scale
        for variant, steps in FACTORS.items():
            yield alone(LARGE, variant, seed, steps)
        for variant in ("off", "tail"):
            yield fine(variant, seed)


def record(run: Run, seeds: Sequence[int] = SEEDS) -> list[CellResult]:
    """All of it, by `run`, which gives the results of cells in their order; it may give fewer."""
    return run(list(dict.fromkeys(cell for seed in seeds for cell in cells(seed))))
