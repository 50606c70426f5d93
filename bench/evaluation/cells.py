"""Cells: the simulated runs, one at a time, and their grids.

Owns the names. A cell is a value: two equal cells have the same settings, and so the same result. Pure.
"""

from collections.abc import Iterable, Iterator

import msgspec

SEGMENTS = ("A", "B", "C")
SEEDS = (1, 2, 3, 4, 5)
SEGMENT_S = 7200.0
"""A segment of the paper's trace lasts two hours."""
BASE_STEPS, SWEEP_STEPS = 6, 4
STATIC = (1, 2, 3, 4, 6, 8)
LIMITS = (5000, 8000, 11_000)
"""R7, beside the 14,336 tokens of everything else."""
KILLS_S = (100.0, 200.0)
"""R11: after the start of a step."""
SCALES = (128, 64)
STEP = 5
"""R10, R11: the step in which it happens; by then the seeding window has settled."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated run.

    Attributes:
        kind: `colocated` (reserved hosts alone: the model's, or `hosts` of them), `segment` (a trace of
            availability), `static` (exactly `hosts` preemptible hosts), `chosen` (at most `hosts`; the
            controller of seeding chooses the number), or one of the scenarios of `scenarios`: `wave`, `kill`,
            `join`, `restart`.
        model: a name of `setups.MODELS` or `rollpacker.setups.MODELS`. segment: of SEGMENTS, for that kind.
        seed: of lengths, problems, network and boot times.
        variant: a name of `setups.VARIANTS`; "gleaner" is the product as it is.
        hosts: for `static`. limit: longest response in tokens, 0 for the paper's. token_scale: 0 for the
            model's. at_s: of a scenario, the moment from the first step's start on; 0: no event.
        steps: how many; 0: as many as a segment takes.
        hard: of RollPacker's models, percent of prompts that are hard; None: as assumed.
    """

    kind: str
    model: str
    seed: int
    segment: str = ""
    variant: str = "gleaner"
    hosts: int = 0
    limit: int = 0
    token_scale: int = 0
    at_s: float = 0.0
    steps: int = 0
    hard: int | None = None

    @property
    def name(self) -> str:
        """Unique among all cells, and valid as a file's name."""
        parts = [self.model, self.kind + (f"-{self.segment}" if self.segment else ""), self.variant]
        parts += [f"n{self.hosts}"] * bool(self.hosts)
        parts += [f"limit{self.limit}"] * bool(self.limit)
        parts += [f"scale{self.token_scale}"] * bool(self.token_scale)
        parts += [f"at{self.at_s:g}"] * bool(self.at_s)
        parts += [f"steps{self.steps}"] * bool(self.steps)
        parts += [f"hard{self.hard}"] * (self.hard is not None)
        return "_".join([*parts, f"seed{self.seed}"])


def colocated(models: Iterable[str], seeds: Iterable[int]) -> Iterator[Cell]:
    """veRL's baseline: the reserved host alone. Segments make no difference there."""
    for model in models:
        for seed in seeds:
            yield Cell(kind="colocated", model=model, seed=seed, steps=BASE_STEPS)


def segments(
    models: Iterable[str], over: Iterable[str], seeds: Iterable[int], variants: Iterable[str]
) -> Iterator[Cell]:
    """Two hours of each segment."""
    models, over, variants = list(models), list(over), list(variants)
    for seed in seeds:  # the seed last: a user who stops early has a few seeds of everything
        for model in models:
            for segment in over:
                for variant in variants:
                    yield Cell(kind="segment", model=model, seed=seed, segment=segment, variant=variant)


def static(seeds: Iterable[int]) -> Iterator[Cell]:
    """R5: 14B with a static number of instances."""
    for seed in seeds:
        for hosts in STATIC:
            yield Cell(
                kind="static", model="14b", seed=seed, hosts=hosts, variant="static", steps=SWEEP_STEPS
            )


def others(models: Iterable[str], seeds: Iterable[int]) -> Iterator[Cell]:
    """R3, R4: veRL on twice the hosts; rollout on instances alone, as many as the paper's optimizer takes."""
    models = list(models)
    for seed in seeds:
        yield Cell(kind="colocated", model="14b", seed=seed, hosts=2, steps=BASE_STEPS)
        for model, hosts in (("8b", 4), ("14b", 6), ("32b", 6)):
            if model in models:
                yield Cell(
                    kind="static",
                    model=model,
                    seed=seed,
                    hosts=hosts,
                    variant="disaggregated",
                    steps=SWEEP_STEPS,
                )


def lengths(seeds: Iterable[int]) -> Iterator[Cell]:
    """R7: 14B with the same responses cut at other limits; the number of instances is chosen."""
    for seed in seeds:
        for limit in LIMITS:
            yield Cell(kind="colocated", model="14b", seed=seed, limit=limit, steps=SWEEP_STEPS)
            yield Cell(kind="chosen", model="14b", seed=seed, limit=limit, hosts=10, steps=BASE_STEPS)
        yield Cell(kind="chosen", model="14b", seed=seed, hosts=10, steps=BASE_STEPS)


def waves(seeds: Iterable[int]) -> Iterator[Cell]:
    """R8, R9: the memory is Algorithm 1's."""
    for seed in seeds:
        for variant in ("gleaner", "algorithm-1", "algorithm-1-no-memory", "no-seeding"):
            yield Cell(kind="wave", model="14b", seed=seed, variant=variant)


def undisturbed(seeds: Iterable[int]) -> Iterator[Cell]:
    """R10, R11 without their event: these runs give the start times of the steps."""
    for seed in seeds:
        yield Cell(kind="kill", model="14b", seed=seed, steps=STEP)
        if seed == 1:
            yield Cell(kind="join", model="14b", seed=seed, steps=STEP)


def disturbed(cell: Cell, begin_s: float) -> Iterator[Cell]:
    """The same, with the event in the last step, which starts at `begin_s`."""
    if cell.kind == "join":
        for variant in ("gleaner", "synchronous"):
            yield msgspec.structs.replace(cell, variant=variant, at_s=begin_s)
        return
    for after_s in KILLS_S:
        for variant in ("gleaner", "recompute"):
            yield msgspec.structs.replace(cell, variant=variant, at_s=begin_s + after_s)
    if cell.seed == 1:
        for variant in ("gleaner", "synchronous"):
            yield msgspec.structs.replace(cell, kind="restart", variant=variant, at_s=begin_s)


def scales(models: Iterable[str], seeds: Iterable[int]) -> Iterator[Cell]:
    """The same cells with the usual token scale, and with half of it."""
    models = list(models)
    for seed in seeds:
        for model in models:
            for scale in SCALES:
                yield Cell(kind="colocated", model=model, seed=seed, steps=2, token_scale=scale)
                yield Cell(
                    kind="static",
                    model=model,
                    seed=seed,
                    hosts=6,
                    variant="static",
                    token_scale=scale,
                    steps=3,
                )
