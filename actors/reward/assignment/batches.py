"""RewardBatches: the batches of a service, when each can be complete, and what earlier ones were like.

Owns T-hat of each active batch (DistRS eq. 1 and 2 over what is foreseen), which orders the queues, and the
history of the last batches of each kind. Pure: times are arguments.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.batch_limit import job_of, surplus_batches
from gleaner.actors.reward.planning.forecast import BatchHistory, pooled

MOST_KINDS = 64
LEAST_EXPIRY_S = 60.0
"""Of an announcement: the first response of a short batch may be late for reasons of machines."""


@dataclass(slots=True)
class RewardBatch:
    """An active batch.

    Args:
        name: of the batch.
        origin_s: from which its arrivals count: the hint, or its first arrival.
        expected: items that it will have; 0 if unknown.
        job: of several that share the service.
        announced: the kind that its announcement gave.
        lapsed: none of its announced items came in time; no plan counts on them.
        arrivals_s, times_s: of the items that have ended; the times by stage.
    """

    name: str
    origin_s: float
    expected: int = 0
    job: str = ""
    announced: str = ""
    lapsed: bool = False
    arrived: int = 0
    complete_s: float = float("inf")
    arrivals_s: list[float] = field(default_factory=list)
    times_s: list[tuple[float, ...]] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Batches of one kind are alike: those of whole steps, short rounds, long rounds, evaluations."""
        return kind_of(self.name, self.announced)

    def history(self) -> BatchHistory | None:
        """What it was like; None if nothing of it ended."""
        if not self.arrivals_s:
            return None
        order = np.argsort(self.arrivals_s, kind="stable")
        return BatchHistory(np.asarray(self.arrivals_s)[order], np.asarray(self.times_s)[order])


def kind_of(batch: str, announced: str = "") -> str:
    """`step` of `step-12`; `step short` if it was announced as a short round: its arrivals are others."""
    named = batch.rpartition("-")[0] or batch
    return f"{named} {announced}" if announced else named


class RewardBatches:
    """See the module. stages: of the service, the columns of histories. history_batches: the last ones of
    each kind, from which the next is foreseen."""

    def __init__(self, stages: Sequence[str] = ("score",), history_batches: int = 1) -> None:
        self._stages, self._history_batches = tuple(stages), history_batches
        self._batches: OrderedDict[str, RewardBatch] = OrderedDict()
        self._last: OrderedDict[str, list[BatchHistory]] = OrderedDict()  # of each kind, the oldest first
        self._histories: dict[str, BatchHistory] = {}  # the same of each kind as one
        self.complete_s: dict[str, float] = {}
        """T-hat of each active batch that has one."""

    def __len__(self) -> int:
        return len(self._batches)

    def active(self) -> list[RewardBatch]:
        """The active batches, the oldest first."""
        return list(self._batches.values())

    def get(self, name: str) -> RewardBatch | None:
        """The active batch of this name."""
        return self._batches.get(name)

    def history(self, kind: str) -> BatchHistory | None:
        """Of the last batches of this kind."""
        return self._histories.get(kind)

    def hint(self, name: str, items: int, now_s: float, kind: str = "") -> bool:
        """A batch of about so many items begins; whether that is new. kind: see `kind_of`."""
        batch = self._batches.get(name)
        new = batch is None
        if batch is None:
            batch = self._begin(name, now_s, job_of(name), kind)
        elif batch.lapsed or (kind and batch.announced != kind):  # or an item of it came before this
            new, batch.announced = True, kind or batch.announced
            batch.origin_s = now_s if batch.lapsed else batch.origin_s
            batch.lapsed, batch.complete_s = False, float("inf")
            self.complete_s.pop(name, None)
            self._foresee(batch)
        batch.expected = max(batch.expected, items)
        return new

    def arrived(self, name: str, now_s: float, job: str = "") -> bool:
        """An item of a batch, and of a job, has arrived; whether it is the first one."""
        batch = self._batches.get(name) or self._begin(name, now_s, job)
        batch.arrived += 1
        batch.lapsed = False
        if now_s > batch.complete_s:  # later than foreseen: T-hat is raised, never lowered
            self._estimate(batch, now_s + self._usual_s(batch.kind))
        return batch.arrived == 1

    def expires_s(self, batch: RewardBatch, hint_expires_s: float) -> float:
        """When an announcement counts no more if no item of the batch came. hint_expires_s: after it;
        0: twice as long as the last batch of its kind took, never without one."""
        if batch.arrived or batch.lapsed:
            return float("inf")
        foreseen_s = max(2 * (batch.complete_s - batch.origin_s), LEAST_EXPIRY_S)
        return batch.origin_s + (hint_expires_s or foreseen_s)

    def lapse(self, now_s: float, hint_expires_s: float) -> list[RewardBatch]:
        """No plan counts on the announced batches whose time is over, as their jobs may have ended; those
        batches. Each goes on with its first item, or another announcement."""
        late = [one for one in self._batches.values() if self.expires_s(one, hint_expires_s) <= now_s]
        for batch in late:
            batch.lapsed = True
        return late

    def fewer(self, name: str, items: int) -> None:
        """So many items of the batch will not be needed."""
        batch = self._batches.get(name)
        if batch is not None:
            batch.expected = max(batch.expected - items, 0)

    def scored(self, item: RewardItem) -> None:
        """An item has ended by itself."""
        batch = self._batches.get(item.batch)
        if batch is not None:
            batch.arrivals_s.append(max(item.arrival_s - batch.origin_s, 0.0))
            batch.times_s.append(tuple(item.spent_s.get(stage, 0.0) for stage in self._stages))

    def ended(self, name: str) -> RewardBatch | None:
        """The step has all that it waits for: the batch becomes the history of its kind."""
        batch = self._batches.pop(name, None)
        self.complete_s.pop(name, None)
        if batch is not None and (history := batch.history()) is not None:
            self.learn(batch.kind, history)
        return batch

    def learn(self, kind: str, history: BatchHistory) -> None:
        """The history of a batch of a kind, also from a journal; one of other stages is of no use."""
        if history.times_s.shape[1] != len(self._stages):
            return
        last = self._last.setdefault(kind, [])
        last.append(history)
        del last[: -self._history_batches]
        self._last.move_to_end(kind)
        self._histories[kind] = pooled(last)
        while len(self._last) > MOST_KINDS:
            oldest, _ = self._last.popitem(last=False)
            del self._histories[oldest]

    def histories(self) -> list[tuple[str, BatchHistory]]:
        """The histories of each kind, the least recently learnt kind and the oldest batch first."""
        return [(kind, one) for kind, last in self._last.items() for one in last]

    def _begin(self, name: str, now_s: float, job: str, kind: str = "") -> RewardBatch:
        batch = self._batches[name] = RewardBatch(name, now_s, job=job, announced=kind)
        self._foresee(batch)
        for oldest in surplus_batches(self._batches, lambda one: self._batches[one].job):
            del self._batches[oldest]
            self.complete_s.pop(oldest, None)  # its items come last
        return batch

    def _foresee(self, batch: RewardBatch) -> None:
        """T-hat of a batch by the history of its kind; none without one."""
        history = self._histories.get(batch.kind)
        if history is not None:
            unqueued_s = history.arrivals_s + history.times_s.sum(axis=1)
            self._estimate(batch, batch.origin_s + float(unqueued_s.max()))

    def _estimate(self, batch: RewardBatch, complete_s: float) -> None:
        batch.complete_s = complete_s
        self.complete_s[batch.name] = complete_s

    def _usual_s(self, kind: str) -> float:
        """The median item's running time."""
        history = self._histories.get(kind)
        return 0.0 if history is None else float(np.median(history.times_s.sum(axis=1)))
