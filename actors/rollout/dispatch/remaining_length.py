"""RemainingLengths: remaining tokens of requests, estimated from finished ones.

Owns histograms of lengths, fed as responses finish: one for each kind of batch, and one of all kinds for a
kind that is new. Pure. Responses have long tails: a long response is expected to become longer. Older lengths
fade, because a policy that learns changes them. In a short round (RollPacker, arXiv 2509.21009, section 3)
only responses up to its edge count and the others are aborted, so nothing is expected beyond the edge of
recent rounds.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
"""Kinds of batches, as their places in `KINDS`."""

KINDS = ("", "short", "long")
"""As in `BatchSubmitted`; "" is that of steps without rounds and of evaluations."""
SHORT = KINDS.index("short")
FEW = 32
"""Responses of a kind from which on it has its own lengths: the first that end are the shortest."""
EDGES = 4
"""Short rounds whose edges are kept: those of a period at the default factor."""

BINS = 64
MEMORY = 4096
"""Responses that are remembered: a few steps of a large batch."""


def codes_of(kinds: Sequence[str]) -> Codes:
    """The codes of these kinds."""
    return np.array([KINDS.index(kind) for kind in kinds], np.int64)


class RemainingLengths:
    """See the module."""

    def __init__(self) -> None:
        self._all = LengthHistogram()
        self._by_kind = [LengthHistogram() for _ in KINDS]
        self._edges: deque[int] = deque(maxlen=EDGES)

    def finished(self, length: int, limit: int, kind: str = "") -> None:
        """A response of a batch of this kind ended with `length` tokens of at most `limit`."""
        self._all.finished(length, limit)
        self._by_kind[KINDS.index(kind)].finished(length, limit)

    def round_over(self, edge: int) -> None:
        """A short round is decided, and its longest response that counts has `edge` tokens."""
        self._edges.append(edge)

    def expected(self, made: Floats, limit: Floats, kinds: Codes) -> Floats:
        """Mean tokens left of requests of these kinds that have `made` tokens, at least 1; see
        `LengthHistogram.expected`. In a short round no more than up to the edge of recent ones."""
        left = np.empty(len(made))
        for code in range(len(KINDS)):
            which = kinds == code
            if which.all():  # as a rule: one batch is open
                return self._of_kind(code, made, limit)
            if which.any():
                left[which] = self._of_kind(code, made[which], limit[which])
        return left

    def _of_kind(self, code: int, made: Floats, limit: Floats) -> Floats:
        known = self._by_kind[code]
        left = (known if known.responses >= FEW else self._all).expected(made, limit)
        if code == SHORT and self._edges:
            left = np.minimum(left, np.maximum(max(self._edges) - made, 1.0))
        return left

    def beyond_edge(self, made: Floats, kinds: Codes) -> NDArray[np.bool_]:
        """Which requests of short rounds are as long as the edge of recent ones: few of them count."""
        if not self._edges:
            return np.zeros(len(made), np.bool_)
        beyond: NDArray[np.bool_] = (kinds == SHORT) & (made >= max(self._edges))
        return beyond


class LengthHistogram:
    """Lengths of responses that ended, in `BINS` bins of equal width up to the longest limit seen."""

    def __init__(self) -> None:
        self.responses = 0
        """That ended so far."""
        self._limit = 0
        self._counts = np.zeros(BINS)
        self._sums = np.zeros(BINS)  # of the lengths in a bin
        self._tails: tuple[Floats, Floats] | None = None  # counts and sums from each bin on

    def finished(self, length: int, limit: int) -> None:
        """A response ended with `length` tokens of at most `limit`."""
        self.responses += 1
        self._tails = None
        if limit > self._limit:
            self._widen(limit)
        if self._counts.sum() >= MEMORY:
            self._counts *= 1 - 1 / MEMORY
            self._sums *= 1 - 1 / MEMORY
        self._counts[self._bin(length)] += 1
        self._sums[self._bin(length)] += length

    def expected(self, made: Floats, limit: Floats) -> Floats:
        """Mean tokens left of requests that have `made` tokens: the mean of the longer responses seen, less
        `made`; half of what the limit allows if none was longer. At least 1."""
        most = np.maximum(limit - made, 1.0)
        if not self._limit:
            half: Floats = np.maximum(most / 2, 1.0)
            return half
        if self._tails is None:  # asked for every instance at a time
            self._tails = np.cumsum(self._counts[::-1])[::-1], np.cumsum(self._sums[::-1])[::-1]
        bins = self._bins(made)
        counts, sums = self._tails[0][bins], self._tails[1][bins]
        mean = sums / np.where(counts > 0, counts, 1.0) - made
        left: Floats = np.where((counts > 0) & (mean >= 1.0), mean, most / 2)
        return np.minimum(np.maximum(left, 1.0), most)  # as `np.clip`, whose call takes longer than the work

    def _bins(self, made: Floats) -> NDArray[np.int64]:
        bins: NDArray[np.int64] = np.minimum((made * BINS / self._limit).astype(np.int64), BINS - 1)
        return bins

    def _bin(self, length: int) -> int:
        return min(length * BINS // self._limit, BINS - 1)

    def _widen(self, limit: int) -> None:
        """Set a larger limit, and move the known lengths into the new bins."""
        lengths, counts = self._sums / np.maximum(self._counts, 1e-12), self._counts
        self._limit, self._counts, self._sums = limit, np.zeros(BINS), np.zeros(BINS)
        for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
            if count > 0:
                self._counts[self._bin(int(length))] += count
                self._sums[self._bin(int(length))] += count * length
