"""Steady load of requests, through a cluster's manager or straight from a server.

It records the tokens. As soon as one request ends, the next begins.
"""

import asyncio
import time
from array import array
from dataclasses import dataclass

import numpy as np

from bench.weights.pause.timeline import Timeline
from gleaner.actors.engine.servers.port import Ask
from gleaner.actors.engine.servers.sglang import SglangWire
from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.requests import Cancel, Generate, Generated, Progress
from gleaner.supervisor import Actor, ActorSystem, Message, handles

FOLLOWER = "bench/load"
DEADLINE_S = 900.0


@dataclass(frozen=True, slots=True)
class Load:
    """`together` requests at any time, each with a prompt and a response of so many tokens."""

    together: int
    prompt: int
    response: int

    def tokens(self, number: int, vocabulary: int) -> "array[int]":
        """The prompt of a request: no two alike."""
        drawn = np.random.default_rng(number).integers(1, vocabulary, self.prompt)
        return array("I", drawn.tolist())

    def length(self, number: int) -> int:
        """Response length of a request, from 1 on: the first ones are shorter, so that they end apart."""
        return self.response if number > self.together else max(1, self.response * number // self.together)


class Followed(Actor):
    """Receives tokens while they are generated."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    @handles(Progress)
    async def progress(self, message: Progress) -> None:
        """Tokens arrived, and are in the journal."""
        for item in message.items:
            self._timeline.add(time.monotonic(), item.id, len(item.tokens) // 4, str(item.version))


class _Steady:
    """`together` requests at any time."""

    def __init__(self, load: Load, vocabulary: int) -> None:
        self.timeline = Timeline()
        self._load, self._vocabulary = load, vocabulary
        self._tasks: list[asyncio.Task[None]] = []
        self._number = 0

    def begin(self) -> None:
        """Start."""
        self._tasks = [asyncio.create_task(self._go()) for _ in range(self._load.together)]

    def look(self) -> None:
        """Raises the failure of a request."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def end(self) -> None:
        """Stop; requests under way are dropped."""
        self.look()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _go(self) -> None:
        while True:
            self._number += 1
            await self._one(self._number, self._load.tokens(self._number, self._vocabulary))

    async def _one(self, number: int, prompt: "array[int]") -> None:
        raise NotImplementedError


class ThroughManager(_Steady):
    """The load of a user of a cluster: each request uses the newest weights."""

    def __init__(self, system: ActorSystem, load: Load, vocabulary: int) -> None:
        super().__init__(load, vocabulary)
        self._system = system
        system.spawn(FOLLOWER, lambda: Followed(self.timeline))

    async def end(self) -> None:
        """See `_Steady`."""
        open_ones = Cancel(ids=[f"load-{number + 1}" for number in range(self._number)])
        await super().end()
        await self._system.tell(MANAGER, open_ones)

    async def _one(self, number: int, prompt: "array[int]") -> None:
        ask = Generate(
            id=f"load-{number}",
            prompt=prompt.tobytes(),
            max_new_tokens=self._load.length(number),
            seed=number,
            wait_s=DEADLINE_S,
            deadline_s=DEADLINE_S,
            follower=FOLLOWER,
        )
        answer = await self._system.ask(MANAGER, ask, deadline_s=2 * DEADLINE_S, expect=Message)
        if not isinstance(answer, Generated):
            raise RuntimeError(f"request {number} was answered {answer}")


class ToServer(_Steady):
    """The load of a user of a server without a cluster."""

    def __init__(self, wire: SglangWire, load: Load, vocabulary: int) -> None:
        super().__init__(load, vocabulary)
        self._wire = wire

    async def _one(self, number: int, prompt: "array[int]") -> None:
        ask = Ask(f"load-{number}-{time.monotonic_ns()}", prompt, self._load.length(number), 1.0, number)
        async for chunk in self._wire.stream(ask):
            if chunk.tokens:
                self.timeline.add(time.monotonic(), ask.rid, len(chunk.tokens), chunk.version)
