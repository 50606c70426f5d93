"""RewardHost: the reward workers of one host, for a proxy elsewhere.

Owns the pool of worker processes, the items that they have and the results that the proxy has not received.
It offers its workers to the proxy, and again to each new one: a proxy that restarts finds what runs, so
nothing is scored anew. It does not survive its own death: its items then run elsewhere.
"""

import asyncio
from functools import partial

from gleaner.actors.names import REWARD
from gleaner.actors.protocol.reward import (
    BlobPart,
    CancelItems,
    ItemResult,
    ItemsScored,
    ItemToScore,
    OfferWorkers,
    ReadBlob,
    ResizeWorkers,
    ScoreItems,
    StillOffered,
    WorkersTaken,
)
from gleaner.actors.reward.blob_transfer import BlobTransfer
from gleaner.actors.reward.case_limits import CaseTimes
from gleaner.actors.reward.pool import PoolFailed
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.stage_pools import StagePools
from gleaner.supervisor import Actor, AskFailed, Done, Fenced, Refused, Terminated, handles

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
        pools: not started yet; the actor's own.
    """

    def __init__(self, pools: StagePools) -> None:
        self._pools = pools
        self._epoch = ""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._results: dict[str, ItemResult] = {}  # bounded by the credit that the proxy gives
        self._attempts: dict[str, int] = {}  # of each item in these two
        self._stages: dict[str, str] = {}  # of the same, where items have several
        self._proxy_lost = asyncio.Event()
        self._ready = asyncio.Event()  # there are results
        self._scored = 0

    async def on_start(self) -> None:
        self._blobs = BlobTransfer(self.ctx, self._pools.blobs)
        self._pools.start(self.ctx.wait)
        self.ctx.at_end(self._pools.close)
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
            for stage, count in self._pools.most.items():  # as offered: another proxy may have wanted fewer
                self._pools.resize(stage, count)
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
                    workers=dict(self._pools.most),
                    running=dict(self._attempts),
                    stages=dict(self._stages),
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
            if self._pools.staged:
                self._stages[item.id] = item.stage
            self._running[item.id] = self.ctx.background(self._score(item), "score")
        return Done()

    @handles(ResizeWorkers)
    async def resize(self, message: ResizeWorkers) -> Done:
        if message.epoch != self._epoch:
            raise Refused(f"{self.ctx.name} offers its workers under epoch {self._epoch!r}")
        for stage, most in self._pools.most.items():
            self._pools.resize(stage, message.workers.get(stage, most))
        return Done()

    @handles(ReadBlob)
    async def read_blob(self, message: ReadBlob) -> BlobPart:
        return await self._blobs.part(message)

    @handles(CancelItems)
    async def cancel_items(self, message: CancelItems) -> None:
        for item in message.items if message.epoch == self._epoch else ():
            newest = message.attempts.get(item)
            if newest is None or self._attempts.get(item, -1) <= newest:
                self._drop(item)

    def _drop(self, item: str) -> None:
        if (task := self._running.pop(item, None)) is not None:
            task.cancel()
        self._results.pop(item, None)
        self._attempts.pop(item, None)
        self._stages.pop(item, None)

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
            carried=verdict.carried,
        )
        self._ready.set()

    async def _verdict(self, item: ItemToScore) -> tuple[Verdict, float]:
        fetch = partial(self._blobs.fetch, item.made_on)
        try:
            return await self._pools.verdict(self.ctx, item.stage, item.work, item.carried, fetch)
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
            "workers": self._pools.alive,
            "items": len(self._running),
            "unsent_results": len(self._results),
            "scored": self._scored,
            "workers_lost": self._pools.deaths.total(),
            "workers_cancelled": self._pools.cancelled,
            **({"blobs_fetched": self._blobs.fetched} if self._pools.staged else {}),
        }
