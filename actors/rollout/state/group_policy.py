"""Group selection: groups of a batch that count, are dropped, redrawn or aborted.

Pure: the standing of each group goes in, a decision comes out. Sources: dynamic sampling is DAPO's (arXiv
2503.14476, section 3.2): a group whose scores are all equal has no advantage over itself, gives no gradient,
and is replaced by another prompt. Over-sampling with abort is RollPacker's (section 3): more prompts are
launched than are wanted, the first that end count.

Which groups count never depends on the order in which they end, unless more were launched than are wanted.
The first uniform groups, by their number, are dropped. A uniform group waits with its verdict for as long as
an earlier one could still take its place in that count.
"""

import enum
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from gleaner.actors.reward.verdicts import OURS

UNIFORM = "uniform"
"""Why a group was dropped: all of its scores are equal, or there are fewer than two."""
SURPLUS = "surplus"
"""Why a group was dropped: the batch has what it wanted."""
NO_VERDICT = OURS
"""Statuses of a sample that do not judge its policy: its verifier failed for good."""


class Standing(enum.Enum):
    """The standing of a group in its batch."""

    OPEN = "open"  # some of its samples have no verdict yet
    UNIFORM = "uniform"  # complete, all scores equal or fewer than two, nothing decided
    VARIED = "varied"  # complete, nothing decided
    KEPT = "kept"  # it counts
    DROPPED = "dropped"  # uniform, and another prompt was or is drawn for it
    ABORTED = "aborted"  # surplus: the batch had enough without it


@dataclass(frozen=True, slots=True)
class Rule:
    """What a batch wants. wanted: groups that it ends with. most: groups that it may have in all, refills
    included. drop_uniform: dynamic sampling. over_sampling: how many prompts are in progress for each missing
    group, at least 1. Raises ValueError for a rule that could not be kept."""

    wanted: int
    most: int
    drop_uniform: bool = False
    over_sampling: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.wanted <= self.most:
            raise ValueError(f"wanted {self.wanted} of at most {self.most} groups")
        if not 1.0 <= self.over_sampling < math.inf:
            raise ValueError(f"over-sampling by {self.over_sampling}: at least 1 is needed")

    @property
    def droppable(self) -> int:
        """Number of uniform groups that are dropped; those after them are accepted as they are."""
        return self.most - self.wanted if self.drop_uniform else 0


@dataclass(frozen=True, slots=True)
class Decision:
    """Groups that count from now on, uniform ones that are dropped, the surplus to abort, and how many more
    prompts to draw."""

    keep: tuple[int, ...] = ()
    drop: tuple[int, ...] = ()
    abort: tuple[int, ...] = ()
    add: int = 0

    def __bool__(self) -> bool:
        return bool(self.keep or self.drop or self.abort or self.add)


def launched(wanted: int, over_sampling: float) -> int:
    """Number of prompts to start with."""
    return math.ceil(over_sampling * wanted)


def decide(rule: Rule, groups: Sequence[Standing]) -> Decision:
    """The decision for the present standing of each group. Once it is carried out, there is nothing to decide
    until one more group is complete."""
    kept = sum(one is Standing.KEPT for one in groups)
    keep: list[int] = []
    drop: list[int] = []
    uniform = unknown = 0  # of the groups before this one: uniform, and not complete yet
    for number, standing in enumerate(groups):
        if standing is Standing.DROPPED:
            uniform += 1
        elif standing is Standing.OPEN:
            unknown += 1
        elif standing is Standing.VARIED:
            keep.append(number)
        elif standing is Standing.UNIFORM:
            if uniform + unknown < rule.droppable:
                drop.append(number)
            elif uniform >= rule.droppable:
                keep.append(number)
            uniform += 1
    keep = keep[: rule.wanted - kept]
    missing = rule.wanted - kept - len(keep)
    decided = {*keep, *drop}
    undecided = [
        number
        for number, standing in enumerate(groups)
        if standing in (Standing.OPEN, Standing.UNIFORM, Standing.VARIED) and number not in decided
    ]
    if not missing:
        return Decision(tuple(keep), tuple(drop), tuple(undecided))
    short = launched(missing, rule.over_sampling) - len(undecided)
    add = max(0, min(short, rule.most - len(groups)))
    return Decision(tuple(keep), tuple(drop), (), add)


def made_again(status: str, times: int, most: int) -> bool:
    """Whether a sample with this status, generated again `times` times so far, is generated once more."""
    return status in NO_VERDICT and times < most


def seed_again(seed: int, times: int) -> int:
    """The 63-bit seed of a sample that is generated again for the `times`-th time: it follows from its first
    one."""
    name = f"{seed}/again/{times}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) >> 1
