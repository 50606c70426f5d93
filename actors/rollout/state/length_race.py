"""Length race: a race of groups that is decided by lengths alone, because uniform groups count as others do.

Pure. The decision of `race.decide_race` in arrays, with its keys to pass. A race of hundreds of groups is
decided hundreds of times, and to decide it group by group was most of its cost (`bench.round_decisions`).
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gleaner.actors.rollout.state.group_policy import Decision, Rule

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Lengths:
    """The groups of a race by number: tokens as in `race.Entrant`, and whether each group is closed."""

    tokens: NDArray[np.int64]
    closed: Mask


def decide_lengths(
    rule: Rule, lengths: Lengths, kept: Collection[int], dropped: Collection[int], aborted: Collection[int]
) -> tuple[Decision, list[int]]:
    """The decision that is certain now, and its `race.keys_to_pass`. kept, dropped, aborted: the groups that
    were decided before."""
    groups = len(lengths.tokens)
    is_kept, is_dropped, is_aborted = (_mask(some, groups) for some in (kept, dropped, aborted))
    runs = np.flatnonzero(~(is_dropped | is_aborted))
    order = runs[np.argsort(lengths.tokens[runs], kind="stable")]  # equal ones by their number
    places = is_kept[order] | lengths.closed[order]
    ahead: NDArray[np.int64] = np.cumsum(places) - places
    first = order[: rule.wanted]
    keep = first[lengths.closed[first] & ~is_kept[first]]
    abort = order[(ahead >= rule.wanted) & ~is_kept[order]]
    left = groups - int(is_dropped.sum())
    add = max(0, min(rule.wanted - left, rule.most - groups))
    decision = Decision(_numbers(keep), (), _numbers(abort), add)
    known = lengths.closed & ~(is_dropped | is_aborted)
    known[abort] = False
    if int(known.sum()) < rule.wanted:  # a group can lose its place only where enough of them are known
        known &= ~is_kept
        known[keep] = False
    return decision, np.unique(lengths.tokens[known]).tolist()


def _mask(groups: Collection[int], size: int) -> Mask:
    mask = np.zeros(size, dtype=np.bool_)
    mask[list(groups)] = True
    return mask


def _numbers(groups: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(sorted(groups.tolist()))
