"""RemainingLengths: remaining tokens of requests, estimated from finished ones.

Owns a histogram of lengths, fed as responses finish. Pure. Responses have long tails: a long response is
expected to become longer. Older lengths fade, because a policy that learns changes them.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BINS = 64
MEMORY = 4096
"""Responses that are remembered: a few steps of a large batch."""


class RemainingLengths:
    """See the module. The histogram has `BINS` bins of equal width up to the longest limit seen."""

    def __init__(self) -> None:
        self._limit = 0
        self._counts = np.zeros(BINS)
        self._sums = np.zeros(BINS)  # of the lengths in a bin
        self._tails: tuple[Floats, Floats] | None = None  # counts and sums from each bin on

    def finished(self, length: int, limit: int) -> None:
        """A response ended with `length` tokens of at most `limit`."""
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
