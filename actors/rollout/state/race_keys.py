"""Race keys: the keys of the groups of a race, from the token counts of their requests.

Owns what is remembered of them between two looks, so that a look reads only what can have changed: keys of
closed groups are final, and an old bound of another group is still a bound. Nothing of it is durable: it
follows from the token log. Pure.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from gleaner.actors.rollout.state.length_race import Lengths
from gleaner.actors.rollout.state.race import Racer, chosen, group_key
from gleaner.actors.rollout.state.request_log import RequestLog, RequestState, lengths

_ENDED = (RequestState.FINISHED, RequestState.DROPPED)


class Racing(Protocol):
    """What a race reads of its batch."""

    @property
    def groups(self) -> Sequence[Sequence[RequestLog]]:
        """The requests of each group that count, or may count."""

    @property
    def past(self) -> Sequence[RequestLog]:
        """Requests whose samples were generated again."""

    def closed(self, group: int) -> bool:
        """See `token_log.Batch`."""


class RaceKeys:
    """See the module; of one batch."""

    def __init__(self) -> None:
        self._tokens: list[int] = []  # keys of closed groups, and bounds of the others as they were read last
        self._open: set[int] = set()  # the others
        self.to_pass: list[int] | None = None
        """See `race.keys_to_pass`, of the last decision; None before the first."""
        self._stale = False  # responses got longer, and no bound was read

    def look(self, batch: Racing, count: int, touched: Iterable[int] | None = None) -> bool:
        """Read the bounds of these groups anew; of all that are not closed where `touched` is None, or where
        `passed` left them out. Returns whether one of them met a key of `to_pass`."""
        self._grow(batch)
        groups = sorted(self._open) if touched is None or self._stale else touched
        self._stale = False
        left = [group for group in groups if group in self._open]
        passed = self.to_pass is None
        for group, tokens in zip(left, _tokens(batch, left), strict=True):
            before, now = self._tokens[group], group_key(tokens, count)
            if now != before:
                self._tokens[group] = now
                passed = passed or self._between(before, now)
        return passed

    def passed(self, batch: Racing, count: int) -> bool:
        """Whether longer responses alone can make more of the race certain. Reads the bounds, unless there is
        no key to pass; then the next look reads them."""
        self._stale = self.to_pass == []
        return not self._stale and self.look(batch, count)

    def _between(self, before: int, now: int) -> bool:
        keys = self.to_pass or []
        low, high = sorted((before, now))
        return bisect_left(keys, low) < bisect_right(keys, high)

    def close(self, batch: Racing, count: int) -> None:
        """Read the keys of the groups that were closed since the last call."""
        self._grow(batch)
        closed = [group for group in self._open if batch.closed(group)]
        for group, tokens in zip(closed, _tokens(batch, closed), strict=True):
            self._tokens[group] = group_key(tokens, count)
        self._open.difference_update(closed)

    def of(self, group: int) -> tuple[int, bool]:
        """The key of the group, and whether it is closed; a bound of the key if it is not."""
        return self._tokens[group], group not in self._open

    def lengths(self) -> Lengths:
        """The same of all groups."""
        closed = np.ones(len(self._tokens), dtype=np.bool_)
        closed[list(self._open)] = False
        return Lengths(np.array(self._tokens, dtype=np.int64), closed)

    def _grow(self, batch: Racing) -> None:
        added = range(len(self._tokens), len(batch.groups))
        self._open.update(added)
        self._tokens += [0] * len(added)


def racers(batch: Racing, group: int) -> list[Racer]:
    """The samples of a group. One that is generated again has the place of its first response."""
    return [_racer(batch, log) for log in batch.groups[group]]


def closing(batch: Racing, group: int, count: int, *, by_time: bool) -> tuple[int, ...] | None:
    """The samples of an open group that count; None while that is not certain."""
    ended = sum(bool(log.again) or log.state in _ENDED for log in batch.groups[group])
    if ended < count:
        return None
    return chosen(racers(batch, group), count, by_time=by_time)


def _racer(batch: Racing, log: RequestLog) -> Racer:
    return Racer(log.sample, len(_first(batch, log)), bool(log.again) or log.state in _ENDED)


def _tokens(batch: Racing, groups: Sequence[int]) -> Iterator[list[int]]:
    """Tokens of the first responses of each of these groups, which are hundreds of requests: read in one
    call."""
    firsts = [log if not log.again else _first(batch, log) for group in groups for log in batch.groups[group]]
    counts, at = lengths(firsts), 0
    for group in groups:
        size = len(batch.groups[group])
        yield counts[at : at + size]
        at += size


def _first(batch: Racing, log: RequestLog) -> RequestLog:
    """The first response of its sample."""
    if not log.again:
        return log
    return next(one for one in batch.past if (one.group, one.sample, one.again) == (log.group, log.sample, 0))
