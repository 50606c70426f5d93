"""Blocking work of an actor: one thread per kind, in the order of its calls and of its lives."""

import asyncio
import threading
from pathlib import Path

from gleaner.supervisor import (
    Actor,
    Deferred,
    Message,
    Supervisor,
    WorkDeadlines,
    child,
    handles,
    one_for_one,
)
from gleaner.supervisor.testing import TestSystem


class Try(Message, frozen=True):
    """Do a piece of work on every thread but the blocked one."""


class Tried(Message, frozen=True):
    """The threads that did it, in their order."""

    threads: tuple[str, ...]


class Blocked(Actor):
    """One of its threads waits until the test ends it."""

    def __init__(self, go_on: threading.Event) -> None:
        self.go_on = go_on

    async def on_start(self) -> None:
        self.ctx.background(self._block(), "a durable write")

    async def _block(self) -> None:
        await self.ctx.offload_to("disk", self.go_on.wait, 60.0)

    @handles(Try)
    async def attempt(self, _message: Try) -> Deferred:
        deferred = Deferred()
        self.ctx.background(self._try(deferred), "the others")
        return deferred

    async def _try(self, deferred: Deferred) -> None:
        found = [await self.ctx.offload(_where), await self.ctx.offload_aside(_where)]
        found += [await self.ctx.offload_to("other", _where), await self.ctx.offload_to("other", _where)]
        deferred.answer(Tried(threads=tuple(str(ident) for ident in found)))


def _where() -> int:
    return threading.get_ident()


async def test_work_on_one_thread_waits_for_no_other(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        go_on = threading.Event()
        system.spawn("blocked", lambda: Blocked(go_on))
        try:
            tried = await system.ask("blocked", Try(), Tried, deadline_s=60.0)
        finally:
            go_on.set()
        assert len(set(tried.threads)) == 3
        assert tried.threads[2] == tried.threads[3], "a name is one thread"
        assert str(threading.get_ident()) not in tried.threads


class Sealing(Actor):
    """Its first life crashes while its thread writes; each life notes what it finds."""

    def __init__(self, go_on: threading.Event, written: list[str], found: asyncio.Queue[list[str]]) -> None:
        self._go_on, self._written, self._found = go_on, written, found

    async def on_start(self) -> None:
        await self.ctx.earlier_work_over(WorkDeadlines(60.0, 60.0))
        self._found.put_nowait([*self._written])
        if not self._written:
            self.ctx.background(self._fail(), "a defect")

    async def _fail(self) -> None:
        seal = asyncio.ensure_future(self.ctx.offload(self._seal))
        await asyncio.sleep(0.05)
        seal.cancel()
        raise RuntimeError("a defect beside the work")

    def _seal(self) -> None:
        self._go_on.wait(60.0)
        self._written.append("sealed")


async def test_next_life_waits_for_the_work_of_the_one_before(tmp_path: Path) -> None:
    go_on, written = threading.Event(), list[str]()
    found = asyncio.Queue[list[str]]()
    async with TestSystem(tmp_path) as test:
        tree = Supervisor(
            test.system,
            one_for_one(child("sealing", lambda: Sealing(go_on, written, found))),
            on_failure=print,
        )
        await tree.start()
        try:
            assert await found.get() == []
            await asyncio.sleep(0.3)
            assert found.empty(), "the work of the first life goes on"
            go_on.set()
            async with asyncio.timeout(30.0):
                assert await found.get() == ["sealed"]
        finally:
            go_on.set()
            await tree.stop()
