"""Figures: the paper's and ours as the page compares them, kept in a file.

Owns the comparison: an effect is compared with an effect, a value with a value. The file holds what the last
campaign measured, so the page's words can change without another hour of simulation.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from bench.evaluation.claims import Claim

ABSENT = 1.0
"""An effect below so many percent is none."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the page. unit: see `claims.Claim`. paper: None where the paper gives a direction only.
    mean, least, most: of ours over seeds."""

    id: str
    what: str
    unit: str
    paper: float | None
    mean: float
    least: float
    most: float
    seeds: int

    def effect(self, value: float) -> float:
        """What a value of this unit says beyond "no difference", in percent; a plain value is itself."""
        return 100 * (value - 1) if self.unit == "x" else value

    @property
    def is_effect(self) -> bool:
        return self.unit in ("x", "%")

    @property
    def ratio(self) -> float | None:
        """Our effect over the paper's: a gain of 28 % is 0.57 of a gain of 49 %."""
        if not self.paper or not self.effect(self.paper):
            return None
        return self.effect(self.mean) / self.effect(self.paper)

    @property
    def absent(self) -> bool:
        """The paper has an effect; ours is too small, or seeds differ in its sign."""
        if not self.is_effect or self.ratio is None:
            return False
        return abs(self.effect(self.mean)) < ABSENT or (
            self.effect(self.least) <= 0 <= self.effect(self.most)
        )

    @property
    def opposite(self) -> bool:
        """Ours has the other sign."""
        return self.is_effect and not self.absent and self.ratio is not None and self.ratio < 0


def figures_of(claims: Iterable[Claim]) -> list[Figure]:
    """One of each claim."""
    return [
        Figure(
            id=claim.id,
            what=claim.what,
            unit=claim.unit,
            paper=claim.paper,
            mean=claim.mean,
            least=min(claim.ours),
            most=max(claim.ours),
            seeds=len(claim.ours),
        )
        for claim in claims
    ]


def write(file: Path, figures: Sequence[Figure]) -> None:
    """Keep them."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=1) + b"\n")


def read(file: Path) -> list[Figure]:
    """The figures of the last campaign."""
    return msgspec.json.decode(file.read_bytes(), type=list[Figure])
