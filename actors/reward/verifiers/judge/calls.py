"""`JudgeCalls`: the calls of one reward worker to the servers of a judge.

Joins the policies (rate limits, replicas, backoff) to the servers: a vote is called until it has a score, its
tries are used up, or its deadline passes. Does not own prompts, or what votes amount to (`verifier`).
"""

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import aiohttp

from gleaner.actors.reward.verifiers import http_calls
from gleaner.actors.reward.verifiers.http_calls import Unavailable
from gleaner.actors.reward.verifiers.judge import answer, wire
from gleaner.actors.reward.verifiers.judge.answer import NoScore
from gleaner.actors.reward.verifiers.judge.backoff import Backoff
from gleaner.actors.reward.verifiers.judge.prompt import JudgePrompt
from gleaner.actors.reward.verifiers.judge.rate_limits import RateLimits
from gleaner.actors.reward.verifiers.judge.replicas import Replicas
from gleaner.actors.reward.verifiers.judge.wire import Completion
from gleaner.configs.schema import Judge

Clock = Callable[[], float]


@dataclass(slots=True)
class Vote:
    """One vote and its course. text: the judge's last answer. failures: why calls gave no score."""

    score: float | None = None
    text: str = ""
    calls: int = 0
    waited_s: float = 0.0
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WorkerPart:
    """What one worker may use of the job's limits; 0 calls or tokens a minute: no limit."""

    calls: int
    calls_per_minute: float
    tokens_per_minute: float


def part_of(settings: Judge, workers: int) -> WorkerPart:
    """An equal part for each of these workers, at least one call at a time."""
    return WorkerPart(
        calls=max(settings.max_concurrent // workers, 1),
        calls_per_minute=settings.requests_per_minute / workers,
        tokens_per_minute=settings.tokens_per_minute / workers,
    )


class JudgeCalls:
    """See the module docstring. Make it and use it on one loop, and close it. clock: seconds."""

    def __init__(
        self, settings: Judge, part: WorkerPart, session: aiohttp.ClientSession, clock: Clock
    ) -> None:
        self._settings, self._session, self._clock = settings, session, clock
        self._replicas = Replicas([settings.url, *settings.replicas])
        self._backoff = Backoff(settings.attempts)
        self._limits = RateLimits(part.calls_per_minute, part.tokens_per_minute, clock())
        self._free = asyncio.Semaphore(part.calls)
        self._rng = random.Random()  # of jitter, which must differ between workers

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def reserve(self, prompts: Collection[JudgePrompt], by_s: float) -> float | None:
        """Wait until the first calls with these prompts may be made; for how long that was. None: that is not
        before by_s."""
        tokens = sum(map(self._tokens, prompts))
        wait_s = self._limits.reserve(len(prompts), tokens, self._clock(), by_s)
        if wait_s:
            await asyncio.sleep(wait_s)
        return wait_s

    async def vote(self, prompt_of: Callable[[int], JudgePrompt], vote: Vote, by_s: float) -> float:
        """The score of a vote, whose first call is reserved. prompt_of: the prompt after so many answers
        without a score. vote: takes the course. Raises Unavailable, NoScore, BadAnswer."""
        url, unread = "", 0
        last: Unavailable | NoScore = Unavailable("its servers take no calls before the deadline")
        while True:
            prompt = prompt_of(unread)
            url = self._replicas.pick(self._clock(), failed=url)
            if not await self._waited(url, prompt, vote, by_s):
                raise last
            try:
                return await self._score(url, prompt, vote)
            except NoScore as problem:
                last, url = problem, ""
                unread += 1
            except Unavailable as problem:
                last = problem
            vote.failures.append(str(last))

    async def _waited(self, url: str, prompt: JudgePrompt, vote: Vote, by_s: float) -> bool:
        """Wait until the next call may be made; False: it may not."""
        failed, now_s = len(vote.failures), self._clock()
        wait_s = self._backoff.wait_s(failed, self._replicas.closed_s(url, now_s), by_s - now_s, self._rng)
        if wait_s is None:
            return False
        if failed:
            limited_s = self._limits.reserve(1, self._tokens(prompt), now_s, by_s)
            if limited_s is None:
                return False
            wait_s = max(wait_s, limited_s)
        vote.waited_s += wait_s
        if wait_s:
            await asyncio.sleep(wait_s)
        return True

    async def _score(self, url: str, prompt: JudgePrompt, vote: Vote) -> float:
        completion = await self._hedged(url, prompt, vote)
        vote.text = completion.text
        if completion.cut:  # the score would be behind the cut; what looks like one is not the last word
            raise NoScore("it was cut: raise reward.judge.max_tokens")
        vote.score = answer.score_in(
            completion.text, prompt.nonce, self._settings.scale, anonymous=prompt.anonymous
        )
        return vote.score

    async def _hedged(self, url: str, prompt: JudgePrompt, vote: Vote) -> Completion:
        """The first answer of a call, and of a second one on a replica if the first takes `hedge_s`."""
        calls = [self._begun(url, prompt, vote)]
        try:
            if self._settings.hedge_s:
                done, _ = await asyncio.wait(calls, timeout=self._settings.hedge_s)
                if not done and (spare := self._spare(url, prompt)):
                    calls.append(self._begun(spare, prompt, vote))
            return await _first(calls)
        finally:
            for one in calls:
                one.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    def _spare(self, url: str, prompt: JudgePrompt) -> str | None:
        """The server of a hedge, if the limits allow one now."""
        now_s = self._clock()
        spare = self._replicas.spare(now_s, busy=url)
        if spare is None or self._free.locked():
            return None
        return None if self._limits.reserve(1, self._tokens(prompt), now_s, now_s) is None else spare

    def _begun(self, url: str, prompt: JudgePrompt, vote: Vote) -> "asyncio.Task[Completion]":
        """A call, which counts as open at once: the next pick is of another server."""
        self._replicas.opened(url)
        call = asyncio.create_task(self._call(url, prompt, vote))
        call.add_done_callback(lambda _: self._replicas.closed(url))
        return call

    async def _call(self, url: str, prompt: JudgePrompt, vote: Vote) -> Completion:
        async with self._free:
            vote.calls += 1
            try:
                text = await http_calls.sent(
                    self._session, "POST", wire.endpoint(url), wire.body(self._settings, prompt)
                )
            except Unavailable as problem:
                self._replicas.failed(url, self._clock(), problem.after_s)
                raise
            self._replicas.answered(url)
        completion = wire.read(text)
        if completion.tokens:
            self._limits.correct(completion.tokens - self._tokens(prompt), self._clock())
        return completion

    def _tokens(self, prompt: JudgePrompt) -> int:
        return prompt.tokens + self._settings.max_tokens


async def _first(calls: Sequence["asyncio.Task[Completion]"]) -> Completion:
    """The first answer; the last failure if there is none."""
    pending = list(calls)
    failure: Exception = RuntimeError("there are no calls")
    while pending:
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for ended in [one for one in pending if one.done()]:
            pending.remove(ended)
            try:
                return ended.result()
            except (Unavailable, NoScore) as problem:
                failure = problem
    raise failure
