"""Cells of the page on rounds.

Owns the choice. Everything is compared seed by seed with a job without rounds; a whole period of a factor of
1.25 takes five steps. One seed of everything runs first: a user who stops early has a page of fewer seeds.
Pure.
"""

from collections.abc import Iterator, Sequence

import msgspec

from bench.evaluation.cells import SEGMENTS, Cell
from bench.evaluation.grid import Run
from bench.evaluation.rollpacker.setups import HARD, MODELS
from bench.evaluation.simulated import CellResult

SEEDS = (1, 2)
DEFAULT_FACTOR = 1.25
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
AUTO, RLBOOST_AUTO = ("auto", "auto-model"), ("rounds-auto", "rounds-auto-model")
"""Rounds by prediction, the second with a factor by prediction."""
CHOSEN_STEPS = 1 + 2 * PERIOD
"""Of jobs with rounds by prediction: the whole step in which nothing is measured yet, and two periods."""
FEW_HARD, LARGEST, LONGER_STEPS = 2, "32b-32k", 12
"""With few hard prompts and for the largest model 1.125 is planned, whose period is of nine steps: twelve
have one that begins with the fourth step or earlier."""
FACTOR_STEPS = {1.125: 9, 1.25: PERIOD, 1.375: 11, 1.5: 9, 1.75: 7}
"""Steps of whole periods."""
EPOCHS_STEPS = 12
"""Of cells whose problems return; all of them train the same draws."""
RETURNING = {HARD: ("few-1.125", "history-1.125"), 20: ("few-1.375", "history-1.25")}
"""By share of hard prompts: the best fixed factor, and the best factor with a history of problems."""
FACTORS_OF = {2: (1.125,), 10: (1.125, 1.375), 20: (1.375, 1.5, 1.75)}
"""Factors beside the default one that are run with other shares of hard prompts."""


def alone(model: str, variant: str, seed: int, steps: int) -> Cell:
    """A co-located job of RollPacker's."""
    return Cell(kind="colocated", model=model, variant=variant, seed=seed, steps=steps)


def swept(hard: int, variant: str, seed: int) -> Cell:
    """With another share of hard prompts; the assumed share is among the other cells."""
    if hard == HARD:
        return alone(LARGE, variant, seed, STEPS)
    return Cell(kind="colocated", model=LARGE, variant=variant, seed=seed, steps=PERIOD, hard=hard)


def factor_swept(hard: int, factor: float, variant: str, seed: int) -> Cell:
    """With another share of hard prompts and a factor; variant: `tail`, or `off` for the plain job."""
    if variant == "off" or factor == DEFAULT_FACTOR:
        return swept(hard, variant, seed)
    name = f"tail-{factor:g}"
    if hard == HARD:
        return alone(LARGE, name, seed, FACTORS.get(name, FACTOR_STEPS[factor]))
    return Cell(kind="colocated", model=LARGE, variant=name, seed=seed, steps=FACTOR_STEPS[factor], hard=hard)


def returning(hard: int, variant: str, seed: int) -> Cell:
    """A job of few problems, which return."""
    share = None if hard == HARD else hard
    return Cell(kind="colocated", model=LARGE, variant=variant, seed=seed, steps=EPOCHS_STEPS, hard=share)


def chosen_of(model: str, variant: str, seed: int) -> Cell:
    """A model's job with rounds by prediction, or another variant of it."""
    if variant not in AUTO:
        return alone(model, variant, seed, STEPS)
    longer = model == LARGEST and variant == AUTO[1]
    return alone(model, variant, seed, LONGER_STEPS if longer else CHOSEN_STEPS)


def chosen_by_share(hard: int, variant: str, seed: int) -> Cell:
    """The same with another share of hard prompts."""
    found = swept(hard, variant, seed)
    steps = LONGER_STEPS if hard == FEW_HARD and variant == AUTO[1] else CHOSEN_STEPS
    return msgspec.structs.replace(found, steps=steps) if variant in AUTO else found


def chosen_on_few_devices(variant: str, seed: int) -> Cell:
    """The same on 8 devices instead of 32."""
    found = on_few_devices(variant, seed)
    return msgspec.structs.replace(found, steps=CHOSEN_STEPS) if variant in AUTO else found


def on_few_devices(variant: str, seed: int) -> Cell:
    """The same job on 8 devices instead of 32."""
    return Cell(kind="colocated", model=LARGE, variant=variant, seed=seed, steps=PERIOD, hosts=1)


def fine(variant: str, seed: int) -> Cell:
    """With half the token scale."""
    return Cell(
        kind="colocated", model=LARGE, variant=variant, seed=seed, steps=PERIOD, token_scale=FINE_SCALE
    )


def rlboost(segment: str, variant: str, seed: int) -> Cell:
    """RLBoost's set-up: 8 reserved devices and a segment of availability; "": two instances all the time."""
    if segment:
        return Cell(kind="segment", model="14b", segment=segment, variant=variant, seed=seed, steps=PERIOD)
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
        for segment in (*SEGMENTS, ""):
            yield rlboost(segment, variant, seed)
    for variant in ("off", "tail"):
        yield on_few_devices(variant, seed)
    yield from by_prediction(seed)
    if seed == SEEDS[0]:  # what must be exact, and the check of the scale
        for variant, steps in FACTORS.items():
            yield alone(LARGE, variant, seed, steps)
        for variant in ("off", "tail"):
            yield fine(variant, seed)
        for hard, factors in FACTORS_OF.items():
            for factor in factors:
                yield factor_swept(hard, factor, "tail", seed)
        for hard, variants in RETURNING.items():
            for variant in variants:
                yield returning(hard, variant, seed)


def by_prediction(seed: int) -> Iterator[Cell]:
    """Rounds that are chosen by prediction; the largest model last."""
    for variant, beside in zip(AUTO, RLBOOST_AUTO, strict=True):
        for hard in HARD_SHARES:
            yield chosen_by_share(hard, variant, seed) if hard != HARD else chosen_of(LARGE, variant, seed)
        for segment in (*SEGMENTS, ""):
            yield rlboost(segment, beside, seed)
        yield chosen_on_few_devices(variant, seed)
    for model in MODELS:
        for variant in AUTO:
            yield chosen_of(model, variant, seed)


def record(run: Run, seeds: Sequence[int] = SEEDS) -> list[CellResult]:
    """All of it, by `run`, which gives the results of cells in their order; it may give fewer."""
    return run(list(dict.fromkeys(cell for seed in seeds for cell in cells(seed))))
