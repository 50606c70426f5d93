"""Scoring: every finished request gets its verdict from the RewardProxy, and the first verdict counts.

Owns the requests that wait for a verdict. It asks until there is one: the proxy turns each failure of a
verifier into a verdict, so what is left to retry is the proxy's own absence."""

import asyncio
from collections.abc import Awaitable, Callable

from actors.reward.messages import Score, Verdict
from actors.rollout.books import Books
from actors.rollout.events import Scored
from actors.rollout.request_log import RequestLog, RequestState
from configs.schema import Reward
from supervisor import AskFailed, Context

REWARD = "reward/proxy"
AT_A_TIME = 32  # verdicts asked for at a time: a few for each reward worker
RETRY_S = 0.05
MAX_RETRY_S = 2.0
DEADLINE = "deadline"
"""Status of a response that ended because its time was up; it has the score of the text that there is."""


class Scoring:
    """See the module. `on_scored` is awaited with each verdict, in the order in which they come."""

    def __init__(
        self, ctx: Context, books: Books, limits: Reward, on_scored: Callable[[Scored], Awaitable[None]]
    ) -> None:
        self._ctx, self._books, self._limits, self._on_scored = ctx, books, limits, on_scored
        self._waiting: asyncio.Queue[str] = asyncio.Queue()  # bounded by the open requests

    def start(self) -> None:
        """Begin with what the last incarnation had left without a verdict."""
        for log in self._books.state.log.unscored():
            self.add(log.id)
        for _ in range(AT_A_TIME):
            self._ctx.background(self._run(), "scores")

    def add(self, request: str) -> None:
        """A request has finished."""
        self._waiting.put_nowait(request)

    async def _run(self) -> None:
        while True:
            request = await self._waiting.get()
            log = self._books.state.log.requests.get(request)
            if log is not None and log.score is None:
                await self._score(log)

    async def _score(self, log: RequestLog) -> None:
        if log.state is not RequestState.FINISHED:  # dropped while it waited for its turn
            return
        if log.due and not len(log):  # there is nothing to look at
            await self._on_scored(Scored(request=log.id, score=0.0, status=DEADLINE))
            return
        prompt = self._books.state.log.batches[log.batch].prompt(log.group)
        ask = Score(request=log.id, split=prompt.split, index=prompt.index, tokens=log.tokens_bytes())
        deadline_s = self._limits.verdict_s
        async with self._ctx.wait("a verdict", on=REWARD, deadline_s=2 * deadline_s, go_on=True):
            await self._ask_until_scored(log, ask, deadline_s)

    async def _ask_until_scored(self, log: RequestLog, ask: Score, deadline_s: float) -> None:
        pause_s = RETRY_S
        while log.id in self._books.state.log.requests and log.state is RequestState.FINISHED:
            try:
                verdict = await self._ctx.ask(
                    REWARD, ask, deadline_s=deadline_s, expect=Verdict, key=f"score/{log.id}"
                )
            except AskFailed as problem:
                self._ctx.log.warning("score of %s: %s", log.id, problem)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, MAX_RETRY_S)
                continue
            if log.state is not RequestState.FINISHED:  # dropped while it was asked for
                return
            status = DEADLINE if log.due else verdict.status
            await self._on_scored(Scored(request=log.id, score=verdict.score, status=status))
            return
