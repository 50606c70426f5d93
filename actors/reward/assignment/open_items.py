"""OpenItems: the reward items of a service that have no verdict yet.

Owns what waits, in which stage and in which order (EBF, DistRS section 5.2), and what runs on which host. An
item that comes back from a lost host keeps its arrival, and so its place. Each job has queues of its own.
Pure: times are arguments.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from gleaner.actors.reward.assignment.given_attempts import Attempts, GivenAttempts
from gleaner.actors.reward.assignment.jobs import RewardJobs, TooMany
from gleaner.actors.reward.planning.queues import BatchQueues

NOWHERE = ""
"""Host of an item that waits."""
FEWEST_DROPPED = 1024
"""Dropped items that stay in the queues before these are rebuilt without them."""


@dataclass(slots=True)
class RewardItem:
    """One reward computation.

    Args:
        id: of its request; the key of its verdict.
        batch: the items whose verdicts one training step waits for.
        arrival_s: when it reached the service.
        stage: in which it waits or runs.
        pipeline: its stages, in their order.
        carried: what the stage before left (`gleaner.actors.reward.carried`), and made_on: the host that did.
        work: what a worker gets, packed.
        job: that it belongs to, where several share a service.
        attempts: number of the next attempt; of them this stage began with `begun_at`.
        given: attempts that hosts were given, since this service began.
        failed_on: the host of the last result that was a failure of ours.
        losses: hosts that were lost with it.
        host: where it runs.
        began_s: when it was sent there.
        spent_s: seconds that a worker took for it, by stage.
        open: it has no verdict yet, and needs one.
    """

    id: str
    batch: str
    arrival_s: float
    stage: str
    work: bytes
    job: str = ""
    pipeline: tuple[str, ...] = ()
    carried: bytes = b""
    made_on: str = NOWHERE
    attempts: int = 0
    begun_at: int = 0
    given: Attempts = field(default_factory=set)
    failed_on: str = NOWHERE
    losses: int = 0
    host: str = NOWHERE
    began_s: float = 0.0
    spent_s: dict[str, float] = field(default_factory=dict)
    open: bool = True

    @property
    def took_s(self) -> float:
        """Seconds that workers took for it so far."""
        return sum(self.spent_s.values())

    @property
    def next_stage(self) -> str:
        """The stage behind its own one, "" behind the last."""
        at = self.pipeline.index(self.stage) + 1 if self.stage in self.pipeline else len(self.pipeline)
        return self.pipeline[at] if at < len(self.pipeline) else ""

    def is_behind(self, stage: str) -> bool:
        """Whether it has not come to this stage of its pipeline yet."""
        known = self.pipeline
        return stage in known and self.stage in known and known.index(self.stage) < known.index(stage)


class OpenItems:
    """See the module.

    Args:
        most_waiting: items that may wait; beyond that none is added.
        jobs: whose items these are; their counts follow.
        aging_s: an item that waits longer goes before those of batches that are complete sooner.
    """

    def __init__(
        self, most_waiting: int, jobs: RewardJobs | None = None, aging_s: float = float("inf")
    ) -> None:
        self._most_waiting, self._aging_s = most_waiting, aging_s
        self._jobs = jobs if jobs is not None else RewardJobs()
        self._items: dict[str, RewardItem] = {}
        self._queues: dict[str, dict[str, BatchQueues[RewardItem]]] = {}  # by stage and job
        self._waiting: dict[str, dict[str, int]] = {}  # the same; queues also hold items that were dropped
        self._of_batch: dict[str, dict[str, int]] = {}  # items that wait, by batch and stage
        self._all_waiting = 0
        self._running: dict[str, dict[str, RewardItem]] = {}  # by host
        self._dropped = 0  # items in the queues that wait no more, since these were rebuilt
        self.given = GivenAttempts()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[RewardItem]:
        return iter(self._items.values())

    def get(self, item: str) -> RewardItem | None:
        """The open item of this id."""
        return self._items.get(item)

    @property
    def waiting(self) -> int:
        """Items that no host has."""
        return self._all_waiting

    def waiting_in(self, stage: str) -> int:
        """The same, of one stage."""
        return sum(self._waiting.get(stage, {}).values())

    def jobs_waiting_in(self, stage: str) -> Mapping[str, int]:
        """The jobs of those, with how many each has."""
        return self._waiting.get(stage, {})

    def waiting_of(self, batch: str) -> Mapping[str, int]:
        """Items of a batch that no host has, by stage; of stages without any there is no entry."""
        return self._of_batch.get(batch, {})

    def running(self) -> Iterator[RewardItem]:
        """What any host has."""
        return chain.from_iterable(held.values() for held in self._running.values())

    def gave(self, item: str, host: str, attempt: int) -> bool:
        """Whether a host was given this attempt of an item, which may be open, over or not requested yet."""
        open_ = self._items.get(item)
        return self.given.has(item, host, attempt, None if open_ is None else open_.given)

    def running_on(self, host: str) -> list[RewardItem]:
        """What this host has, the oldest first."""
        return list(self._running.get(host, {}).values())

    def add(self, item: RewardItem) -> None:
        """A new item waits. Raises `TooMany`."""
        if self.waiting >= self._most_waiting:
            raise TooMany(f"{self.waiting} items wait for a reward worker, at most {self._most_waiting} may")
        if item.id in self._items:
            raise ValueError(f"item {item.id} is open already")
        self._items[item.id] = item
        self._enqueue(item)

    def next(
        self, stage: str, jobs: Iterable[str], complete_s: Mapping[str, float], now_s: float = 0.0
    ) -> RewardItem | None:
        """The item of a stage, of one of these jobs, that a host gets next, by `place`; None if none waits.
        complete_s: when each batch is complete if nothing queues, as far as it can be foreseen."""
        of_job = self._queues.get(stage, {})
        queues = [of_job[job] for job in jobs if job in of_job]
        while queues := [queue for queue in queues if queue]:
            several = len(queues) > 1
            queue = min(queues, key=lambda one: one.first(complete_s, now_s)) if several else queues[0]
            item = queue.pick(complete_s, now_s)
            if item is not None and item.open and item.host == NOWHERE and item.stage == stage:
                return item
        return None

    def place(self, item: RewardItem, host: str, now_s: float) -> None:
        """A waiting item runs on this host."""
        self._waits_no_longer(item)
        self._jobs.get(item.job).placed(item.stage, 1)
        item.host, item.began_s = host, now_s
        self._running.setdefault(host, {})[item.id] = item

    def back(self, item: RewardItem) -> None:
        """A running item waits again, in its place."""
        self._take_from_host(item)
        self._enqueue(item)

    def move(self, item: RewardItem, stage: str) -> None:
        """It waits in another stage from now on, wherever it was."""
        if item.host == NOWHERE:
            self._waits_no_longer(item)
            self._dropped += 1  # the old queue still has it
        else:
            self._take_from_host(item)
        item.stage = stage
        self._enqueue(item)

    def end(self, item: RewardItem) -> None:
        """It has its verdict, or needs none: it is open no more."""
        if item.host == NOWHERE:
            self._waits_no_longer(item)
            self._dropped += 1
        else:
            self._take_from_host(item)
        self._close(item)

    def drop(self, ids: Iterable[str]) -> list[RewardItem]:
        """End those of these items that are open; they still have the host on which they run."""
        dropped = [item for one in ids if (item := self._items.get(one)) is not None]
        for item in dropped:
            host = item.host
            self.end(item)
            item.host = host
        if self._dropped > max(FEWEST_DROPPED, len(self._items)):
            self._rebuild()
        return dropped

    def _enqueue(self, item: RewardItem) -> None:
        self._into_queue(item)
        waiting = self._waiting.setdefault(item.stage, {})
        waiting[item.job] = waiting.get(item.job, 0) + 1
        of_batch = self._of_batch.setdefault(item.batch, {})
        of_batch[item.stage] = of_batch.get(item.stage, 0) + 1
        self._all_waiting += 1
        self._jobs.get(item.job).queued += 1

    def _into_queue(self, item: RewardItem) -> None:
        queues = self._queues.setdefault(item.stage, {})
        queues.setdefault(item.job, BatchQueues(self._aging_s)).add(item.batch, item.arrival_s, item)

    def _waits_no_longer(self, item: RewardItem) -> None:
        self._jobs.get(item.job).queued -= 1
        self._all_waiting -= 1
        waiting = self._waiting[item.stage]
        waiting[item.job] -= 1
        if not waiting[item.job]:
            del waiting[item.job]
            del self._queues[item.stage][item.job]  # what it still holds was dropped
        of_batch = self._of_batch[item.batch]
        of_batch[item.stage] -= 1
        if not of_batch[item.stage]:
            del of_batch[item.stage]
            if not of_batch:
                del self._of_batch[item.batch]

    def _rebuild(self) -> None:
        """Queues without dropped items: these must not outlive their request by much."""
        self._queues.clear()
        self._dropped = 0
        for item in self._items.values():
            if item.host == NOWHERE:
                self._into_queue(item)

    def _take_from_host(self, item: RewardItem) -> None:
        held = self._running[item.host]
        del held[item.id]
        if not held:
            del self._running[item.host]
        self._jobs.get(item.job).placed(item.stage, -1)
        item.host = NOWHERE

    def _close(self, item: RewardItem) -> None:
        item.open = False
        del self._items[item.id]
        self.given.closed(item.id, item.given)
