"""Race of the groups of a short round: the samples of a group, and the groups of the batch, that count.

Pure: token counts and verdicts go in, a decision comes out. Source: RollPacker (arXiv 2509.21009, section 3):
more is launched than counts, and what is short counts. Here the order of a race is one of tokens and not of
time: the key of a group is the number of tokens of its R0-th shortest sample, equal keys are ordered by the
number of the group, and the P0 groups with the smallest keys count. That is a function of the responses
alone: machines, moves and deaths change when it is known, and never what it is.

Before a response has ended, its tokens so far bound its length from below. So a decision here is certain when
it is made: no later token, verdict or added group revokes it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from gleaner.actors.rollout.state.group_policy import Decision, Rule, Standing

_OPEN, _UNIFORM, _KEPT, _DROPPED = Standing.OPEN, Standing.UNIFORM, Standing.KEPT, Standing.DROPPED
"""Read here: a member of an enumeration is looked up for 50 ns, thousands of times in a decision."""
_OUT = (_DROPPED, Standing.ABORTED)
_BY_KEY = itemgetter(1, 0)  # tokens, number


@dataclass(frozen=True, slots=True)
class Racer:
    """A sample in the race of its group. tokens: so far; finished: it gets no more."""

    sample: int
    tokens: int
    finished: bool


class Entrant(NamedTuple):
    """A group in the race of its batch. tokens: its key if it is closed, else the least that its key can be.
    closed: its samples are known and finished. standing: OPEN as long as a verdict of them is missing."""

    number: int
    tokens: int
    closed: bool
    standing: Standing


def chosen(racers: Sequence[Racer], count: int, *, by_time: bool) -> tuple[int, ...] | None:
    """The `count` samples of a group that count, in ascending order; None while that is not certain.

    By tokens: the shortest ones; by time: of those that have finished now, the shortest ones.
    """
    if by_time:
        racers = [racer for racer in racers if racer.finished]
    first = sorted(racers, key=lambda racer: (racer.tokens, racer.sample))[:count]
    if len(first) < count or not all(racer.finished for racer in first):
        return None
    return tuple(sorted(racer.sample for racer in first))


def group_key(tokens: Iterable[int], count: int) -> int:
    """Tokens of the `count`-th shortest of these samples; a lower bound of them while they are not
    finished."""
    return sorted(tokens)[count - 1]


def decide_race(rule: Rule, entrants: Sequence[Entrant]) -> Decision:
    """The decision that is certain now, of all groups of a batch in any order.

    A uniform group that would count is dropped and takes no place, as long as fewer than `rule.droppable`
    uniform groups have lower numbers. One that would not count is surplus as any other.
    """
    order = sorted((one for one in entrants if one.standing not in _OUT), key=_BY_KEY)
    droppable = _droppable(rule, entrants)
    keep: list[int] = []
    drop: list[int] = []
    place = 0
    for one in order:
        if place >= rule.wanted:
            break
        dropped = droppable[one.number] if _is_uniform(rule, one) else False
        if dropped:
            drop.append(one.number)
            continue
        place += 1
        if one.standing is not _KEPT and _known(rule, one) and dropped is not None:
            keep.append(one.number)
    abort = _losers(rule, order, set(keep), set(drop))
    left = sum(one.standing is not _DROPPED for one in entrants) - len(drop)
    add = max(0, min(rule.wanted - left, rule.most - len(entrants)))
    return Decision(tuple(sorted(keep)), tuple(sorted(drop)), abort, add)


def keys_to_pass(rule: Rule, entrants: Sequence[Entrant], decision: Decision) -> list[int]:
    """Keys of closed groups, ascending: nothing beyond `decision`, which was made of the same entrants, gets
    certain by longer responses alone before the bound of another group meets one of these keys.

    Until then no group without a decision has another place among the known ones; only if enough groups are
    known can one that is open lose by its place behind those that count.
    """
    gone = {*decision.drop, *decision.abort}
    kept = set(decision.keep)
    known = [one for one in entrants if one.closed and one.standing not in _OUT and one.number not in gone]
    enough = len(known) >= rule.wanted
    undecided = (one.standing is not _KEPT and one.number not in kept for one in known)
    return sorted({one.tokens for one, waits in zip(known, undecided, strict=True) if waits or enough})


def _droppable(rule: Rule, entrants: Sequence[Entrant]) -> dict[int, bool | None]:
    """Whether each group is dropped if it is uniform; None as long as that is not certain. Empty if none is
    dropped."""
    found: dict[int, bool | None] = {}
    if not rule.drop_uniform:
        return found
    uniform = unknown = 0  # of the groups with lower numbers
    for one in sorted(entrants, key=lambda one: one.number):
        certain = uniform + unknown < rule.droppable or uniform >= rule.droppable
        found[one.number] = uniform + unknown < rule.droppable if certain else None
        uniform += one.standing in (_DROPPED, _UNIFORM)
        unknown += one.standing is _OPEN
    return found


def _losers(rule: Rule, order: Sequence[Entrant], keep: set[int], drop: set[int]) -> tuple[int, ...]:
    """Groups that `rule.wanted` others precede for certain. order: of those that are not out."""
    ahead = 0
    losers = []
    for one in order:
        if one.standing is _KEPT or one.number in keep:
            ahead += 1
        elif one.number not in drop:
            if ahead >= rule.wanted:
                losers.append(one.number)
            elif _known(rule, one) and not _is_uniform(rule, one):
                ahead += 1
    return tuple(sorted(losers))


def _known(rule: Rule, one: Entrant) -> bool:
    """Whether it is known that the group takes a place, if it comes to its turn."""
    if one.standing is _KEPT:
        return True
    return one.closed and (not rule.drop_uniform or one.standing is not _OPEN)


def _is_uniform(rule: Rule, one: Entrant) -> bool:
    return rule.drop_uniform and one.standing is _UNIFORM
