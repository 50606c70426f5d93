"""ScoringHosts: hosts with reward workers, and how many items each may have.

Owns the credit of each host: a host never has more items than its workers take, so a host that stalls takes
no more, and a lost one costs few attempts. Workers that need microseconds for an item get several at once.
Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

AHEAD_S = 0.1
"""Items that a worker may have last for so long together: the way there and back must not leave it idle."""
MOST_AHEAD = 64
FIRST_AHEAD = 8
"""Items of a worker while the duration of an item is not known."""


def items_ahead(item_s: float | None) -> int:
    """How many items one worker may have. item_s: the duration of one, None if unknown."""
    if item_s is None:
        return FIRST_AHEAD
    if item_s <= AHEAD_S / MOST_AHEAD:
        return MOST_AHEAD
    return max(1, round(AHEAD_S / item_s))


@dataclass(slots=True)
class ScoringHost:
    """One host.

    Args:
        name: of the host.
        most: of each stage, how many workers it can have.
        workers: how many it has now.
        barred: the reasons why it gets no new items, such as that it drains.
        has: of each stage, how many items it has.
    """

    name: str
    most: dict[str, int]
    workers: dict[str, int]
    barred: set[str] = field(default_factory=set)
    has: dict[str, int] = field(default_factory=dict)

    def credit(self, stage: str, ahead: int) -> int:
        """Items of this stage that it may get now."""
        if self.barred:
            return 0
        return max(0, self.workers.get(stage, 0) * ahead - self.has.get(stage, 0))

    def gets(self, stage: str) -> None:
        """It has one more item of this stage."""
        self.has[stage] = self.has.get(stage, 0) + 1

    def load(self, stage: str) -> float:
        """Items for each of its workers."""
        return self.has.get(stage, 0) / max(self.workers[stage], 1)


class ScoringHosts:
    """See the module."""

    def __init__(self) -> None:
        self.most_ahead = MOST_AHEAD
        """Items that one worker may have: 1 where each is a call of a service."""
        self._hosts: dict[str, ScoringHost] = {}
        self._item_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def __iter__(self) -> Iterator[ScoringHost]:
        return iter(self._hosts.values())

    def get(self, name: str) -> ScoringHost | None:
        """The host of this name, if it is there."""
        return self._hosts.get(name)

    def join(self, name: str, workers: Mapping[str, int]) -> ScoringHost:
        """A host is there, or offers its workers again: then it keeps its items, and what bars it."""
        host = self._hosts.setdefault(name, ScoringHost(name, {}, {}))
        host.most, host.workers = dict(workers), dict(workers)
        return host

    def leave(self, name: str) -> None:
        """It is gone."""
        self._hosts.pop(name, None)

    def gets(self, name: str, stage: str) -> None:
        """A host, which is there, has one more item of a stage."""
        self._hosts[name].gets(stage)

    def release(self, name: str, stage: str) -> None:
        """A host has one item fewer of a stage; nothing changes if it is gone."""
        if (host := self._hosts.get(name)) is not None:
            host.has[stage] = max(0, host.has.get(stage, 0) - 1)

    def workers(self, stage: str) -> int:
        """Workers of a stage on all hosts that may get items."""
        return sum(host.workers.get(stage, 0) for host in self._hosts.values() if not host.barred)

    def ahead(self, stage: str) -> int:
        """How many items of a stage one worker may have."""
        return min(items_ahead(self._item_s.get(stage)), self.most_ahead)

    def choose(self, stage: str, avoided: str = "", preferred: str = "") -> ScoringHost | None:
        """The host that gets the next item of a stage: the least loaded that has credit; of equal ones the
        one that joined first. avoided: a host that gets it only if no other one has credit. preferred: one
        that gets it if it has credit."""
        ahead = self.ahead(stage)
        best: ScoringHost | None = None
        lowest = (True, True, float("inf"))
        for host in self._hosts.values():  # a loop: this is half of what an item costs
            if host.credit(stage, ahead):
                rank = (host.name == avoided, host.name != preferred, host.load(stage))
                if best is None or rank < lowest:
                    best, lowest = host, rank
        return best

    def took(self, stage: str, item_s: float) -> None:
        """One worker needed so long for one item of a stage; the newest ones count most."""
        last = self._item_s.get(stage)
        self._item_s[stage] = item_s if last is None else last + (item_s - last) / 16

    def item_s(self, stage: str) -> float | None:
        """How long a worker needs for one item of a stage, None if unknown."""
        return self._item_s.get(stage)
