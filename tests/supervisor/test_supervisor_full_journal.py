"""Actors whose journal is full: no new work, a reason, no loss, no busy loop."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gleaner.supervisor import (
    Actor,
    AskTimeout,
    Deferred,
    Done,
    JournalFull,
    Message,
    SqliteJournal,
    Supervisor,
    Suspended,
    child,
    handles,
    one_for_one,
)
from gleaner.supervisor.journal import outage as stand_in
from gleaner.supervisor.system_messages import ActorState
from gleaner.supervisor.testing import TestSystem

GRAINS = 400


class Grain(Message, frozen=True):
    number: int
    husk: bytes = bytes(500)


class HowMany(Message, frozen=True):
    pass


class Counted(Message, frozen=True):
    numbers: list[int]


class Silo(Actor):
    """Keeps every number that it acknowledged."""

    async def on_start(self) -> None:
        self.kept = [event.number async for event in self.ctx.journal.replay() if isinstance(event, Grain)]

    @handles(Grain)
    async def store(self, message: Grain) -> Done:
        self.kept.append(message.number)  # before its journal, as real actors do
        await self.ctx.journal.append(message)
        return Done()

    @handles(HowMany)
    async def count(self, message: HowMany) -> Counted:
        return Counted(numbers=self.kept)


class Disk:
    """The disk under the journals of a test system."""

    def __init__(self, system: TestSystem) -> None:
        store = system.system._journals
        assert isinstance(store, SqliteJournal)
        self._db: sqlite3.Connection = store._keeper._db  # type: ignore[attr-defined]

    def fill(self, spare_pages: int = 0) -> None:
        pages = self._db.execute("PRAGMA page_count").fetchone()[0]
        self._db.execute(f"PRAGMA max_page_count={pages + spare_pages}")

    def free(self) -> None:
        self._db.execute("PRAGMA max_page_count=1000000")


@pytest.fixture
async def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TestSystem]:
    monkeypatch.setattr("gleaner.supervisor.managed_child.LOOK_S", 0.05)
    async with TestSystem(tmp_path) as system:
        yield system


def shown(system: TestSystem, name: str) -> ActorState:
    return next(row for row in system.system.state().actors if row.name == name)


async def supervised(system: TestSystem) -> Supervisor:
    tree = Supervisor(system.system, one_for_one(child("silo", Silo)), on_failure=pytest.fail)
    await tree.start()
    return tree


async def until(system: TestSystem, name: str, state: str) -> None:
    async with asyncio.timeout(60.0):
        while shown(system, name).state != state:
            await asyncio.sleep(0.01)


async def test_full_disk_actor_refuses_with_reason_then_continues(
    system: TestSystem,
) -> None:
    assert stand_in.LOOK_S >= 0.5, "production checks the journal only rarely"
    disk = Disk(system)
    tree = await supervised(system)
    await system.ask("silo", Grain(number=0), Done)
    disk.fill(spare_pages=6)
    acknowledged = [0]
    with pytest.raises(Suspended, match="free space") as refusal:
        for number in range(1, GRAINS):
            await system.ask("silo", Grain(number=number), Done, deadline_s=0.3)
            acknowledged.append(number)
    assert "silo" in str(refusal.value)
    assert 1 < len(acknowledged) < GRAINS
    await until(system, "silo", "suspended")
    assert "database or disk is full" in shown(system, "silo").last_failure
    await asyncio.sleep(0.3)  # several checks of the journal
    with pytest.raises(Suspended, match="silo takes nothing for now: .*free space"):
        await system.ask("silo", HowMany(), Counted, deadline_s=0.3)
    assert shown(system, "silo").restarts == 0, "no restart was spent on it"

    asking = asyncio.ensure_future(system.ask("silo", Grain(number=10_000), Done, deadline_s=60.0))
    disk.free()
    assert await asking == Done(), "a waiting asker gets its reply"
    found = await system.ask("silo", HowMany(), Counted)
    assert found.numbers == [*acknowledged, 10_000], "refused numbers left no trace, accepted ones are there"
    assert shown(system, "silo").state == "running"
    assert shown(system, "silo").restarts == 0
    await tree.stop()


async def test_actor_started_on_full_disk_is_suspended_first(
    system: TestSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await supervised(system)).stop()
    store = system.system._journals
    assert isinstance(store, SqliteJournal)

    def full(*_: object) -> None:
        raise JournalFull("j.sqlite: database or disk is full: free space")

    with monkeypatch.context() as patched:
        patched.setattr(store._keeper, "claim", full)
        patched.setattr(store._keeper, "probe", full)
        tree = await supervised(system)
        assert shown(system, "silo").state == "suspended"
        with pytest.raises(Suspended, match="free space"):
            await system.ask("silo", HowMany(), Counted, deadline_s=0.2)
    await until(system, "silo", "running")
    await system.ask("silo", Grain(number=1), Done)
    await tree.stop()


async def test_supervisor_stops_a_suspended_actor(system: TestSystem) -> None:
    disk = Disk(system)
    tree = await supervised(system)
    disk.fill()
    with pytest.raises(Suspended):
        for number in range(GRAINS):
            await system.ask("silo", Grain(number=number), Done, deadline_s=0.3)
    await until(system, "silo", "suspended")
    await tree.stop()
    assert system.system.cell("silo") is None
    disk.free()
    await asyncio.sleep(0.2)
    assert system.system.cell("silo") is None


async def test_registry_on_full_disk_keeps_names_and_refuses_new(
    system: TestSystem,
) -> None:
    disk = Disk(system)
    async with TestSystem(system.directory, node="other", join=system) as other:
        other.spawn("old", Silo)
        assert (await system.system.resolve("old", 5.0)).name == "old"
        disk.fill()
        names = 0
        with pytest.raises(AskTimeout, match="the registry takes no new names: .*free space") as refusal:
            for names in range(GRAINS):
                name = f"{'n' * 200}-{names}"
                other.spawn(name, Silo)
                await system.system.resolve(name, 1.0)
        assert "no actor holds the name" in str(refusal.value)
        assert "takes no new names" in str(shown(system, "registry").figures["suspended"])
        await asyncio.sleep(system.system.limits.lease_s * 1.5)
        system.system.names.forget("old")
        assert (await system.system.resolve("old", 1.0)).name == "old", "it was renewed meanwhile"
        disk.free()
        assert (await system.system.resolve(f"{'n' * 200}-{names}", 5.0)).name
        assert "suspended" not in shown(system, "registry").figures


class Slow(Actor):
    """Takes nothing at first, and is slow afterwards."""

    def __init__(self) -> None:
        self.asked = 0

    @handles(HowMany)
    async def count(self, message: HowMany) -> Deferred:
        self.asked += 1
        if self.asked == 1:
            raise Suspended("no space: free some")
        return Deferred()


async def test_suspended_reason_is_raised_at_the_deadline_too(
    system: TestSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AskTimeout would be wrong here: a caller that waits for a suspended actor would give up."""
    monkeypatch.setattr("gleaner.supervisor.outbound_asks.SUSPENDED_RETRY_S", 0.02)
    slow = Slow()
    system.spawn("slow", lambda: slow)
    with pytest.raises(Suspended, match="free some"):
        await system.ask("slow", HowMany(), Counted, deadline_s=0.2)
    assert slow.asked == 2
    with pytest.raises(AskTimeout):
        await system.ask("slow", HowMany(), Counted, deadline_s=0.05)
