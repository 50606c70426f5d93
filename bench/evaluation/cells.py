"""What is simulated, one cell at a time, and the grids that cells come in.

Owns the names. A cell is a value: two equal cells have the same settings, and so the same result. Pure.
"""

from collections.abc import Iterable, Iterator

import msgspec

SEGMENTS = ("A", "B", "C")
SEEDS = (1, 2, 3, 4, 5)
SEGMENT_S = 7200.0
"""A segment of the paper's trace lasts two hours."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated run.

    Attributes:
        kind: `colocated` (the reserved host alone), `segment` (a trace of availability), `static` (`hosts`
            preemptible hosts, always), or one of the scenarios of `scenarios`.
        model: a name of `setups.MODELS`. segment: of SEGMENTS, for that kind.
        seed: of lengths, problems, network and boot times.
        variant: a name of `setups.VARIANTS`; "gleaner" is the product as it is.
        hosts: for `static`. limit: longest response in tokens, 0 for the paper's. token_scale: 0 for the
            model's.
        steps: how many; 0: as many as a segment takes.
    """

    kind: str
    model: str
    seed: int
    segment: str = ""
    variant: str = "gleaner"
    hosts: int = 0
    limit: int = 0
    token_scale: int = 0
    steps: int = 0

    @property
    def name(self) -> str:
        """Unique among all cells, and good as a file's name."""
        parts = [self.model, self.kind + (f"-{self.segment}" if self.segment else ""), self.variant]
        parts += [f"n{self.hosts}"] * (self.kind == "static")
        parts += [f"limit{self.limit}"] * bool(self.limit)
        parts += [f"scale{self.token_scale}"] * bool(self.token_scale)
        parts += [f"steps{self.steps}"] * bool(self.steps)
        return "_".join([*parts, f"seed{self.seed}"])


def colocated(models: Iterable[str], seeds: Iterable[int]) -> Iterator[Cell]:
    """veRL's place: the reserved host alone. No segment changes anything there."""
    for model in models:
        for seed in seeds:
            yield Cell(kind="colocated", model=model, seed=seed, steps=6)


def segments(
    models: Iterable[str], over: Iterable[str], seeds: Iterable[int], variants: Iterable[str]
) -> Iterator[Cell]:
    """Two hours of each segment."""
    variants = list(variants)
    over = list(over)
    for seed in seeds:  # the seed last: whoever stops early has a few seeds of everything
        for model in models:
            for segment in over:
                for variant in variants:
                    yield Cell(kind="segment", model=model, seed=seed, segment=segment, variant=variant)
