"""Length law: the mean length of all launched responses, those included that were aborted.

Pure. An aborted response is longer than what it has; that is a censored observation, and the estimate is that
of Kaplan and Meier (1958, Nonparametric estimation from incomplete observations): the share of responses that
are longer than t tokens is the product, over the lengths l up to t at which responses ended, of 1 - (ended at
l) / (had at least l tokens).
"""

from collections import Counter
from collections.abc import Iterable

Lengths = Iterable[tuple[int, int]]
"""Tokens of a response, and how many have so many."""


def mean_length(ended: Lengths, aborted: Lengths) -> float | None:
    """Mean tokens of a response; None without a response that ended. Where the longest one was aborted, it
    counts as if it had ended there, and the mean is a lower bound."""
    ends, cuts = Counter[int](), Counter[int]()
    for counter, pairs in ((ends, ended), (cuts, aborted)):
        for tokens, count in pairs:
            counter[tokens] += count
    if not ends:
        return None
    left = ends.total() + cuts.total()
    share, mean, before = 1.0, 0.0, 0
    for tokens in sorted(ends | cuts):
        mean += share * (tokens - before)
        before = tokens
        share *= 1 - ends[tokens] / left if left else 0.0
        left -= ends[tokens] + cuts[tokens]
    return mean


def total(lengths: Lengths) -> tuple[int, int]:
    """Sum of the tokens, and number of responses."""
    pairs = list(lengths)
    return sum(tokens * count for tokens, count in pairs), sum(count for _, count in pairs)
