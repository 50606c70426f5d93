"""Gleaner's actors in the storm: all ask all at random, and answer meanwhile."""

import random
from functools import partial
from pathlib import Path

from bench.runtime.ask_load import Ask, ask_around, drained
from bench.runtime.gleaner_cast import MINUTE_S, BenchPing, BenchPong
from bench.runtime.task import Storm
from gleaner.supervisor import Actor, Address, Done, Message, handles

PATIENCE_S = 30.0  # of one ask; without an answer by then it is lost


class BenchMeet(Message, frozen=True):
    """Store these addresses, once for all actors of the process."""

    names: list[str]


class BenchStorm(Message, frozen=True):
    """Ask these at random, from `begin_s` until `until_s` on the machine's monotonic clock."""

    names: list[str]
    begin_s: float
    until_s: float


class BenchStormOver(Message, frozen=True):
    """Answered once no ask is outstanding in this process and its counts are saved."""


class StormActor(Actor):
    """Asks the others at random, one at a time, and answers them meanwhile."""

    def __init__(self, storm: Storm) -> None:
        self._storm = storm

    @handles(BenchPing)
    async def ping(self, message: BenchPing) -> BenchPong:
        """The same bytes."""
        return BenchPong(content=message.content)

    @handles(BenchStorm)
    async def begin(self, order: BenchStorm) -> None:
        """Ask beside the handlers."""
        everybody = [await self.ctx.resolve(name, MINUTE_S) for name in order.names]
        self.ctx.background(self._ask_around(everybody, order), "storm")

    async def _ask_around(self, everybody: list[Address], order: BenchStorm) -> None:
        def pick(rng: random.Random) -> Ask:
            return partial(self._ask, rng.choice(everybody))

        seed = self.ctx.rng.getrandbits(32)
        await ask_around(self._storm, pick, seed, order.begin_s, order.until_s)

    async def _ask(self, other: Address, content: bytes) -> bytes:
        ping = BenchPing(content=content)
        return (await self.ctx.ask(other, ping, deadline_s=PATIENCE_S, expect=BenchPong)).content


class StormScribe(Actor):
    """Saves the counts of its process's storm actors."""

    def __init__(self, storm: Storm, scratch: Path) -> None:
        self._storm = storm
        self._scratch = scratch

    @handles(BenchMeet)
    async def meet(self, message: BenchMeet) -> Done:
        """Store the addresses for the process."""
        for name in message.names:
            await self.ctx.resolve(name, MINUTE_S)
        return Done()

    @handles(BenchStormOver)
    async def over(self, message: BenchStormOver) -> Done:
        """Wait for the last answers, then save."""
        await drained(self._storm)
        self._storm.save(self._scratch, self.ctx.name)
        return Done()
