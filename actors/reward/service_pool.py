"""ServicePool: responses of a job that a reward service scores, each by a call of its own.

Owns the calls under way, whose number `call_limit` computes, and the tries of one item. Each verdict is
given when the service answers, whatever the others do; an item that is cancelled ends its call. A worker
process makes texts of the tokens. It has the methods of `WorkerPool` that `StagePools` uses for scores.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

from gleaner.actors.reward import pipe
from gleaner.actors.reward.call_limit import CallLimit
from gleaner.actors.reward.pool import PoolFailed, Wait, WorkerPool
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.verdicts import OURS, VERIFIER_FAILED, Judgement
from gleaner.supervisor import Overloaded

READ_S = 60.0
"""Longest time of the worker for one text, whatever the settings allow for a problem: then it hangs."""


class ServiceUnusable(ValueError):
    """The service cannot be called with these settings; the text gives the remedy."""


class ScoringService(Protocol):
    """A service elsewhere that scores one response a call. Use it on one loop."""

    def open(self) -> None:
        """Read the key; nothing is called yet. Raises ServiceUnusable."""

    async def score(self, item: pipe.TextItem, batch: str, full: Callable[[], None]) -> Judgement:
        """The score of a response of a batch, within a deadline of its own. A failure of the service is a
        status of ours. full: called each time that its queues have no room for it; it is asked again.
        Cancelled, it ends its call."""

    def opened(self, batch: str, items: int, kind: str = "") -> None:
        """A batch begins, of about so many responses: the service may prepare for it. kind: of its round.
        Waits for nothing."""

    def ended(self, batch: str) -> None:
        """No verdict of a batch is needed any more. Waits for nothing."""

    async def close(self) -> None:
        """Close the connections."""


MakeService = Callable[[int], ScoringService]
"""Makes one, for so many calls at a time."""


class ServicePool:
    """See the module.

    Args:
        readers: a pool of worker processes that make texts; its own.
        service: that scores them.
        workers: calls under way, at most.
    """

    def __init__(self, readers: WorkerPool, service: ScoringService, workers: int) -> None:
        self.readers, self.workers = readers, workers
        self._service = service
        self._limit = CallLimit(workers)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._failure = ""
        self.calls = 0
        """Under way."""

    @property
    def queued(self) -> int:
        """Items that wait for a call to end."""
        return len(self._waiting)

    @property
    def alive(self) -> int:
        """See `WorkerPool`."""
        return self.readers.alive

    @property
    def deaths(self) -> Counter[str]:
        """See `WorkerPool`."""
        return self.readers.deaths

    def start(self, wait: Wait) -> None:
        """Start the readers. A service that cannot be called fails every item."""
        try:
            self._service.open()
        except ServiceUnusable as problem:
            self._failure = str(problem)
        self.readers.start(wait)

    async def close(self) -> None:
        """End the readers and the connections; open items get `PoolFailed`."""
        self._failure = self._failure or "it was closed"
        await self.readers.close()
        await self._service.close()

    def resize(self, workers: int) -> None:
        """See `WorkerPool`: the dispatch gives so many items at a time."""
        self.workers = max(workers, 1)

    def opened(self, batch: str, items: int, kind: str = "") -> None:
        """See `ScoringService`."""
        if not self._failure:
            self._service.opened(batch, items, kind)

    def ended(self, batch: str) -> None:
        """See `ScoringService`."""
        if not self._failure:
            self._service.ended(batch)

    async def scored(self, item: pipe.Scorable | pipe.StageItem, batch: str) -> tuple[Verdict, float]:
        """The verdict of an item of a batch, and the seconds of its last call. Raises `Overloaded`,
        `PoolFailed`."""
        if isinstance(item, pipe.StageItem):
            return Verdict(None, VERIFIER_FAILED, "a service has all stages of its items"), 0.0
        if self._failure:
            raise PoolFailed(f"the reward service cannot be used: {self._failure}")
        if self.queued >= self.readers.max_queue:
            raise Overloaded(f"{self.queued} items wait for a call, at most {self.readers.max_queue} may")
        await self._begin_call()
        try:
            return await self._asked(item, batch)
        finally:
            self._end_call()

    async def _begin_call(self) -> None:
        """Wait, in the order of arrival, while there are as many calls as may be."""
        if self.calls < self._limit.calls and not self._waiting:
            self.calls += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had its turn at this moment
                self._end_call()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def _end_call(self) -> None:
        self.calls -= 1
        while self._waiting and self.calls < self._limit.calls:
            turn = self._waiting.popleft()
            if not turn.done():
                self.calls += 1
                turn.set_result(None)

    def _full(self) -> None:
        self._limit.refused(self.calls)

    async def _asked(self, item: pipe.Scorable, batch: str) -> tuple[Verdict, float]:
        if isinstance(item, pipe.ScoreItem):
            text = await self.readers.read(pipe.ReadItem(item.split, item.index, item.tokens))
            if isinstance(text, Verdict):
                return text, 0.0
            item = text
        attempts = 0
        while True:
            began_s = asyncio.get_running_loop().time()
            judged = await self._service.score(item, batch, self._full)
            took_s = asyncio.get_running_loop().time() - began_s
            attempts += 1
            if judged.status not in OURS:
                self._limit.answered()
                return Verdict(judged.score, judged.status, judged.detail), took_s
            if attempts >= self.readers.attempts:
                return Verdict(None, judged.status, judged.detail), took_s
