"""Mailbox policies: messages that wait for an actor during a restart."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gleaner.supervisor import (
    Actor,
    Address,
    Crashed,
    Done,
    Intensity,
    Message,
    Overloaded,
    Supervisor,
    Unreachable,
    child,
    handles,
    one_for_all,
    one_for_one,
)
from gleaner.supervisor.testing import TEST_LIMITS, TestSystem

QUICK = Intensity(restarts=5, within_s=30.0, backoff_s=0.05)


class Gulp(Message, frozen=True):
    number: int
    poison: bool = False


class Gulped(Message, frozen=True):
    number: int
    life: int


class Drinker(Actor):
    """Handles nothing until `gate` is set; records each handled message with its life."""

    lives = 0
    seen: list[tuple[int, int]]
    gate: asyncio.Event
    refuses_starts = 0

    async def on_start(self) -> None:
        if type(self).lives and type(self).refuses_starts:
            type(self).refuses_starts -= 1
            raise OSError("not yet")
        type(self).lives += 1
        self._life = type(self).lives

    @handles(Gulp)
    async def gulp(self, message: Gulp) -> Gulped:
        await self.gate.wait()
        if message.poison:
            raise RuntimeError("poisoned")
        self.seen.append((message.number, self._life))
        return Gulped(message.number, self._life)


@pytest.fixture(autouse=True)
def fresh() -> None:
    Drinker.lives = Drinker.refuses_starts = 0
    Drinker.seen = []
    Drinker.gate = asyncio.Event()


async def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)


async def started(test: TestSystem, mailbox: str = "keep", restart: str = "permanent") -> Supervisor:
    spec = one_for_one(child("it", Drinker, mailbox=mailbox, restart=restart), intensity=QUICK)
    tree = Supervisor(test.system, spec, on_failure=lambda problem: None)
    await tree.start()
    return tree


def waiting_for(test: TestSystem) -> int:
    cell = test.system.cell("it")
    return len(cell.mailbox) if cell is not None else 0


def address_of(test: TestSystem) -> Address:
    cell = test.system.cell("it")
    assert cell is not None
    return cell.address


async def test_waiting_messages_pass_to_next_life_in_order(
    tmp_path: Path,
) -> None:
    async with TestSystem(tmp_path) as test:
        tree = await started(test)
        to = address_of(test)
        poisoned = asyncio.create_task(test.ask(to, Gulp(0, poison=True), Gulped))
        await asyncio.sleep(0)
        for number in (1, 2, 3):
            await test.tell(to, Gulp(number))
        asked = asyncio.create_task(test.ask(to, Gulp(4), Gulped))
        await asyncio.sleep(0)
        Drinker.gate.set()
        with pytest.raises(Crashed, match="poisoned"):
            await poisoned
        assert await asked == Gulped(4, 2)
        assert Drinker.seen == [(1, 2), (2, 2), (3, 2), (4, 2)]
        assert address_of(test).incarnation > to.incarnation
        await tree.stop()


async def test_dropped_mailbox_answers_its_asks_as_unreachable(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        tree = await started(test, "drop")
        to = address_of(test)
        await test.tell(to, Gulp(0, poison=True))
        await test.tell(to, Gulp(1))
        asked = asyncio.create_task(test.ask(to, Gulp(2), Gulped))
        await asyncio.sleep(0)
        Drinker.gate.set()
        with pytest.raises(Unreachable):
            await asked
        await until(lambda: Drinker.lives == 2)
        assert Drinker.seen == []
        await tree.stop()


async def test_messages_between_lives_wait_by_name_only(
    tmp_path: Path,
) -> None:
    Drinker.refuses_starts = 1  # so that a back-off comes between
    async with TestSystem(tmp_path) as test:
        tree = await started(test)
        old = address_of(test)
        Drinker.gate.set()
        await test.tell(old, Gulp(0, poison=True))
        await until(lambda: Drinker.refuses_starts == 0)
        await asyncio.sleep(0)
        assert Drinker.lives == 1
        await test.tell("it", Gulp(1))
        await test.tell(old, Gulp(2))
        with pytest.raises(Unreachable):
            await test.ask(old, Gulp(3), Gulped)
        asked = asyncio.create_task(test.ask("it", Gulp(4), Gulped))
        assert await asked == Gulped(4, 2)
        assert Drinker.seen == [(1, 2), (4, 2)]
        await tree.stop()


async def test_mailbox_stays_bounded_between_two_lives(tmp_path: Path) -> None:
    Drinker.refuses_starts = 2
    async with TestSystem(tmp_path) as test:
        tree = await started(test)
        Drinker.gate.set()
        await test.tell("it", Gulp(0, poison=True))
        await until(lambda: Drinker.refuses_starts == 0)
        for number in range(TEST_LIMITS.mailbox):
            await test.tell("it", Gulp(number))
        with pytest.raises(Overloaded):
            await test.ask("it", Gulp(99), Gulped)
        last = asyncio.create_task(test.tell("it", Gulp(TEST_LIMITS.mailbox)))  # waits for free capacity
        await last
        await until(lambda: len(Drinker.seen) == TEST_LIMITS.mailbox + 1)
        assert [number for number, _ in Drinker.seen] == list(range(TEST_LIMITS.mailbox + 1))
        await tree.stop()


@pytest.mark.parametrize("end", ["gives up", "is stopped", "is terminated"])
async def test_messages_for_a_failed_restart_are_answered(tmp_path: Path, end: str) -> None:
    Drinker.refuses_starts = 9 if end == "gives up" else 3
    async with TestSystem(tmp_path) as test:
        tree = await started(test)
        Drinker.gate.set()
        await test.tell("it", Gulp(0, poison=True))
        await until(lambda: Drinker.refuses_starts < 3 or (end == "gives up" and Drinker.refuses_starts < 9))
        asked = asyncio.create_task(test.ask(address_of(test), Gulp(1), Gulped))
        await asyncio.sleep(0)
        if end == "is stopped":
            await tree.stop()
        elif end == "is terminated":
            await tree.terminate_child("it")
        with pytest.raises(Unreachable):
            await asked
        assert test.system.cell("it") is None
        await tree.stop()


async def test_sibling_restarted_with_failed_one_keeps_its_mailbox(tmp_path: Path) -> None:
    class Trigger(Actor):
        @handles(Gulp)
        async def gulp(self, message: Gulp) -> None:
            raise RuntimeError("fails")

    async with TestSystem(tmp_path) as test:
        spec = one_for_all(child("trigger", Trigger), child("it", Drinker, mailbox="keep"), intensity=QUICK)
        tree = Supervisor(test.system, spec, on_failure=pytest.fail)
        await tree.start()
        for number in (0, 1, 2):  # the first is being handled and is lost with that life
            await test.tell("it", Gulp(number))
        await asyncio.sleep(0)
        await test.tell("trigger", Gulp(0))
        await until(lambda: Drinker.lives == 2)
        Drinker.gate.set()
        await until(lambda: len(Drinker.seen) == 2)
        assert Drinker.seen == [(1, 2), (2, 2)]
        await tree.stop()


async def test_remote_ask_resent_over_a_restart_takes_effect_once(
    tmp_path: Path,
) -> None:
    async with TestSystem(tmp_path) as test, TestSystem(tmp_path, node="far", join=test) as far:
        tree = await started(test)
        to = await far.system.resolve("it", 5.0)
        await far.tell(to, Gulp(0, poison=True))
        by_address = asyncio.create_task(far.ask(to, Gulp(1), Gulped))
        by_name = asyncio.create_task(far.ask("it", Gulp(2), Gulped))
        await until(lambda: waiting_for(test) == 2)
        Drinker.gate.set()
        await until(lambda: Drinker.lives == 2)
        assert await by_address == Gulped(1, 2)
        assert await by_name == Gulped(2, 2)
        Drinker.gate.clear()
        old = address_of(test)
        held = asyncio.create_task(far.ask(old, Gulp(3), Gulped))
        waiting = asyncio.create_task(far.ask(old, Gulp(4), Gulped))
        again = asyncio.create_task(far.ask("it", Gulp(5), Gulped))
        await until(lambda: waiting_for(test) == 2)  # and the third is being handled
        cell = test.system.cell("it")
        assert cell is not None
        cell.crash(RuntimeError("in the midst of 3"))
        with pytest.raises(Unreachable):
            await held
        await asyncio.sleep(TEST_LIMITS.resend_s * 3)  # sent again several times while the next life waits
        Drinker.gate.set()
        assert await waiting == Gulped(4, 3)
        assert await again == Gulped(5, 3)
        assert sorted(number for number, _ in Drinker.seen) == [1, 2, 4, 5]
        await tree.stop()


async def test_transient_actor_that_stops_itself_is_done(tmp_path: Path) -> None:
    class Once(Actor):
        async def on_stop(self) -> None:
            handled.append("stopped")

        @handles(Gulp)
        async def gulp(self, message: Gulp) -> Done:
            handled.append(message.number)
            self.ctx.stop()
            return Done()

    handled: list[object] = []
    async with TestSystem(tmp_path) as test:
        spec = one_for_one(
            child("once", Once, restart="transient", significant=True), auto_shutdown="all_significant"
        )
        ended: list[str] = []
        tree = Supervisor(
            test.system, spec, on_failure=pytest.fail, on_shutdown=lambda: ended.append("in order")
        )
        await tree.start()
        asked = asyncio.create_task(test.ask("once", Gulp(1), Done))
        await asyncio.sleep(0)
        await test.tell("once", Gulp(2))
        assert await asked == Done()
        await until(lambda: ended)
    assert handled == [1, "stopped"]


def test_only_an_actor_has_a_mailbox_to_keep() -> None:
    with pytest.raises(ValueError, match="only an actor has a mailbox"):
        one_for_one(child("tree", one_for_one(), mailbox="keep"))
