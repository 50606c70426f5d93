"""The report of a process about itself.

Any peer on the wire may request it like an ask to an actor, and the request harms no component.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gleaner.supervisor import Actor, Message, Refused, Supervisor, Terminated, child, handles, one_for_one
from gleaner.supervisor.address import Address
from gleaner.supervisor.inspection.messages import ActorDescribed, DeadLettersOf, Describe, ListDeadLetters
from gleaner.supervisor.inspection.tap import ReadTap, StartTap, StopTap, TapRecords
from gleaner.supervisor.mailbox import Lane
from gleaner.supervisor.system_messages import SYSTEM, ActorState, Inspect, SystemState
from gleaner.supervisor.testing import TestSystem


class Looked(Message, frozen=True):
    text: str = ""


class Stuck(Message, frozen=True):
    """Handled until the event is set."""


class Broken(Message, frozen=True):
    """Ends the actor."""


class Watched(Actor):
    """One that is looked at.

    And more about it.
    """

    def __init__(self, gate: asyncio.Event) -> None:
        self._gate = gate

    async def on_terminated(self, event: Terminated) -> None:
        return None

    @handles(Looked)
    async def looked(self, message: Looked) -> None:
        return None

    @handles(Stuck, lane=Lane.SYSTEM)
    async def stuck(self, message: Stuck) -> None:
        await self._gate.wait()

    @handles(Broken)
    async def broken(self, message: Broken) -> None:
        try:
            raise OSError("the disk is gone")
        except OSError as problem:
            raise ValueError("could not go on") from problem

    def summary(self) -> dict[str, str | int | float]:
        return {"open": int(self._gate.is_set()), "role": "watched"}


class Unshowable(Actor):
    def summary(self) -> dict[str, str | int | float]:
        raise KeyError("not there yet")


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[TestSystem, TestSystem]]:
    async with TestSystem(tmp_path) as system, TestSystem(tmp_path, node="other", join=system) as other:
        yield system, other


def process_of(system: TestSystem) -> Address:
    return Address(name=SYSTEM, endpoint=system.system.endpoint)


def row_of(state: SystemState, name: str) -> ActorState:
    return next(actor for actor in state.actors if actor.name == name)


async def test_actor_is_described_from_another_process(pair: tuple[TestSystem, TestSystem]) -> None:
    system, other = pair
    gate = asyncio.Event()
    failed = asyncio.Event()
    tree = Supervisor(
        system.system,
        one_for_one(child("seen", lambda: Watched(gate)), name="upper"),
        on_failure=lambda problem: None,
        on_restart=lambda restarted: failed.set(),
    )
    await tree.start()
    await other.tell("seen", Broken())
    await asyncio.wait_for(failed.wait(), 60.0)
    watcher = system.spawn("watcher", lambda: Watched(gate))
    async with asyncio.timeout(60.0):
        while system.system.cell("seen") is None or not system.system.cell("seen").ready:
            await asyncio.sleep(0.01)
        await other.ask(process_of(system), Describe(name="seen"), ActorDescribed)
    cell = system.system.cell("watcher")
    seen = system.system.cell("seen")
    assert cell is not None
    assert seen is not None
    cell.ctx.watch(seen.address)
    seen.ctx.spawn("seen/child", Unshowable)
    await system.tell("seen", Looked())
    await system.tell("seen", Stuck())
    await asyncio.sleep(0)
    await system.tell("seen", Looked())

    answer = await other.ask(process_of(system), Describe(name="seen"), ActorDescribed)
    assert (answer.actor_class, answer.purpose) == ("Watched", "One that is looked at.")
    assert answer.module == Watched.__module__
    assert ("Stuck", "system", "stuck") in [(it.kind, it.lane, it.method) for it in answer.handlers]
    assert sum(answer.waiting.values()) >= 1
    assert answer.mailbox_limit == 64
    assert (answer.parent, answer.restarts) == ("upper", 1)
    assert answer.failure is not None
    assert answer.failure.incarnation < answer.incarnation
    assert answer.failure.chain[0].startswith("ValueError: could not go on (")
    assert answer.failure.chain[1].startswith("OSError: the disk is gone (")
    assert "in broken)" in answer.failure.chain[1]
    assert answer.children == ["seen/child"]
    assert answer.watched_by == [str(watcher)]
    assert answer.figures == {"open": 0, "role": "watched"}
    owned = await other.ask(process_of(system), Describe(name="seen/child"), ActorDescribed)
    assert owned.owner == "seen"
    watching = await other.ask(process_of(system), Describe(name="watcher"), ActorDescribed)
    assert watching.watches == [f"seen#{answer.incarnation}"]
    with pytest.raises(Refused, match="no actor 'nobody' lives in test/test"):
        await other.ask(process_of(system), Describe(name="nobody"), ActorDescribed)
    gate.set()
    await tree.stop()


async def test_failing_summary_is_shown_and_hides_no_actor(
    pair: tuple[TestSystem, TestSystem],
) -> None:
    system, other = pair
    system.spawn("unshowable", Unshowable)
    await asyncio.sleep(0)
    state = await other.ask(process_of(system), Inspect(), SystemState)
    assert "failed: KeyError" in str(row_of(state, "unshowable").figures["summary"])
    assert row_of(state, "registry").name == "registry"
    assert state.vitals is not None
    assert state.vitals.lag_s >= 0


async def test_asks_are_timed_and_their_failures_counted(pair: tuple[TestSystem, TestSystem]) -> None:
    system, other = pair
    system.spawn("seen", lambda: Watched(asyncio.Event()))
    for _ in range(3):
        await other.ask("seen", Looked(), Message)
    with pytest.raises(Refused):
        await other.ask(process_of(system), Describe(name="nobody"), ActorDescribed)
    vitals = other.system.state().vitals
    assert vitals is not None
    assert sum(vitals.ask_counts) >= 3
    assert 0 < vitals.ask_sum_s < 30
    assert vitals.ask_failed == {"Refused": 1}


async def test_dead_letters_show_sender_kind_and_target(pair: tuple[TestSystem, TestSystem]) -> None:
    system, other = pair
    gone = system.spawn("gone", lambda: Watched(asyncio.Event()))
    system.kill("gone")
    await other.tell(gone, Looked(text="too late"))
    async with asyncio.timeout(60.0):
        while True:
            answer = await other.ask(process_of(system), ListDeadLetters(), DeadLettersOf)
            if answer.counts:
                break
    assert answer.counts == {"no such actor": 1}
    assert (answer.node, answer.process) == ("test", "test")
    [sample] = answer.samples
    assert (sample.reason, sample.kind, sample.to) == ("no such actor", "Looked", "gone")
    assert 0 <= answer.now_s - sample.t_s < 60


async def test_tap_shows_messages_and_costs_nothing_when_closed(
    pair: tuple[TestSystem, TestSystem],
) -> None:
    system, other = pair
    seen = system.spawn("seen", lambda: Watched(asyncio.Event()))
    there = process_of(system)
    assert system.system.tap is None
    wanted = StartTap(reader="r", actor="seen", directions=("in", "local", "out"))
    await other.ask(there, wanted, TapRecords)
    await other.ask(seen, Looked(text="from afar"), Message)
    await system.tell(seen, Looked(text="from here"))
    await system.ask(seen, Looked(text="asked here"), Message)
    passed = await other.ask(there, ReadTap(reader="r"), TapRecords)
    assert (passed.node, passed.process, passed.skipped) == ("test", "test", 0)
    assert [(it.direction, it.mode, it.kind) for it in passed.records] == [
        ("in", "ask", "Looked"),
        ("out", "reply", "Done"),
        ("local", "tell", "Looked"),
        ("local", "ask", "Looked"),
        ("local", "reply", "Done"),
    ]
    assert json.loads(passed.records[0].body) == {"text": "from afar"}
    await other.ask(there, StopTap(reader="r"), TapRecords)
    assert system.system.tap is None
    with pytest.raises(Refused, match="no such tap"):
        await other.ask(there, ReadTap(reader="r"), TapRecords)


async def test_non_question_message_is_refused_and_counted(
    pair: tuple[TestSystem, TestSystem],
) -> None:
    system, other = pair
    other.system.send_system(process_of(system).peer, Looked())
    async with asyncio.timeout(60.0):
        while not system.system.wire.refused:
            await asyncio.sleep(0.01)
    assert system.system.wire.refused["not-for-system"] == 1
