"""Waits: each is listed while it lasts, and an event marks a passed deadline."""

import asyncio
import contextlib
import logging
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patient_loop import PatientLoop

from gleaner.supervisor import (
    Actor,
    AskTimeout,
    Deadline,
    Deferred,
    Done,
    Message,
    Supervisor,
    WaitTimeout,
    child,
    handles,
    one_for_one,
)
from gleaner.supervisor.address import Address
from gleaner.supervisor.system_messages import SYSTEM, ListWaits, WaitsOf, WaitState
from gleaner.supervisor.testing import TestSystem
from gleaner.supervisor.waits import LINES_PER_S, MAX_EXPIRED, MAX_REASONS, Waits
from gleaner.supervisor.watch.turn_clock import TICK_S

NUMBERS = st.floats(-1e6, 1e6)


class AskWaiter(Message, frozen=True):
    """Wait for the gate within this many seconds."""

    deadline_s: float
    go_on: bool = False


class OpenGate(Message, frozen=True):
    """Open the gate."""


class NeverAnswered(Message, frozen=True):
    """Asks for an answer that never comes."""


class Waiter(Actor):
    async def on_start(self) -> None:
        self.gate = asyncio.Event()
        self.outcomes: list[str] = []

    @handles(AskWaiter)
    async def wait(self, message: AskWaiter) -> None:
        self.ctx.background(self._wait(message), "wait")

    async def _wait(self, message: AskWaiter) -> None:
        try:
            async with self.ctx.wait(
                "the gate to open", on="gatekeeper", deadline_s=message.deadline_s, go_on=message.go_on
            ):
                await self.gate.wait()
            self.outcomes.append("open")
        except WaitTimeout as problem:
            self.outcomes.append(str(problem))

    @handles(OpenGate)
    async def open(self, _message: OpenGate) -> None:
        self.gate.set()

    @handles(NeverAnswered)
    async def never(self, _message: NeverAnswered) -> Deferred:
        return Deferred()


@given(st.floats(0, 1e6), NUMBERS, NUMBERS)
def test_deadline_has_passed_exactly_when_nothing_is_left(length: float, now: float, then: float) -> None:
    deadline = Deadline.after(length, now)
    assert deadline.passed(then) == (deadline.left_s(then) == 0)
    assert deadline.left_s(then) >= 0


@given(NUMBERS, NUMBERS, NUMBERS)
def test_sooner_of_two_deadlines_passes_when_either_has(one: float, other: float, now: float) -> None:
    sooner = Deadline(one).sooner(Deadline(other))
    assert sooner.passed(now) == (Deadline(one).passed(now) or Deadline(other).passed(now))
    assert Deadline(one).sooner(None) == Deadline(one)


async def until(condition: object, within_s: float = 60.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


def waits_of(system: TestSystem) -> list[WaitState]:
    return [wait for wait in system.system.waits.snapshot() if wait.who == "waiter"]


async def test_wait_is_listed_with_waiter_subject_and_peer(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        system.spawn("waiter", Waiter)
        await system.ask("waiter", AskWaiter(deadline_s=60.0), Done)
        await asyncio.sleep(0.05)
        (wait,) = waits_of(system)
        assert (wait.who, wait.what, wait.on) == ("waiter", "the gate to open", "gatekeeper")
        assert 0.04 < wait.since_s < 60.0 - wait.left_s + 0.1
        await system.ask("waiter", OpenGate(), Done)
        await until(lambda: not waits_of(system))
        assert not system.system.waits.counts


async def test_wait_past_its_deadline_raises_with_one_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with TestSystem(tmp_path) as system:
        system.spawn("waiter", Waiter)
        with caplog.at_level(logging.WARNING, "supervisor.waits"):
            await system.ask("waiter", AskWaiter(deadline_s=0.1), Done)
            await until(lambda: system.system.waits.counts)
            await asyncio.sleep(0.2)
        cell = system.system.cell("waiter")
        assert cell is not None
        assert isinstance(cell.actor, Waiter)
        assert cell.actor.outcomes == ["waiter waited 0.1 s for the gate to open on gatekeeper"]
        assert system.system.waits.counts == {"the gate to open: deadline passed": 1}
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.startswith("waiter waited 0.1")
        assert "for the gate to open on gatekeeper" in line
        assert system.system.state().expired_waits == {"the gate to open: deadline passed": 1}


async def test_patient_wait_continues_with_an_event_per_deadline(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        system.spawn("waiter", Waiter)
        await system.ask("waiter", AskWaiter(deadline_s=0.1, go_on=True), Done)
        await until(lambda: system.system.waits.counts.total() >= 2)
        (wait,) = waits_of(system)
        assert wait.expired >= 2
        assert wait.since_s >= 0.2, "it keeps the time at which it started"
        await system.ask("waiter", OpenGate(), Done)
        await until(lambda: not waits_of(system))


async def test_progress_grants_the_whole_deadline_again() -> None:
    waits = Waits()
    async with waits.waiting("me", "steps", "you", 30.0) as wait:
        await asyncio.sleep(0.1)
        before_s = waits.snapshot()[0].left_s
        wait.progress()
        after = waits.snapshot()[0]
        assert before_s < 29.91 < after.left_s
        assert after.since_s > 0.09, "it is the same wait"
    async with waits.waiting("me", "steps", "you", 0.2) as wait:
        for _ in range(4):
            await asyncio.sleep(0.1)
            wait.progress()
    assert not waits.counts
    with pytest.raises(WaitTimeout):
        async with waits.waiting("me", "steps", "you", 0.1):
            await asyncio.sleep(1.0)
    assert not len(waits)


PAUSE_S = 20.0


def pause() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, PatientLoop)
    loop.stand_still(PAUSE_S)


@pytest.mark.parametrize("go_on", [False, True])
async def test_wait_gets_whole_deadline_after_a_process_pause(tmp_path: Path, go_on: bool) -> None:
    loop = asyncio.get_running_loop()
    async with TestSystem(tmp_path) as system:
        waits, began_s = system.system.waits, loop.time()
        loop.call_later(0.05, pause)
        async with waits.waiting("me", "an answer", "you", 5.0, go_on=go_on):
            await asyncio.sleep(0.1)
            await asyncio.sleep(2.0)  # input that came during the pause is read, and later input in turns too
        assert loop.time() - began_s > PAUSE_S
        assert not waits.counts


@pytest.mark.parametrize("go_on", [False, True])
async def test_wait_is_late_after_deadline_in_turns_despite_pause(tmp_path: Path, go_on: bool) -> None:
    loop = asyncio.get_running_loop()
    async with TestSystem(tmp_path) as system:
        waits, began_s = system.system.waits, loop.time()
        loop.call_later(0.05, pause)
        with pytest.raises(WaitTimeout) if not go_on else contextlib.nullcontext():
            async with waits.waiting("me", "an answer", "you", 1.2, go_on=go_on):
                await until(lambda: waits.counts)
        assert loop.time() - began_s > PAUSE_S + 1.2 - 2 * TICK_S
        assert waits.counts == {"an answer: deadline passed": 1}


async def test_timeout_of_awaited_is_not_the_wait_deadline() -> None:
    waits = Waits()
    with pytest.raises(TimeoutError):
        async with waits.waiting("me", "a thing", "you", 5.0):
            raise TimeoutError("its own")
    assert not waits.counts


async def test_pending_ask_is_a_wait_and_its_timeout_event(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as one, TestSystem(tmp_path, node="two", join=one) as two:
        address = one.spawn("waiter", Waiter)
        asking = asyncio.create_task(two.ask("waiter", NeverAnswered(), Done, deadline_s=0.6))
        await until(lambda: any("NeverAnswered" in wait.what for wait in two.system.waits.snapshot()))
        to = Address(name=SYSTEM, endpoint=two.system.wire.local.endpoint)
        asked = await one.ask(to, ListWaits(), WaitsOf)  # as another process sees it
        (wait,) = [wait for wait in asked.waits if wait.what == "answer to NeverAnswered"]
        assert (wait.who, wait.on) == (SYSTEM, str(address))
        assert asked.node == "two"
        with pytest.raises(AskTimeout):
            await asking
        assert two.system.waits.counts["answer to NeverAnswered: deadline passed"] == 1
        assert not any("NeverAnswered" in wait.what for wait in two.system.waits.snapshot())


async def test_lookup_of_unheld_name_is_a_wait_then_event(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        asking = asyncio.create_task(system.ask("nobody", OpenGate(), Done, deadline_s=0.3))
        await until(lambda: any(wait.on == "nobody" for wait in system.system.waits.snapshot()))
        with pytest.raises(AskTimeout):
            await asking
        assert system.system.waits.counts["the holder of a name: deadline passed"] >= 1


async def test_expired_waits_are_bounded_and_log_is_not_flooded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waits = Waits()
    with caplog.at_level(logging.WARNING, "supervisor.waits"):
        for number in range(2000):
            waits.expire("me", f"thing {number}", "you", 1.0)
    assert len(waits.expired) == MAX_EXPIRED
    assert len(waits.counts) <= MAX_REASONS + 1
    assert waits.counts.total() == 2000
    assert len(caplog.records) <= LINES_PER_S * 2


class SlowStart(Actor):
    async def on_start(self) -> None:
        await asyncio.sleep(0.3)


class Busy(Actor):
    """Its mailbox fills."""

    @handles(OpenGate)
    async def handle(self, _message: OpenGate) -> None:
        await asyncio.sleep(0.01)


class Offloading(Actor):
    def __init__(self, go_on: threading.Event) -> None:
        self.go_on = go_on

    @handles(OpenGate)
    async def handle(self, _message: OpenGate) -> None:
        await self.ctx.offload(self.go_on.wait, 60.0)


async def seen(system: TestSystem, work: "asyncio.Task[None]") -> set[tuple[str, str, str]]:
    """Every wait that was listed while `work` ran."""
    found: set[tuple[str, str, str]] = set()
    while not work.done():
        found |= {(wait.who, wait.what, wait.on) for wait in system.system.waits.snapshot()}
        await asyncio.sleep(0.005)
    await work
    return found


async def test_starting_child_is_a_listed_wait(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        tree = Supervisor(
            system.system, one_for_one(child("slow", SlowStart), name="tree"), on_failure=lambda _: None
        )
        waits = await seen(system, asyncio.create_task(tree.start()))
        assert ("tree", "a child to start", "slow") in waits
        await tree.stop()


async def test_full_mailbox_commit_and_thread_work_are_waits(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        system.spawn("busy", Busy)
        go_on = threading.Event()
        system.spawn("offloading", lambda: Offloading(go_on))

        async def tell() -> None:
            for _ in range(100):
                await system.tell("busy", OpenGate())

        waits = await seen(system, asyncio.create_task(tell()))
        assert ("$system", "room in a mailbox", "busy") in waits
        await system.tell("offloading", OpenGate())
        await until(lambda: ("offloading", "work on its own thread", "Event.wait") in listed(system))
        go_on.set()

        cell = system.system.cell("busy")
        assert cell is not None
        committed = asyncio.ensure_future(cell.ctx.journal.append_soon(OpenGate()))
        assert ("busy", "a commit of its journal", "the disk") in listed(system)
        await committed
        await asyncio.sleep(0)
        assert ("busy", "a commit of its journal", "the disk") not in listed(system)


def listed(system: TestSystem) -> set[tuple[str, str, str]]:
    return {(wait.who, wait.what, wait.on) for wait in system.system.waits.snapshot()}
