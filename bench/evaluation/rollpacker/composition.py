"""Composition: rounds in RLBoost's set-up with RollPacker's lengths.

Owns these cells and their table. RollPacker's own set-up has no preemptible hosts, and RLBoost's lengths have
no short median under a long tail; here a job has both: instances that come and go, and few long responses.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from bench.evaluation.cells import SEGMENTS, Cell
from bench.evaluation.grid import Run
from bench.evaluation.rollpacker import grid
from bench.evaluation.rollpacker.chosen import chosen
from bench.evaluation.rollpacker.page import spread
from bench.evaluation.rollpacker.periods import Found
from bench.evaluation.setups import RUNAWAY_LIMIT
from bench.evaluation.simulated import CellResult

SEEDS = (1, 2)
MODEL = "14b-runaway"
OFF, TAIL, AUTO = "gleaner", "rounds", "rounds-auto"
ALONE = "no instances"
PLACES = (ALONE, *SEGMENTS)


def cell(place: str, variant: str, seed: int) -> Cell:
    """Two periods of a segment of availability, or of the reserved host alone; `auto` begins with a whole
    step."""
    made = Cell(
        kind="colocated",
        model=MODEL,
        variant=variant,
        seed=seed,
        limit=RUNAWAY_LIMIT,
        steps=grid.CHOSEN_STEPS if variant == AUTO else grid.STEPS,
    )
    return made if place == ALONE else msgspec.structs.replace(made, kind="segment", segment=place)


def cells(seed: int) -> Iterator[Cell]:
    """All cells of a seed."""
    for place in PLACES:
        for variant in (OFF, TAIL, AUTO):
            yield cell(place, variant, seed)


def record(run: Run, seeds: Sequence[int] = SEEDS) -> list[CellResult]:
    """All cells, by `run`, which may give fewer."""
    return run([one for seed in seeds for one in cells(seed)])


def text(found: Found) -> str:
    """Rounds over none in each place, and what a job with both gains over one with neither."""
    rows = [
        "| hosts | steps, seeds | instances | `tail`: a step over plain | step with a short round over a "
        "plain one | step with a long round over a plain one | tokens aborted | `auto`: all steps | settled "
        "| `tail` over the plain job without instances |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for place in PLACES:
        some = found.pairs(partial(cell, place, TAIL), partial(cell, place, OFF), SEEDS)
        if not some:
            continue
        all_of = list(some.values())
        autos = [_chosen(found, place, seed) for seed in some]
        over = [_over_alone(found, place, seed) for seed in some]
        words = f"segment {place}" if place in SEGMENTS else f"8 reserved devices, {place}"
        columns = [
            words,
            f"{all_of[0].steps}, {len(some)}",
            spread([_hosts(found, place, seed) for seed in some], ".1f"),
            spread([one.gain for one in all_of], ".2f", " x"),
            spread([one.short_step for one in all_of], ".2f"),
            spread([one.long_step for one in all_of], ".2f"),
            spread([one.aborted for one in all_of], ".0%"),
            spread([one[0] for one in autos if one is not None], ".2f", " x"),
            spread([one[1] for one in autos if one is not None], ".2f", " x"),
            spread([one for one in over if one is not None], ".2f", " x"),
        ]
        rows.append(f"| {' | '.join(columns)} |")
    return "\n".join(rows)


def _hosts(found: Found, place: str, seed: int) -> float:
    """Mean number of instances of the plain job."""
    plain = found.of(cell(place, OFF, seed))
    steps = plain.steps if plain is not None else []
    return sum(step.hosts * step.step_s for step in steps) / sum(step.step_s for step in steps)


def _chosen(found: Found, place: str, seed: int) -> tuple[float, float] | None:
    """Gain of `auto` over all steps, and over settled ones."""
    auto, plain = found.of(cell(place, AUTO, seed)), found.of(cell(place, OFF, seed))
    figures = chosen(auto, plain) if auto is not None and plain is not None else None
    return None if figures is None else (figures.every, figures.settled)


def _over_alone(found: Found, place: str, seed: int) -> float | None:
    """Throughput with instances and rounds over that with neither: both train the same draws."""
    base = partial(cell, ALONE, OFF)
    shares = found.pairs(partial(cell, place, TAIL), base, [seed])
    return shares[seed].gain if shares else None
