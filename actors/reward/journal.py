"""`RewardJournal`: what the RewardProxy keeps over a restart.

Owns the events of the proxy's journal and their replay. Today these are anchors alone. A lost anchor costs
the time of some programs and no verdict, so no verdict waits for its commit. Snapshots bound the replay: one
after as many events as there are problems with anchors, so writing them costs no more than the events do.
"""

import asyncio
import logging
from typing import TypeAlias

from gleaner.actors.reward.timeouts import AdaptiveTimeouts
from gleaner.supervisor import Journal, Message

Log: TypeAlias = "logging.LoggerAdapter[logging.Logger]"
LEAST_EVENTS = 1000
"""Events between two snapshots, at least."""


class AnchorRaised(Message, frozen=True):
    """Journaled: the longest processor time (s) of each test of a problem, in a response that was right in
    all of them, has grown."""

    problem: str
    anchors_s: tuple[float, ...]


class RewardSnapshot(Message, frozen=True):
    """Journaled in place of all events so far: anchors by problem, the least recently used one first."""

    anchors_s: dict[str, tuple[float, ...]]


class RewardJournal:
    """See the module. Changes of state are made by its caller, before they are recorded here."""

    def __init__(self, journal: Journal, timeouts: AdaptiveTimeouts, log: Log) -> None:
        self._journal, self._timeouts, self._log = journal, timeouts, log
        self._since_snapshot = 0
        self.failures = 0
        """Commits that failed."""

    async def replay(self) -> None:
        """Restore what the last incarnation had committed. Raises Fenced, JournalError."""
        async for event in self._journal.replay():
            if isinstance(event, RewardSnapshot):
                self._timeouts.restore(event.anchors_s.items())
            elif isinstance(event, AnchorRaised):
                self._timeouts.restore([(event.problem, event.anchors_s)])

    def anchor_raised(self, problem: str, anchors_s: tuple[float, ...]) -> None:
        """Record new anchors, without waiting for the commit."""
        commit = self._journal.append_soon(AnchorRaised(problem=problem, anchors_s=anchors_s))
        self._unawaited(asyncio.ensure_future(commit))
        self._since_snapshot += 1
        if self._since_snapshot >= max(LEAST_EVENTS, len(self._timeouts.anchors_s())):
            self._since_snapshot = 0
            state = RewardSnapshot(anchors_s=dict(self._timeouts.anchors_s()))
            self._unawaited(asyncio.ensure_future(self._journal.snapshot_soon(state)))

    def _unawaited(self, commit: "asyncio.Future[int]") -> None:
        commit.add_done_callback(self._done)

    def _done(self, commit: "asyncio.Future[int]") -> None:
        if commit.cancelled() or (problem := commit.exception()) is None:
            return
        if not self.failures:
            self._log.warning("anchors of timeouts are in memory only: %s", problem)
        self.failures += 1
