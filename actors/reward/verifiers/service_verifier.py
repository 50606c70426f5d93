"""`ServiceVerifier`: base of verifiers that ask a service over HTTP for each score.

Owns the session in a loop of the worker's own, the number of calls at a time, and the waits between tries.
Runs in the reward worker, without a sandbox: nothing of a response is read here.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import aiohttp

from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers import http_calls
from gleaner.actors.reward.verifiers.http_calls import Unavailable

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0
"""Between two tries of one call: twice as long each time, and up to as much again by chance."""

_T = TypeVar("_T")


class ServiceVerifier(ABC):
    """A `Verifier`. most: calls at a time. rng: of the waits between tries."""

    def __init__(self, most: int, rng: random.Random | None) -> None:
        self._most, self._rng = most, rng or random.Random()
        self._runner: asyncio.Runner | None = None
        self.session: aiohttp.ClientSession | None = None

    @abstractmethod
    def headers(self) -> Mapping[str, str]:
        """Of each call. Raises `BadVerifier`."""

    @abstractmethod
    async def judged(self, entry: Entry, response: str) -> Judgement:
        """The score of one response, within a deadline. A failure of the service is a status of ours."""

    def open(self) -> None:
        """Read the key; the service is called by the first score. Raises `BadVerifier`."""
        headers = self.headers()
        self.close()
        self._runner = asyncio.Runner()
        self.session = self._runner.run(http_calls.session(headers, self._most))

    def close(self) -> None:
        """Close the connections."""
        if self._runner is not None:
            if self.session is not None:
                self._runner.run(self.session.close())
            self._runner.close()
        self._runner = self.session = None

    def check(self, entry: Entry) -> str:
        """See `Verifier`: any problem will do."""
        return ""

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        """See `Verifier`: so many calls at a time, each response within its deadline."""
        if self._runner is None:
            self.open()
        assert self._runner is not None
        return self._runner.run(self._all(items))

    async def _all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        free = asyncio.Semaphore(self._most)

        async def one(entry: Entry, response: str) -> Judgement:
            async with free:
                return await self.judged(entry, response)

        return await asyncio.gather(*(one(entry, response) for entry, response in items))

    async def tried(self, ask: Callable[[], Awaitable[_T]], failures: list[str], most: int = 0) -> _T:
        """See `tried`, the function."""
        return await tried(ask, failures, self._rng, most)


async def tried(
    ask: Callable[[], Awaitable[_T]], failures: list[str], rng: random.Random, most: int = 0
) -> _T:
    """The answer of a call, tried again while the service is unavailable. failures: takes why each try
    failed. most: tries; 0: until the caller's deadline. Raises Unavailable, and what the call raises."""
    wait_s = FIRST_WAIT_S
    while True:
        try:
            return await ask()
        except Unavailable as problem:
            failures.append(str(problem))
            if len(failures) == most:
                raise
            await asyncio.sleep(max(problem.after_s, wait_s * (1 + rng.random())))
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
