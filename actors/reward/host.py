"""RewardHost: the reward workers of one host, for a proxy elsewhere.

Owns the pool of worker processes, the items that they have and the results that the proxy has not received.
It offers its workers to the proxy, and again to each new one: a proxy that restarts finds what runs, so
nothing is scored anew. It does not survive its own death: its items then run elsewhere.
"""

import asyncio

from gleaner.actors.names import REWARD
from gleaner.actors.protocol.reward import (
    CancelItems,
    ItemResult,
    ItemsScored,
    ItemToScore,
    OfferWorkers,
    ResizeWorkers,
    ScoreItems,
    StillOffered,
    WorkersTaken,
)
from gleaner.actors.reward import pipe
from gleaner.actors.reward.case_limits import CaseTimes
from gleaner.actors.reward.pool import PoolFailed, WorkerPool
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.verdicts import OVERLOADED, VERIFIER_FAILED
from gleaner.supervisor import Actor, AskFailed, Done, Fenced, Overloaded, Refused, Terminated, handles

OFFER_DEADLINE_S = 5.0
PROXY_LATE_S = 30.0  # longer waits than these are logged, each time again; nothing is given up
RETRY_S = 0.2
CHECK_S = 2.0
"""Between two looks whether the proxy still has the offer."""
MOST_RESULTS = 256
"""In one message."""


class RewardHost(Actor):
    """See the module. Its name is `<node>/reward`.

    Args:
        stage: the stage that its workers compute.
        pool: not started yet; the actor's own.
        verdict_s: deadline of one verdict, with everything that may happen to workers.
    """

    def __init__(self, stage: str, pool: WorkerPool, verdict_s: float) -> None:
        self._stage, self._pool, self._verdict_s = stage, pool, verdict_s
        self._most = pool.workers
        self._epoch = ""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._results: dict[str, ItemResult] = {}  # bounded by the credit that the proxy gives
        self._attempts: dict[str, int] = {}  # of each item in these two
        self._proxy_lost = asyncio.Event()
        self._ready = asyncio.Event()  # there are results
        self._scored = 0

    async def on_start(self) -> None:
        self._pool.start(self.ctx.wait)
        self.ctx.at_end(self._pool.close)
        self.ctx.background(self._stay_offered(), "offer")
        self.ctx.background(self._report(), "results")

    # -- the proxy --

    async def _stay_offered(self) -> None:
        """Offer the workers; again to each new proxy, or if it forgot this host."""
        while True:
            self._proxy_lost.clear()
            self._epoch = ""  # messages on their way to this host are void from here on
            taken = await self._offer()
            self._epoch = taken.epoch
            self._pool.resize(self._most)  # as it was offered: another proxy may have wanted fewer
            self.ctx.watch(taken.proxy)
            if self._results:
                self._ready.set()
            while await self._still_offered():
                continue

    async def _offer(self) -> WorkersTaken:
        async with self.ctx.wait("a reward proxy", on=REWARD, deadline_s=PROXY_LATE_S, go_on=True):
            while True:
                ask = OfferWorkers(
                    host=self.ctx.name,
                    actor=self.ctx.address,
                    workers={self._stage: self._most},
                    running=dict(self._attempts),
                )
                try:
                    return await self.ctx.ask(REWARD, ask, deadline_s=OFFER_DEADLINE_S, expect=WorkersTaken)
                except Refused as refusal:
                    raise Fenced(str(refusal)) from refusal
                except AskFailed as problem:
                    self.ctx.log.info("waiting for the reward proxy: %s", problem)
                    await asyncio.sleep(RETRY_S)

    async def _still_offered(self) -> bool:
        """Wait a while, then ask the proxy; False at once if it has ended."""
        if await self.ctx.idle(self._proxy_lost, CHECK_S):
            return False
        ask = StillOffered(host=self.ctx.name, epoch=self._epoch)
        try:
            await self.ctx.ask(REWARD, ask, deadline_s=OFFER_DEADLINE_S, expect=Done)
        except Refused as refusal:
            self.ctx.log.info("%s", refusal)
            return False
        except AskFailed as problem:
            self.ctx.log.info("no reward proxy to ask: %s", problem)
        return True

    async def on_terminated(self, event: Terminated) -> None:
        self.ctx.log.info("the reward proxy #%d ended: %s", event.incarnation, event.cause)
        self._proxy_lost.set()

    # -- items --

    @handles(ScoreItems)
    async def score_items(self, message: ScoreItems) -> Done:
        if message.epoch != self._epoch:
            raise Refused(f"{self.ctx.name} offers its workers under epoch {self._epoch!r}")
        for item in message.items:
            if item.attempt <= self._attempts.get(item.id, -1):
                continue  # sent twice
            # The proxy has the result of the attempt before, although its answer may still be on its way.
            self._drop(item.id)
            self._attempts[item.id] = item.attempt
            self._running[item.id] = self.ctx.background(self._score(item), "score")
        return Done()

    @handles(ResizeWorkers)
    async def resize(self, message: ResizeWorkers) -> Done:
        if message.epoch != self._epoch:
            raise Refused(f"{self.ctx.name} offers its workers under epoch {self._epoch!r}")
        self._pool.resize(min(message.workers.get(self._stage, self._most), self._most))
        return Done()

    @handles(CancelItems)
    async def cancel_items(self, message: CancelItems) -> None:
        for item in message.items if message.epoch == self._epoch else ():
            self._drop(item)

    def _drop(self, item: str) -> None:
        if (task := self._running.pop(item, None)) is not None:
            task.cancel()
        self._results.pop(item, None)
        self._attempts.pop(item, None)

    async def _score(self, item: ItemToScore) -> None:
        verdict, took_s = await self._verdict(item)
        self._scored += 1
        self._running.pop(item.id, None)
        tests = verdict.tests or CaseTimes()
        self._results[item.id] = ItemResult(
            id=item.id,
            attempt=item.attempt,
            stage=item.stage,
            score=verdict.score,
            status=verdict.status,
            detail=verdict.detail,
            took_s=took_s,
            right_s=tests.right_s,
            cut=tests.cut,
        )
        self._ready.set()

    async def _verdict(self, item: ItemToScore) -> tuple[Verdict, float]:
        try:
            work = pipe.item(item.work[pipe.PREFIX.size :])
        except pipe.BadFrame as problem:
            return Verdict(None, VERIFIER_FAILED, str(problem)), 0.0
        if not isinstance(work, pipe.Scorable):
            return Verdict(None, VERIFIER_FAILED, f"{type(work).__name__} is nothing to score"), 0.0
        late_s = self._verdict_s * (1 + self._pool.queued // self._pool.workers)
        try:
            async with self.ctx.wait("a verdict", on=self.ctx.name, deadline_s=late_s, go_on=True):
                return await self._pool.scored(work)
        except Overloaded as full:
            return Verdict(None, OVERLOADED, str(full)), 0.0
        except PoolFailed as problem:
            self.ctx.crash(problem)  # its supervisor starts another pool, or gives up with the error
            raise

    async def _report(self) -> None:
        """Send results until they are received. One that is cancelled meanwhile is received in vain."""
        while True:
            self._ready.clear()
            await self.ctx.idle(self._ready)
            async with self.ctx.wait("results", on=REWARD, deadline_s=PROXY_LATE_S, go_on=True):
                while self._results and self._epoch:
                    await self._send(list(self._results.values())[:MOST_RESULTS])

    async def _send(self, part: list[ItemResult]) -> None:
        message = ItemsScored(host=self.ctx.name, epoch=self._epoch, results=part)
        try:
            await self.ctx.ask(REWARD, message, deadline_s=OFFER_DEADLINE_S, expect=Done)
        except AskFailed as problem:
            self.ctx.log.info("%d results not received yet: %s", len(part), problem)
            await asyncio.sleep(RETRY_S)
            return
        for result in part:
            if self._results.get(result.id) is result:
                self._drop(result.id)

    def summary(self) -> dict[str, str | int | float]:
        return {
            "workers": self._pool.alive,
            "items": len(self._running),
            "unsent_results": len(self._results),
            "scored": self._scored,
            "workers_lost": self._pool.deaths.total(),
        }
