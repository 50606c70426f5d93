"""Gleaner's actors in the comparison, as a user would write them. What is measured is `on_gleaner`."""

import asyncio
import os
import time

from bench.runtime.asking import asks
from bench.runtime.task import Sink, payload
from supervisor import (
    Actor,
    Address,
    Intensity,
    Message,
    Terminated,
    handles,
)

MINUTE_S = 60.0
MANY_RESTARTS = Intensity(restarts=100, within_s=0.001)  # each crash of the measurement is a first one


class BenchPing(Message, frozen=True):
    """100 bytes that come back."""

    content: bytes


class BenchPong(Message, frozen=True):
    """The same bytes, from which life."""

    content: bytes
    incarnation: int = 0


class BenchTell(Message, frozen=True):
    """100 bytes that do not come back."""

    content: bytes


class BenchCounted(Message, frozen=True):
    """How many came? Answered after all that was told before."""


class BenchCount(Message, frozen=True):
    """How many came, and how many of them not in their turn."""

    count: int
    disordered: int


class BenchMeasureAsks(Message, frozen=True):
    """Ask `to` for `seconds`, `outstanding` at a time."""

    to: Address
    seconds: float
    warm_up_s: float
    outstanding: int = 1


class BenchAsked(Message, frozen=True):
    """Latencies in seconds as an array of doubles; `seconds` passed."""

    latencies: bytes
    seconds: float


class BenchMeasureTells(Message, frozen=True):
    """Tell `to` for `seconds`, then ask how many came."""

    to: Address
    seconds: float


class BenchTold(Message, frozen=True):
    """`sent` were told; `count` of them came within `seconds`."""

    sent: int
    count: int
    disordered: int
    seconds: float


class BenchCrash(Message, frozen=True):
    """Fail now; `process` takes the whole process along."""

    process: bool = False


class Echo(Actor):
    """Answers with what it got."""

    @handles(BenchPing)
    async def ping(self, message: BenchPing) -> BenchPong:
        """The same bytes."""
        return BenchPong(content=message.content, incarnation=self.ctx.incarnation)

    @handles(BenchCrash)
    async def crash(self, message: BenchCrash) -> None:
        """Fail."""
        if message.process:
            os._exit(1)
        raise RuntimeError("crashed for the measurement")


class Counter(Actor):
    """Counts what it is told."""

    async def on_start(self) -> None:
        """Nothing came yet."""
        self.sink = Sink()

    @handles(BenchTell)
    async def told(self, message: BenchTell) -> None:
        """One more."""
        self.sink.take(message.content)

    @handles(BenchCounted)
    async def counted(self, message: BenchCounted) -> BenchCount:
        """So many; the next count begins at zero."""
        count = BenchCount(count=self.sink.count, disordered=self.sink.disordered)
        self.sink = Sink()
        return count


class Asker(Actor):
    """Measures from inside an actor, as any actor would ask and tell."""

    @handles(BenchMeasureAsks)
    async def measure_asks(self, order: BenchMeasureAsks) -> BenchAsked:
        """Ask, `outstanding` at a time."""

        async def ask(content: bytes) -> bytes:
            ping = BenchPing(content=content)
            return (await self.ctx.ask(order.to, ping, deadline_s=MINUTE_S, expect=BenchPong)).content

        await asks(ask, order.warm_up_s, order.outstanding)
        latencies, seconds = await asks(ask, order.seconds, order.outstanding)
        return BenchAsked(latencies=latencies.tobytes(), seconds=seconds)

    @handles(BenchMeasureTells)
    async def measure_tells(self, order: BenchMeasureTells) -> BenchTold:
        """Tell as fast as `ctx.tell` takes it."""
        clock = time.perf_counter
        began = clock()
        until = began + order.seconds
        sent = 0
        while clock() < until:
            for _ in range(256):
                await self.ctx.tell(order.to, BenchTell(content=payload(sent)))
                sent += 1
        count = await self.ctx.ask(order.to, BenchCounted(), deadline_s=MINUTE_S, expect=BenchCount)
        seconds = clock() - began
        return BenchTold(sent=sent, count=count.count, disordered=count.disordered, seconds=seconds)


class Watcher(Actor):
    """Notes when it learns that what it watches is gone."""

    def __init__(self, watched: Address, gone: "asyncio.Future[tuple[float, str]]") -> None:
        self._watched = watched
        self._gone = gone

    async def on_start(self) -> None:
        """Watch."""
        self.ctx.watch(self._watched)

    async def on_terminated(self, event: Terminated) -> None:
        """Gone."""
        if not self._gone.done():
            self._gone.set_result((time.monotonic(), event.cause))
