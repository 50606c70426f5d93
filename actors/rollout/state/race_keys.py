"""Race keys: the keys of the groups of a race, from the token counts of their requests.

Owns what is remembered of them between two looks, so that a look reads only what can have changed: keys of
closed groups are final, and an old bound of another group is still a bound. Nothing of it is durable: it
follows from the token log. Pure.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gleaner.actors.rollout.state.length_race import Lengths
from gleaner.actors.rollout.state.race import Racer, chosen, group_key
from gleaner.actors.rollout.state.request_log import RequestLog, RequestState, lengths
from gleaner.actors.rollout.state.token_columns import NO_SLOT, Slots

Keys = NDArray[np.int64]

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
        self._tokens = np.zeros(0, np.int64)  # keys of closed groups, bounds of the others as they were read
        self._closed = np.zeros(0, np.bool_)
        self.to_pass: list[int] | None = None
        """See `race.keys_to_pass`, of the last decision; None before the first."""
        self._stale = False  # responses got longer, and no bound was read
        self._slots: Slots | None = None  # see `_slots`, of all groups that are not closed
        self._slots_of: tuple[int, int] = -1, 0  # changes of slots, and such groups, when they were read

    def look(self, batch: Racing, count: int, touched: Iterable[int] | None = None) -> bool:
        """Read the bounds of these groups anew; of all that are not closed where `touched` is None, or where
        `passed` left them out. Returns whether one of them met a key of `to_pass`."""
        self._grow(batch)
        if touched is None or self._stale:
            left = np.flatnonzero(~self._closed)
            now = self._left_keys(batch, left, count)
        else:
            left = np.array([group for group in touched if not self._closed[group]], np.int64)
            now = _keys(batch, left.tolist(), count)
        self._stale = False
        before = self._tokens[left]
        self._tokens[left] = now
        return self.to_pass is None or self._passed(before, now)

    def passed(self, batch: Racing, count: int) -> bool:
        """Whether longer responses alone can make more of the race certain. Reads the bounds, unless there is
        no key to pass; then the next look reads them."""
        self._stale = self.to_pass == []
        return not self._stale and self.look(batch, count)

    def _passed(self, before: Keys, now: Keys) -> bool:
        """Whether a bound that changed was at one of the keys, is, or has passed it."""
        changed = before != now
        if not changed.any():
            return False
        before, now, keys = before[changed], now[changed], np.array(self.to_pass or [], np.int64)
        below = np.searchsorted(keys, np.minimum(before, now), "left")
        up_to = np.searchsorted(keys, np.maximum(before, now), "right")
        return bool((below < up_to).any())

    def _left_keys(self, batch: Racing, left: NDArray[np.int64], count: int) -> Keys:
        """`_keys` of all groups that are not closed. They mostly have the slots of the last look, and to
        collect these was most of the time of a look."""
        if batch.past or not len(left):
            return _keys(batch, left.tolist(), count)
        columns = batch.groups[0][0].columns
        of = columns.changes, len(left)  # a closed group stays closed, and one that is added has new slots
        if of != self._slots_of:
            self._slots, self._slots_of = _slots(batch, left.tolist()), of
        if self._slots is None:
            return _keys(batch, left.tolist(), count)
        keys: Keys = np.sort(columns.lengths(self._slots), axis=1)[:, count - 1]
        return keys

    def close(self, batch: Racing, count: int) -> None:
        """Read the keys of the groups that were closed since the last call."""
        self._grow(batch)
        closed = [group for group in np.flatnonzero(~self._closed).tolist() if batch.closed(group)]
        self._tokens[closed] = _keys(batch, closed, count)
        self._closed[closed] = True

    def of(self, group: int) -> tuple[int, bool]:
        """The key of the group, and whether it is closed; a bound of the key if it is not."""
        return self._tokens.item(group), self._closed.item(group)

    def lengths(self) -> Lengths:
        """The same of all groups, until the next call of another method."""
        return Lengths(self._tokens, self._closed)

    def _grow(self, batch: Racing) -> None:
        if added := len(batch.groups) - len(self._tokens):
            self._tokens = np.append(self._tokens, np.zeros(added, np.int64))
            self._closed = np.append(self._closed, np.zeros(added, np.bool_))


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


def _keys(batch: Racing, groups: Sequence[int], count: int) -> Keys:
    """`race.group_key` of the first responses of each of these groups, which are hundreds of requests: read
    in one call, and sorted in one where the groups are of one size."""
    entered = [batch.groups[group] for group in groups]
    firsts = list(chain.from_iterable(entered))
    if batch.past:
        firsts = [_first(batch, log) for log in firsts]
    sizes, tokens = list(map(len, entered)), lengths(firsts)
    if len(set(sizes)) == 1:
        keys: Keys = np.sort(tokens.reshape(len(groups), -1), axis=1)[:, count - 1]
        return keys
    parts = np.split(tokens, np.cumsum(sizes)[:-1]) if groups else []
    return np.array([group_key(part.tolist(), count) for part in parts], np.int64)


def _slots(batch: Racing, groups: Sequence[int]) -> Slots | None:
    """The slots of the requests of these groups, a row a group; None if the groups are not of one size, or
    the tokens of one are held no longer."""
    slots = [[log.slot for log in batch.groups[group]] for group in groups]
    if len(set(map(len, slots))) != 1:
        return None
    found = np.array(slots, np.int64)
    return None if (found == NO_SLOT).any() else found


def _first(batch: Racing, log: RequestLog) -> RequestLog:
    """The first response of its sample."""
    if not log.again:
        return log
    return next(one for one in batch.past if (one.group, one.sample, one.again) == (log.group, log.sample, 0))
