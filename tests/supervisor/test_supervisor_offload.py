"""Blocking work of an actor: one thread per kind, in the order of its calls."""

import threading
from pathlib import Path

from gleaner.supervisor import Actor, Deferred, Message, handles
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
