"""LengthLaw: response lengths, log-normal, cut at a limit, correlated in groups.

Pure: a length is a function of the request's seed and its prompt, so a request has the same one on every
instance and in every run. The logarithm of a length is

    mu + sigma * (sqrt(rho) * z(prompt) + sqrt(1 - rho) * z(seed))

with z standard normal, drawn by hash. Samples of a group share their prompt, so the correlation of their
logarithms is `correlation` (rho); a prompt that returns is as hard as before. A response that would be longer
than the limit ends there, as an engine ends it; so many responses have exactly that length.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

from gleaner.sim.models.tokens import mix

_NORMAL = NormalDist()
_SALT_PROMPT, _SALT_SEED = 0x5052, 0x5345


@dataclass(frozen=True, slots=True)
class LengthLaw:
    """`median` tokens, `sigma` of the natural logarithm, `correlation` (0 to 1) of logarithms in a group.

    The default is the one that `rlboost_14b` gives. Raises `ValueError` outside of these ranges.
    """

    median: float = 5400.0
    sigma: float = 0.8
    correlation: float = 0.6

    def __post_init__(self) -> None:
        if self.median < 1 or self.sigma < 0 or not 0 <= self.correlation <= 1:
            raise ValueError(f"{self}: median from 1, sigma from 0, correlation from 0 to 1")

    def length(self, seed: int, prompt: int, limit: int) -> int:
        """Tokens of the response, 1 to `limit`. `prompt`: any number that names the prompt."""
        shared = math.sqrt(self.correlation) * _normal(prompt ^ _SALT_PROMPT)
        own = math.sqrt(1.0 - self.correlation) * _normal(seed ^ _SALT_SEED)
        return max(1, min(limit, round(self.median * math.exp(self.sigma * (shared + own)))))

    def mean(self, limit: float) -> float:
        """The mean of `min(length, limit)`, apart from rounding."""
        if self.sigma == 0:
            return min(self.median, limit)
        cut = math.log(limit / self.median) / self.sigma
        below = math.exp(self.sigma**2 / 2) * self.median * _NORMAL.cdf(cut - self.sigma)
        return below + limit * (1.0 - _NORMAL.cdf(cut))

    def share_at_limit(self, limit: float) -> float:
        """Share of the responses that end at the limit, 0 to 1."""
        if self.sigma == 0:
            return float(self.median >= limit)
        return 1.0 - _NORMAL.cdf(math.log(limit / self.median) / self.sigma)

    def scaled(self, factor: float) -> "LengthLaw":
        """The same law with every length times `factor`."""
        return LengthLaw(max(1.0, self.median * factor), self.sigma, self.correlation)


RLBOOST_8B = LengthLaw(3000.0, 0.85, 0.6)
RLBOOST_14B = LengthLaw(5400.0, 0.80, 0.6)
"""Assumed for OpenR1-Math under RLBoost's limit of 14,336 tokens: means of 3.8 k and 6.2 k tokens. No paper
gives the distribution; the correlation is a guess that RollPacker's short rounds suggest."""


def _normal(value: int) -> float:
    """A standard normal number that belongs to `value`."""
    uniform = (mix(value & (2**64 - 1)) >> 12) * 2.0**-52
    return _NORMAL.inv_cdf(min(max(uniform, 2.0**-52), 1.0 - 2.0**-52))
