"""Links between actors: linked actors end together, in one process or two."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from gleaner.supervisor import Actor, Address, Crashed, Done, Message, Terminated, handles
from gleaner.supervisor.testing import TestSystem


class Bind(Message, frozen=True):
    to: Address
    loose: bool = False


class Blast(Message, frozen=True):
    pass


class Bound(Actor):
    """Links itself on request, and fails on request."""

    @handles(Bind)
    async def bind(self, message: Bind) -> Done:
        if message.loose:
            self.ctx.unlink(message.to)
        else:
            self.ctx.link(message.to)
        return Done()

    @handles(Blast)
    async def blast(self, message: Blast) -> None:
        raise RuntimeError("blast")


class Trapper(Bound):
    trap_exits = True
    reports: list[Terminated]

    async def on_terminated(self, event: Terminated) -> None:
        self.reports.append(event)


async def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def pair(tmp_path: Path, across: bool):  # type: ignore[no-untyped-def]
    """Two systems, or the same one twice unless `across`."""
    async with TestSystem(tmp_path) as here:
        if not across:
            yield here, here
            return
        async with TestSystem(tmp_path, node="far", join=here) as far:
            yield here, far


@pytest.mark.parametrize("across", [False, True], ids=["in one process", "across two"])
@pytest.mark.parametrize("fails", ["a", "b"])
async def test_abnormal_end_ends_the_linked_actor_too(tmp_path: Path, across: bool, fails: str) -> None:
    async with pair(tmp_path, across) as (here, far):
        ends: dict[str, str] = {}
        here.system.spawn("a", Bound, lambda exit_: ends.update(a=exit_.cause))
        there = far.system.spawn("b", Bound, lambda exit_: ends.update(b=exit_.cause)).address
        await here.ask("a", Bind(there), Done)
        await until(lambda: here.system.linking.count() and far.system.linking.count())
        with pytest.raises(Crashed):
            await (here if fails == "a" else far).ask(fails, Blast(), Done)
        await until(lambda: len(ends) == 2)
        assert ends.pop(fails) == "crashed: RuntimeError: blast"
        (other,) = ends.values()
        assert other.startswith(f"crashed: LinkedExit: linked to {fails}#")
        assert other.endswith("crashed: RuntimeError: blast")


@pytest.mark.parametrize("across", [False, True], ids=["in one process", "across two"])
async def test_actor_that_traps_exits_is_notified_instead(tmp_path: Path, across: bool) -> None:
    Trapper.reports = []
    async with pair(tmp_path, across) as (here, far):
        here.spawn("a", Trapper)
        there = far.spawn("b", Bound)
        await here.ask("a", Bind(there), Done)
        await until(lambda: here.system.linking.count() and far.system.linking.count())
        far.kill("b")
        await until(lambda: Trapper.reports)
        assert [(event.name, event.incarnation) for event in Trapper.reports] == [("b", there.incarnation)]
        assert here.system.cell("a") is not None


async def test_ordered_stop_and_removed_link_spread_nothing(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        test.spawn("a", Bound)
        for name in ("stopped", "undone"):
            there = test.spawn(name, Bound)
            await test.ask("a", Bind(there), Done)
        await test.ask("a", Bind(there, loose=True), Done)
        stopped = test.system.cell("stopped")
        assert stopped is not None
        await stopped.stop(1.0)
        test.kill("undone")
        await asyncio.sleep(0.02)
        assert test.system.cell("a") is not None
        assert test.system.linking.count() == 0


async def test_linking_to_an_ended_actor_is_an_end(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        ends: list[str] = []
        test.system.spawn("a", Bound, lambda exit_: ends.append(exit_.cause))
        gone = test.spawn("b", Bound)
        test.kill("b")
        await test.tell("a", Bind(gone))
        await until(lambda: ends)
        assert ends[0].endswith(": not alive")


async def test_process_death_ends_actors_linked_to_its_actors(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as here:
        ends: list[str] = []
        here.system.spawn("a", Bound, lambda exit_: ends.append(exit_.cause))
        far = TestSystem(tmp_path, node="far", join=here)
        async with far:
            there = far.spawn("b", Bound)
            await here.ask("a", Bind(there), Done)
            await until(lambda: here.system.linking.count() and far.system.linking.count())
            await far.system.wire.close()  # as a kill does
            await until(lambda: ends)
        assert ends[0].startswith("crashed: LinkedExit: linked to b#")
