"""`UniformShare`: how many of a job's groups are uniform, for the spare groups of its short rounds.

Pure. Owns the groups that counted and the uniform ones that were dropped, of as many of the newest rounds as
a period has short ones. Long rounds are left out: theirs are other problems than a short round decides on.
"""

import math
from collections import deque
from collections.abc import Iterable

from gleaner.actors.training.rounds import RoundRule, spare_groups

MOST_ROUNDS = 8
"""Rounds that are kept: the short ones of a period at the smallest factor of `rounds.FACTORS`."""


class UniformShare:
    """See the module."""

    def __init__(self) -> None:
        self._rounds: deque[tuple[int, int]] = deque(maxlen=MOST_ROUNDS)  # counted and dropped, by round

    def settled(self, counted: int, dropped: int) -> None:
        """A round ended, which was no long one."""
        self._rounds.append((counted, dropped))

    def spare(self, rule: RoundRule, problems: int) -> int:
        """The spare groups of the next short round: see `rounds.spare_groups`."""
        shorts = math.ceil(rule.prompts / rule.surplus) if rule.surplus else MOST_ROUNDS
        newest = list(self._rounds)[-shorts:]
        counted, dropped = (sum(numbers) for numbers in zip(*newest, strict=True)) if newest else (0, 0)
        return spare_groups(rule, counted, dropped, problems)

    def __copy__(self) -> "UniformShare":
        """Another one with the same rounds."""
        other = UniformShare()
        other.restore(self._rounds)
        return other

    def rounds(self) -> tuple[tuple[int, int], ...]:
        """The kept rounds, the oldest first."""
        return tuple(self._rounds)

    def restore(self, rounds: Iterable[tuple[int, int]]) -> None:
        """Have these rounds."""
        self._rounds = deque(rounds, maxlen=MOST_ROUNDS)
