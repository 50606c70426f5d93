"""Gleaner's actors in the comparison, written as by a user; `on_gleaner` measures."""

import asyncio
import os
import time

from bench.runtime.ask_load import asks
from bench.runtime.task import Effort, Sink, payload
from gleaner.supervisor import (
    Actor,
    Address,
    Message,
    Overloaded,
    Terminated,
    handles,
)

MINUTE_S = 60.0
PATIENCE_S = 5.0  # for the last one-way messages; later ones are lost


class BenchPing(Message, frozen=True):
    """100 bytes that are sent back."""

    content: bytes


class BenchPong(Message, frozen=True):
    """The same bytes, with the number of the life."""

    content: bytes
    incarnation: int = 0


class BenchTell(Message, frozen=True):
    """100 bytes that are not sent back."""

    content: bytes


class BenchCounted(Message, frozen=True):
    """Asks for the number of received one-way messages. `over`: start a new count."""

    over: bool = False


class BenchCount(Message, frozen=True):
    """Number of received one-way messages, and how many of them were out of order."""

    count: int
    disordered: int


class BenchMeasureAsks(Message, frozen=True):
    """Ask `to` for `seconds`, `outstanding` at a time."""

    to: Address
    seconds: float
    warm_up_s: float
    outstanding: int = 1


class BenchAsked(Message, frozen=True):
    """Latencies in seconds as an array of doubles; see `task.Asked`."""

    latencies: bytes
    seconds: float
    cpu_s: float


class BenchMeasureTells(Message, frozen=True):
    """Send one-way messages to `to` for `seconds`, then ask how many arrived."""

    to: Address
    seconds: float


class BenchTold(Message, frozen=True):
    """See `task.Told`."""

    sent: int
    came: int
    disordered: int
    seconds: float
    cpu_s: float


class BenchCrash(Message, frozen=True):
    """Fail now; `process` takes the whole process along."""

    process: bool = False


class Echo(Actor):
    """Answers with the received bytes."""

    @handles(BenchPing)
    async def ping(self, message: BenchPing) -> BenchPong:
        """Send the same bytes back."""
        return BenchPong(content=message.content, incarnation=self.ctx.incarnation)

    @handles(BenchCrash)
    async def crash(self, message: BenchCrash) -> None:
        """Fail."""
        if message.process:
            os._exit(1)
        raise RuntimeError("crashed for the measurement")


class Counter(Actor):
    """Counts one-way messages."""

    async def on_start(self) -> None:
        """Reset the counts."""
        self.sink = Sink()

    @handles(BenchTell)
    async def told(self, message: BenchTell) -> None:
        """One more."""
        self.sink.take(message.content)

    @handles(BenchCounted)
    async def counted(self, message: BenchCounted) -> BenchCount:
        """Return the counts."""
        count = BenchCount(count=self.sink.count, disordered=self.sink.disordered)
        if message.over:
            self.sink = Sink()
        return count


class Asker(Actor):
    """Measures from inside an actor, with the asks and one-way messages of any actor."""

    @handles(BenchMeasureAsks)
    async def measure_asks(self, order: BenchMeasureAsks) -> BenchAsked:
        """Ask, `outstanding` at a time."""

        async def ask(content: bytes) -> bytes:
            ping = BenchPing(content=content)
            return (await self.ctx.ask(order.to, ping, deadline_s=MINUTE_S, expect=BenchPong)).content

        await asks(ask, order.warm_up_s, order.outstanding)
        asked = await asks(ask, order.seconds, order.outstanding)
        return BenchAsked(latencies=asked.latencies.tobytes(), seconds=asked.seconds, cpu_s=asked.cpu_s)

    @handles(BenchMeasureTells)
    async def measure_tells(self, order: BenchMeasureTells) -> BenchTold:
        """Send one-way messages as fast as `ctx.tell` accepts them."""
        clock, effort = time.perf_counter, Effort()
        began = clock()
        until = began + order.seconds
        sent = 0
        while clock() < until:
            for _ in range(256):
                await self.ctx.tell(order.to, BenchTell(content=payload(sent)))
                sent += 1
        count, patience = 0, clock() + PATIENCE_S
        while count < sent and clock() < patience:
            count = (await self._count(order.to, over=False)).count
        seconds = clock() - began
        cpu_s = effort.spent_s()
        last = await self._count(order.to, over=True)
        return BenchTold(sent=sent, came=last.count, disordered=last.disordered, seconds=seconds, cpu_s=cpu_s)

    async def _count(self, counter: Address, *, over: bool) -> BenchCount:
        """A receiver that is behind refuses an ask at once: ask again."""
        while True:
            try:
                ask = BenchCounted(over=over)
                return await self.ctx.ask(counter, ask, deadline_s=MINUTE_S, expect=BenchCount)
            except Overloaded:
                await asyncio.sleep(0.002)


class Watcher(Actor):
    """Records when it is notified that the watched actor is gone."""

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
