"""RewardService: the actor behind the HTTP server of a reward service; asks RewardProxy.

Owns the ids of items, their batches, and what follows when a caller leaves: its item is cancelled. A verdict
of ours is an `Outage`, never a score. The HTTP server is an adapter behind `HttpEntry`.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from gleaner.actors.gateway.gateway import HttpEntry
from gleaner.actors.names import REWARD
from gleaner.actors.protocol.reward import (
    BatchEnded,
    CancelScores,
    CodeRan,
    RewardHint,
    RewardState,
    RewardStatus,
    RunCode,
    ScoreText,
    Verdict,
)
from gleaner.actors.reward.verdicts import OURS, OVERLOADED
from gleaner.actors.reward_service.asking import Outage, QueueFull, RunAsk, Scored, Scoring, ScoringAsk
from gleaner.actors.reward_service.client_batches import ClientBatches, named
from gleaner.actors.reward_service.given_problems import packed
from gleaner.supervisor import Actor, AskFailed, AskTimeout, Message, Overloaded

PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Seconds before an item is sent again that was not taken."""
STATUS_DEADLINE_S = 5.0
Answer = TypeVar("Answer", Verdict, CodeRan)
MakeEntry = Callable[[Scoring], HttpEntry]
"""An HTTP server in front of `Scoring`, closed when created."""


class RewardService(Actor):
    """See the module. make_entry: the HTTP server. deadline_s: for the output of a program."""

    def __init__(self, make_entry: MakeEntry, deadline_s: float = 600.0) -> None:
        self._make_entry, self._deadline_s = make_entry, deadline_s
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
        entry = packed(ask.entry)
        batch = self._batches.arrive(ask.batch, named(ask.job, ask.named), self.ctx.now())
        message = ScoreText(
            request=self._new_request(),
            task=ask.task,
            entry=entry,
            response=ask.response,
            batch=batch.name,
            job=ask.job,
        )
        try:
            return _scored(await self._answer(message, ask.deadline_s, Verdict))
        finally:
            if self._batches.left(batch):
                self._send(BatchEnded(batch=batch.name))

    async def announce(self, job: str, batch: str, expected: int, kind: str = "") -> str:
        """See `Scoring`."""
        name, now_s = named(job, batch), self.ctx.now()
        for idle in self._batches.forget_idle(now_s):
            self._send(BatchEnded(batch=idle))
        self._batches.announce(job, name, now_s)
        await self.ctx.tell(REWARD, RewardHint(batch=name, items=expected, kind=kind))
        return name

    async def end(self, job: str, batch: str) -> str:
        """See `Scoring`. The proxy may have it of an earlier life of this actor: all ends are sent."""
        name = named(job, batch)
        self._batches.end(name)
        await self.ctx.tell(REWARD, BatchEnded(batch=name))
        return name

    async def run(self, ask: RunAsk) -> CodeRan:
        """See `Scoring`."""
        message = RunCode(
            request=self._new_request(),
            language=ask.language,
            code=ask.code,
            stdin=ask.stdin,
            run_s=ask.run_s,
            compile_s=ask.compile_s,
        )
        return await self._answer(message, self._deadline_s, CodeRan)

    async def state(self, request: str = "") -> RewardState:
        """See `Scoring`."""
        try:
            return await self.ctx.ask(
                REWARD, RewardStatus(request=request), deadline_s=STATUS_DEADLINE_S, expect=RewardState
            )
        except AskFailed as problem:
            raise Outage(str(problem)) from problem

    def _new_request(self) -> str:
        self._asked += 1
        return f"{self.ctx.incarnation}-{self._asked}"

    async def _answer(self, message: ScoreText | RunCode, deadline_s: float, kind: type[Answer]) -> Answer:
        """The proxy's answer; the item is cancelled where there is none. Raises Outage, QueueFull."""
        self._open += 1
        ended = False  # the proxy has no item of it
        try:
            answer = await self._taken(message, deadline_s, kind)
            ended = True
            return answer
        except Overloaded as problem:
            ended = True
            raise QueueFull(str(problem)) from problem
        except AskTimeout as problem:
            raise Outage(f"no answer within {deadline_s:g} s") from problem
        except AskFailed as problem:
            raise Outage(str(problem)) from problem
        finally:
            self._open -= 1
            if not ended:
                self._cancelled += 1
                self._send(CancelScores(requests=[message.request]))

    async def _taken(self, message: ScoreText | RunCode, deadline_s: float, kind: type[Answer]) -> Answer:
        """The proxy's answer. A full mailbox is empty again in milliseconds, so many items of one request may
        come at once; a full queue is not. Raises AskFailed."""
        for pause_s in PAUSES_S:
            try:
                return await self.ctx.ask(REWARD, message, deadline_s=deadline_s, expect=kind)
            except Overloaded:
                await asyncio.sleep(pause_s)
        return await self.ctx.ask(REWARD, message, deadline_s=deadline_s, expect=kind)

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
