"""RewardService: the actor behind the HTTP server of a reward service; asks RewardProxy.

Owns the ids of items, their batches, and what follows when a caller leaves: its item is cancelled. A verdict
of ours is an `Outage`, never a score. The HTTP server is an adapter behind `HttpEntry`.
"""

import asyncio
from collections.abc import Callable

from gleaner.actors.gateway.gateway import HttpEntry
from gleaner.actors.names import REWARD
from gleaner.actors.protocol.reward import BatchEnded, CancelScores, ScoreText, Verdict
from gleaner.actors.reward.verdicts import OURS, OVERLOADED
from gleaner.actors.reward_service.asking import Outage, QueueFull, Scored, Scoring, ScoringAsk
from gleaner.actors.reward_service.client_batches import ClientBatches
from gleaner.actors.reward_service.given_problems import packed
from gleaner.supervisor import Actor, AskFailed, AskTimeout, Message, Overloaded

PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Seconds before an item is sent again that was not taken."""
MakeEntry = Callable[[Scoring], HttpEntry]
"""An HTTP server in front of `Scoring`, closed when created."""


class RewardService(Actor):
    """See the module. make_entry: the HTTP server."""

    def __init__(self, make_entry: MakeEntry) -> None:
        self._make_entry = make_entry
        self._batches = ClientBatches()
        self._asked = self._open = self._cancelled = 0
        self._url = ""

    async def on_start(self) -> None:
        entry = self._make_entry(self)
        self.ctx.at_end(entry.close)
        self._url = await entry.start()
        self.ctx.log.info("scores at %s", self._url)

    async def score(self, ask: ScoringAsk) -> Scored:
        """See `Scoring`."""
        self._asked += 1
        request = f"{self.ctx.incarnation}-{self._asked}"
        batch = self._batches.arrive(ask.batch)
        message = ScoreText(
            request=request, task=ask.task, entry=packed(ask.entry), response=ask.response, batch=batch
        )
        self._open += 1
        verdict: Verdict | None = None
        full = False
        try:
            verdict = await self._verdict(message, ask.deadline_s)
        except Overloaded as problem:
            full = True
            raise QueueFull(str(problem)) from problem
        except AskTimeout as problem:
            raise Outage(f"no verdict within {ask.deadline_s:g} s") from problem
        except AskFailed as problem:
            raise Outage(str(problem)) from problem
        finally:
            self._open -= 1
            if verdict is None and not full:
                self._cancelled += 1
                self._send(CancelScores(requests=[request]))
            if self._batches.left(batch):
                self._send(BatchEnded(batch=batch))
        return _scored(verdict)

    async def _verdict(self, message: ScoreText, deadline_s: float) -> Verdict:
        """The proxy's answer. A full mailbox is empty again in milliseconds, so many items of one request may
        come at once; a full queue is not. Raises AskFailed."""
        for pause_s in PAUSES_S:
            try:
                return await self.ctx.ask(REWARD, message, deadline_s=deadline_s, expect=Verdict)
            except Overloaded:
                await asyncio.sleep(pause_s)
        return await self.ctx.ask(REWARD, message, deadline_s=deadline_s, expect=Verdict)

    def _send(self, message: Message) -> None:
        """Without waiting: a lost one costs an item that is scored in vain."""
        self.ctx.background(self._deliver(message), "end of an item")

    async def _deliver(self, message: Message) -> None:
        await self.ctx.tell(REWARD, message)

    def summary(self) -> dict[str, str | int | float]:
        return {
            "url": self._url,
            "items": self._open,
            "batches": len(self._batches),
            "scored": self._asked - self._open,
            "cancelled": self._cancelled,
        }


def _scored(verdict: Verdict) -> Scored:
    """The score of a verdict. Raises Outage for one of ours, QueueFull for an overload."""
    if verdict.status == OVERLOADED:
        raise QueueFull(verdict.detail or verdict.status)
    if verdict.status in OURS or verdict.score is None:
        raise Outage(f"{verdict.status}: {verdict.detail}" if verdict.detail else verdict.status)
    return Scored(verdict.score, verdict.status, verdict.detail)
