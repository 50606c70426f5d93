"""TailedLaw: response lengths with a hard share of prompts, and with stray long responses of any prompt.

Pure, as `lengths`. A log-normal law alone has few responses far beyond its median, or, with a large sigma,
many of them in nearly every group. Here a response either has the length of the base law, or it *runs away*:

- a share `hard` of the prompts is hard, by hash of the prompt, so it is hard each time that it returns; a
  response to a hard prompt runs away with the chance `persistence`;
- a response to any other prompt runs away with the chance `stray`.

Chances are drawn by hash of the request's seed. The length of a response that runs away is of the law `away`.
"""

import dataclasses
from dataclasses import dataclass, field

from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.tokens import mix

_SALT_HARD, _SALT_AWAY = 0x4841, 0x4157


@dataclass(frozen=True, slots=True)
class TailedLaw(LengthLaw):
    """See the module; `median`, `sigma` and `correlation` are of responses that do not run away. Without
    `hard` and `stray` it has the lengths of `LengthLaw`. Raises `ValueError` for shares outside 0 to 1."""

    hard: float = 0.0
    persistence: float = 1.0
    stray: float = 0.0
    away: LengthLaw = field(default_factory=LengthLaw)

    def __post_init__(self) -> None:
        LengthLaw.__post_init__(self)
        for name in ("hard", "persistence", "stray"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: expected a share from 0 to 1, got {getattr(self, name):g}")

    def is_hard(self, prompt: int) -> bool:
        """Whether responses to this prompt run away with the chance `persistence`."""
        return _share(prompt ^ _SALT_HARD) < self.hard

    def runs_away(self, seed: int, prompt: int) -> bool:
        """Whether this response has its length from `away`."""
        chance = self.persistence if self.is_hard(prompt) else self.stray
        return _share(seed ^ _SALT_AWAY) < chance

    @property
    def away_share(self) -> float:
        """Share of the responses that run away, 0 to 1."""
        return self.hard * self.persistence + (1.0 - self.hard) * self.stray

    def length(self, seed: int, prompt: int, limit: int) -> int:
        """See `LengthLaw`."""
        if self.runs_away(seed, prompt):
            return self.away.length(seed, prompt, limit)
        return LengthLaw.length(self, seed, prompt, limit)

    def mean(self, limit: float) -> float:
        """See `LengthLaw`."""
        away = self.away_share
        return (1.0 - away) * LengthLaw.mean(self, limit) + away * self.away.mean(limit)

    def share_at_limit(self, limit: float) -> float:
        """See `LengthLaw`."""
        away = self.away_share
        base = LengthLaw.share_at_limit(self, limit)
        return (1.0 - away) * base + away * self.away.share_at_limit(limit)

    def scaled(self, factor: float) -> "TailedLaw":
        """See `LengthLaw`; shares stay."""
        return dataclasses.replace(self, median=max(1.0, self.median * factor), away=self.away.scaled(factor))


def _share(value: int) -> float:
    """A number from 0 to below 1 that belongs to `value`."""
    return (mix(value & (2**64 - 1)) >> 11) * 2.0**-53
