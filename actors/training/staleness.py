"""`Staleness`: age of a step's tokens in weight versions, held to the bound.

Owns the count. Pure. A token's staleness is the version that its step starts from minus the one that made it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gleaner.actors.protocol.rollout import GroupOut


class BoundBroken(Exception):
    """A sample has tokens older than the bound, or newer than the weights: nothing may train on it."""


@dataclass(slots=True)
class Staleness:
    """Staleness of the tokens of one step so far. version: the one that the step starts from. bound: k."""

    version: int
    bound: int
    tokens: int = 0
    total: int = 0
    most: int = 0

    def add(self, groups: Iterable[GroupOut]) -> None:
        """Count the tokens of these groups. Raises `BoundBroken`."""
        for group in groups:
            for sample in group.samples:
                for span in sample.spans:
                    age = self.version - span.version
                    if not 0 <= age <= self.bound:
                        where = f"tokens {span.start} to {span.start + span.count - 1}"
                        raise BoundBroken(
                            f"{sample.request}: {where} were made under version {span.version}; the step "
                            f"starts from {self.version}, and at most {self.bound} older is allowed"
                        )
                    self.tokens += span.count
                    self.total += age * span.count
                    self.most = max(self.most, age)

    @property
    def mean(self) -> float:
        """Versions, over tokens; 0 without any."""
        return self.total / self.tokens if self.tokens else 0.0
