"""`RewardJournal`: what the RewardProxy keeps over a restart.

Owns the events of the proxy's journal and their replay: batches that were announced, verdicts that took
long, histories of batches, and anchors of timeouts. None of them decides anything: the manager's journal has
the verdict that counts, and a lost event costs the proxy some computation. So nothing waits for a commit.
Snapshots bound the replay: one after as many events as the state has entries, so writing them costs no more
than the events do.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeAlias

import numpy as np

from gleaner.actors.reward.assignment.batches import RewardBatches
from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.assignment.passed_stages import PassedStages, StagePassed
from gleaner.actors.reward.batch_limit import surplus_batches
from gleaner.actors.reward.planning.forecast import BatchHistory
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.timeouts import AdaptiveTimeouts
from gleaner.actors.reward.verdict_cache import VerdictCache
from gleaner.supervisor import Journal, Message

Log: TypeAlias = "logging.LoggerAdapter[logging.Logger]"
LEAST_EVENTS = 1000
"""Events between two snapshots, at least."""
MOST_ITEMS = 2**16
"""Items of a history that is kept; of a larger batch every second, third, ... one."""


class AnchorRaised(Message, frozen=True):
    """Journaled: the longest processor time (s) of each test of a problem, in a response that was right in
    all of them, has grown."""

    problem: str
    anchors_s: tuple[float, ...]


class VerdictGiven(Message, frozen=True):
    """Journaled: the verdict of a request that took long to compute."""

    request: str
    batch: str
    score: float
    status: str
    detail: str = ""


class StageLeft(Message, frozen=True):
    """Journaled: an item has passed a stage that took long; what that left, and the host that did it."""

    request: str
    batch: str
    stage: str
    carried: bytes
    host: str


class BatchAnnounced(Message, frozen=True):
    """Journaled where workers are planned: a batch of about so many items has begun. kind: of its round."""

    batch: str
    items: int
    kind: str = ""


class BatchClosed(Message, frozen=True):
    """Journaled: a batch is over; its verdicts are not requested again. kind, and f32 little-endian arrivals
    (s) and times (s, a row an item) of its items: its history; empty where no plan needs one."""

    batch: str
    kind: str = ""
    arrivals_s: bytes = b""
    times_s: bytes = b""


class RewardSnapshot(Message, frozen=True):
    """Journaled in place of all events so far: anchors by problem, the least recently used one first; the
    verdicts of open batches; the newest history of each kind; the open batches that were announced."""

    anchors_s: dict[str, tuple[float, ...]]
    verdicts: tuple[VerdictGiven, ...] = ()
    histories: tuple[BatchClosed, ...] = ()
    announced: tuple[BatchAnnounced, ...] = ()


class RewardJournal:
    """See the module. Changes of state are made by its caller, before they are recorded here.

    Args:
        timeouts: whose anchors are kept; None: there are none.
        verdicts, batches, passed: to which a replay returns verdicts, histories and what stages left.
            Announced batches begin in the order of their announcement.
    """

    def __init__(
        self,
        journal: Journal,
        timeouts: AdaptiveTimeouts | None,
        verdicts: VerdictCache,
        batches: RewardBatches,
        passed: PassedStages,
        log: Log,
    ) -> None:
        self._journal, self._timeouts, self._log = journal, timeouts, log
        self._verdicts, self._batches, self._passed = verdicts, batches, passed
        self._open: dict[str, list[VerdictGiven]] = {}  # verdicts that were recorded, by batch
        self._announced: dict[str, BatchAnnounced] = {}  # open batches that were announced
        self._since_snapshot = 0
        self.failures = 0
        """Commits that failed."""

    async def replay(self, now_s: float) -> None:
        """Restore what the last incarnation had committed. Raises Fenced, JournalError."""
        async for event in self._journal.replay():
            match event:
                case RewardSnapshot():
                    self._restore_anchors(event.anchors_s)
                    for given in event.verdicts:
                        self._given(given)
                    for closed in event.histories:
                        self._closed(closed)
                    for announced in event.announced:
                        self._announce(announced)
                case AnchorRaised():
                    self._restore_anchors({event.problem: event.anchors_s})
                case VerdictGiven():
                    self._given(event)
                case StageLeft():
                    left = StagePassed(event.stage, event.carried, event.host)
                    self._passed.keep(event.batch, event.request, left)
                case BatchAnnounced():
                    self._announce(event)
                case BatchClosed():
                    self._closed(event)
        for batch, announced in self._announced.items():
            self._batches.hint(batch, announced.items, now_s, announced.kind)

    def batch_announced(self, batch: str, items: int, kind: str = "") -> None:
        """Record that a batch has begun, once. A later announcement of it may raise its items, or give its
        kind."""
        known = self._announced.get(batch)
        if known is not None:
            items, kind = max(items, known.items), kind or known.kind
        event = BatchAnnounced(batch=batch, items=items, kind=kind)
        if event == known:
            return
        self._announce(event)
        self._record(event)

    def anchor_raised(self, problem: str, anchors_s: tuple[float, ...]) -> None:
        """Record new anchors."""
        self._record(AnchorRaised(problem=problem, anchors_s=anchors_s))

    def verdict_given(self, batch: str, request: str, verdict: Verdict) -> None:
        """Record a verdict that has a score."""
        assert verdict.score is not None
        event = VerdictGiven(
            request=request, batch=batch, score=verdict.score, status=verdict.status, detail=verdict.detail
        )
        self._keep(event)
        self._record(event)

    def stage_passed(self, item: RewardItem) -> None:
        """Record what the stage before an item's own left. A snapshot leaves it out: the stage is done again
        then."""
        stage = item.pipeline[item.pipeline.index(item.stage) - 1]
        event = StageLeft(
            request=item.id, batch=item.batch, stage=stage, carried=item.carried, host=item.made_on
        )
        self._record(event)

    def batch_closed(self, batch: str, kind: str, history: BatchHistory | None) -> None:
        """Record the end of a batch, if it leaves a history, has recorded verdicts or was announced."""
        recorded = [self._open.pop(batch, None), self._announced.pop(batch, None), history]
        if any(one is not None for one in recorded):
            self._record(_packed(batch, kind, history))

    def _restore_anchors(self, anchors_s: dict[str, tuple[float, ...]]) -> None:
        if self._timeouts is not None:
            self._timeouts.restore(anchors_s.items())

    def _keep(self, event: VerdictGiven) -> None:
        """For snapshots, of the batches that the cache has."""
        self._open.setdefault(event.batch, []).append(event)
        for batch in surplus_batches(self._open):
            del self._open[batch]

    def _announce(self, event: BatchAnnounced) -> None:
        """For snapshots, of the batches that `RewardBatches` has."""
        self._announced.pop(event.batch, None)
        self._announced[event.batch] = event
        for batch in surplus_batches(self._announced):
            del self._announced[batch]

    def _given(self, event: VerdictGiven) -> None:
        self._keep(event)
        self._verdicts.keep(event.batch, event.request, Verdict(event.score, event.status, event.detail))

    def _closed(self, event: BatchClosed) -> None:
        self._open.pop(event.batch, None)
        self._announced.pop(event.batch, None)
        self._verdicts.forget(event.batch)
        self._passed.forget(event.batch)
        if event.arrivals_s:
            arrivals_s = np.frombuffer(event.arrivals_s, "<f4").astype(np.float64)
            times_s = np.frombuffer(event.times_s, "<f4").astype(np.float64)
            self._batches.learn(event.kind, BatchHistory(arrivals_s, times_s.reshape(len(arrivals_s), -1)))

    def _record(self, event: Message) -> None:
        self._unawaited(self._journal.append_soon(event))
        self._since_snapshot += 1
        if self._since_snapshot >= max(LEAST_EVENTS, self._entries()):
            self._since_snapshot = 0
            self._unawaited(self._journal.snapshot_soon(self._state()))

    def _entries(self) -> int:
        anchors = len(self._timeouts.anchors_s()) if self._timeouts is not None else 0
        return anchors + len(self._announced) + sum(map(len, self._open.values()))

    def _state(self) -> RewardSnapshot:
        return RewardSnapshot(
            anchors_s=dict(self._timeouts.anchors_s()) if self._timeouts is not None else {},
            verdicts=tuple(event for events in self._open.values() for event in events),
            histories=tuple(_packed("", kind, one) for kind, one in self._batches.histories()),
            announced=tuple(self._announced.values()),
        )

    def _unawaited(self, commit: Awaitable[int]) -> None:
        asyncio.ensure_future(commit).add_done_callback(self._done)

    def _done(self, commit: "asyncio.Future[int]") -> None:
        if commit.cancelled() or (problem := commit.exception()) is None:
            return
        if not self.failures:
            self._log.warning("verdicts, histories and anchors are in memory only: %s", problem)
        self.failures += 1


def _packed(batch: str, kind: str, history: BatchHistory | None) -> BatchClosed:
    if history is None:
        return BatchClosed(batch=batch, kind=kind)
    every = -(-len(history.arrivals_s) // MOST_ITEMS)
    return BatchClosed(
        batch=batch,
        kind=kind,
        arrivals_s=np.asarray(history.arrivals_s[::every], "<f4").tobytes(),
        times_s=np.asarray(history.times_s[::every], "<f4").tobytes(),
    )
