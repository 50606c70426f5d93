"""Watches: notifications of the end and the silence of other processes."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from patient_loop import PatientLoop

from gleaner.supervisor import Actor, ActorSystem, Address, Limits, Refused, Suspected, Terminated
from gleaner.supervisor.system_messages import Watch
from gleaner.supervisor.testing import TEST_LIMITS, TestSystem
from gleaner.supervisor.watch.watches import AFFIRM_S, MAX_WATCHERS
from gleaner.transport import control_frame
from gleaner.transport.control_frame import Ack, Data
from gleaner.transport.envelope import Envelope
from tests.supervisor.watched_process import LIMITS, Sitting, system_of


class Looking(Actor):
    """Watches its targets, and records each notification with its time."""

    def __init__(self, *targets: Address) -> None:
        self.targets = targets
        self.ended: list[Terminated] = []
        self.ended_s: list[float] = []
        self.suspected: list[bool] = []

    async def on_start(self) -> None:
        for target in self.targets:
            self.ctx.watch(target)

    async def on_terminated(self, event: Terminated) -> None:
        self.ended.append(event)
        self.ended_s.append(self.ctx.now())

    async def on_suspected(self, event: Suspected) -> None:
        self.suspected.append(event.suspected)


def look(system: ActorSystem, *targets: Address) -> Looking:
    looking = Looking(*targets)
    system.spawn("looking", lambda: looking)
    return looking


async def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.002)


def cut(*systems: TestSystem) -> None:
    """Drop everything that is sent to these from now on, without any notification."""
    for system in systems:
        vars(system._wire)["deliver"] = lambda _route, _frames: True


def heal(*systems: TestSystem) -> None:
    for system in systems:
        del vars(system._wire)["deliver"]


async def test_silent_process_is_suspected_then_dead_within_bound(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as one, TestSystem(tmp_path, node="two", join=one) as two:
        looking = look(one.system, two.spawn("sitting", Sitting))
        await asyncio.sleep(0.5)
        assert not looking.suspected
        cut(one, two)
        cut_s = asyncio.get_running_loop().time()
        await until(lambda: looking.suspected)
        assert looking.suspected == [True]
        assert two.system.endpoint in one.system.state().suspects
        assert not looking.ended, "suspicion is not the end"
        await until(lambda: looking.ended)
        (event,) = looking.ended
        assert event.cause.startswith("silent for")
        assert looking.ended_s[0] - cut_s < TEST_LIMITS.silent_s + 10 * TEST_LIMITS.beat_s
        assert not one.system.state().suspects


async def test_partition_healed_in_time_withdraws_the_suspicion(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as one, TestSystem(tmp_path, node="two", join=one) as two:
        looking = look(one.system, two.spawn("sitting", Sitting))
        await asyncio.sleep(0.5)
        for _ in range(2):
            cut(one, two)
            await until(lambda: looking.suspected and looking.suspected[-1])
            heal(one, two)
            await until(lambda: not looking.suspected[-1])
        await asyncio.sleep(2 * TEST_LIMITS.silent_s)
        assert looking.suspected == [True, False, True, False]
        assert not looking.ended
        two.kill("sitting")
        await until(lambda: looking.ended)
        assert looking.ended[0].cause.startswith("crashed")


async def test_pause_of_own_loop_counts_as_no_silence(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, PatientLoop)
    async with TestSystem(tmp_path) as one, TestSystem(tmp_path, node="two", join=one) as two:
        looking = look(one.system, two.spawn("sitting", Sitting))
        for _ in range(2):
            await asyncio.sleep(0.2)
            loop.stand_still(2 * TEST_LIMITS.silent_s)
        await asyncio.sleep(0.3)
        assert not looking.ended


async def test_ask_to_a_silenced_process_fails_before_its_deadline(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as one, TestSystem(tmp_path, node="two", join=one) as two:
        looking = look(one.system, target := two.spawn("sitting", Sitting))
        await asyncio.sleep(0.3)
        cut(one, two)
        with pytest.raises(Exception, match="is gone"):
            await asyncio.wait_for(one.ask(target, Watch(endpoint="", watched=[]), Watch, 600.0), 60.0)
        await until(lambda: looking.ended)


def frames_to(*systems: TestSystem) -> list[object]:
    """The frames that arrive at these from now on."""
    frames: list[object] = []
    for system in systems:
        deliver = system._wire.deliver

        def record(route: bytes, parts: list[bytes], deliver: Callable[..., bool] = deliver) -> bool:
            frames.extend(control_frame.decode(part, print) for part in parts)
            return deliver(route, parts)

        vars(system._wire)["deliver"] = record
    return frames


def kinds_in(frames: list[object]) -> set[str]:
    return {envelope.kind for frame in frames if isinstance(frame, Data) for envelope in frame.envelopes}


def watches_in(frames: list[object]) -> list[Envelope]:
    held = [envelope for frame in frames if isinstance(frame, Data) for envelope in frame.envelopes]
    return [envelope for envelope in held if envelope.kind == "Watch"]


LEASES = {"RenewLease", "LeaseGranted"}


async def test_watching_1000_actors_costs_one_question_per_beat(
    tmp_path: Path,
) -> None:
    async with TestSystem(tmp_path) as one, TestSystem(tmp_path, node="two", join=one) as two:
        near = [one.spawn(f"near-{number}", Sitting) for number in range(500)]
        far = [two.spawn(f"far-{number}", Sitting) for number in range(500)]
        looking, back = look(one.system, *far), Looking(*near)
        two.spawn("looking-back", lambda: back)
        first = frames_to(one, two)
        await until(lambda: len(watches_in(first)) == 2)
        await asyncio.sleep(0.3)
        assert len(watches_in(first)) == 2
        first.clear()
        await asyncio.sleep(10 * TEST_LIMITS.beat_s)
        assert kinds_in(first) <= LEASES
        asked = sum(isinstance(frame, Ack) for frame in first)
        assert 4 <= asked <= 46, "one or two questions a beat, and their answers, whatever number is watched"
        assert not looking.ended
        one.network.kill("two")
        await until(lambda: len(looking.ended) == 500)


async def test_active_peer_is_not_asked_whether_it_lives(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as one, TestSystem(tmp_path, node="two", join=one) as two:
        looking = look(one.system, target := two.spawn("sitting", Sitting))
        await asyncio.sleep(0.2)
        frames = frames_to(two)
        for _ in range(40):
            with pytest.raises(Refused):  # an answer of any kind
                await one.ask(target, Watch(endpoint="", watched=[]), Watch)
            await asyncio.sleep(TEST_LIMITS.beat_s / 4)
        asked = sum(isinstance(frame, Ack) and frame.sent > 0 for frame in frames)
        assert asked <= 2
        assert not looking.suspected


async def test_changed_limits_apply_to_existing_watches(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as one, TestSystem(tmp_path, node="two", join=one) as two:
        looking = look(one.system, two.spawn("sitting", Sitting))
        await asyncio.sleep(0.2)
        one.system.live_by(replace(TEST_LIMITS, silent_s=2.0))
        cut(one, two)
        cut_s = asyncio.get_running_loop().time()
        await until(lambda: looking.ended)
        assert 1.0 < looking.ended_s[0] - cut_s < 2.5


async def test_no_end_is_lost_beyond_the_mailbox_size(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as one, TestSystem(tmp_path, node="two", join=one) as two:
        looking = look(one.system, *(two.spawn(f"far-{number}", Sitting) for number in range(3000)))
        await asyncio.sleep(0.3)
        one.network.kill("two")
        await until(lambda: len(looking.ended) == 3000)
        assert len({event.name for event in looking.ended}) == 3000


class Parent(Looking):
    async def on_start(self) -> None:
        self.targets = tuple(self.ctx.spawn(f"child-{number}", Sitting) for number in range(2000))


async def test_owner_is_notified_of_every_child_and_keeps_none(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        parent = Parent()
        system.spawn("parent", lambda: parent)
        await until(lambda: len(parent.targets) == 2000)
        await asyncio.sleep(0)
        for number in range(2000):
            system.kill(f"child-{number}")
        await until(lambda: len(parent.ended) == 2000)
        assert not any(system.system.owned().values())


class Anxious(Looking):
    """Watches the child that it has spawned, whose end is reported to it anyway."""

    async def on_start(self) -> None:
        self.targets = (self.ctx.spawn("child", Sitting),)
        self.ctx.watch(self.targets[0])


async def test_end_of_spawned_and_watched_child_is_reported_once(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        parent = Anxious()
        system.spawn("parent", lambda: parent)
        await until(lambda: parent.targets)
        await asyncio.sleep(0)
        system.kill("child")
        await until(lambda: parent.ended)
        await asyncio.sleep(0.05)
        assert [event.name for event in parent.ended] == ["child"]


async def test_end_is_reported_once_however_often_watched(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as one, TestSystem(tmp_path, node="two", join=one) as two:
        near, far = one.spawn("near", Sitting), two.spawn("far", Sitting)
        looking = look(one.system, near, far, near, far)
        await asyncio.sleep(0.3)
        one.kill("near")
        two.kill("far")
        await until(lambda: len(looking.ended) >= 2)
        await asyncio.sleep(0.1)
        assert sorted(event.name for event in looking.ended) == ["far", "near"]


async def test_forgotten_watch_is_affirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TEST_LIMITS.silent_s < AFFIRM_S
    monkeypatch.setattr("gleaner.supervisor.watch.watches.AFFIRM_S", 0.3)
    async with TestSystem(tmp_path) as one, TestSystem(tmp_path, node="two", join=one) as two:
        looking = look(one.system, two.spawn("sitting", Sitting))
        await asyncio.sleep(0.2)
        two.system.watches._watchers.clear()
        await asyncio.sleep(0.5 + TEST_LIMITS.lease_s)
        two.kill("sitting")
        await until(lambda: looking.ended)


# -- real processes --

PATIENT = replace(LIMITS, silent_s=600.0)
"""A silence that no test waits for."""


async def until_watched(system: ActorSystem, address: Address) -> None:
    """Wait until its process has received the messages sent before."""
    with pytest.raises(Refused):  # an answer of any kind
        await system.ask(address, Watch(endpoint="", watched=[]), deadline_s=60.0, expect=Watch)


@asynccontextmanager
async def watched_process() -> AsyncIterator[tuple[asyncio.subprocess.Process, Address]]:
    """A process of its own with an actor in it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.supervisor.watched_process", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60.0)
        yield process, msgspec.json.decode(line, type=Address)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.realprocess
async def test_watcher_table_is_bounded_and_drops_idle_entries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with TestSystem(tmp_path) as one:
        sitting = one.spawn("sitting", Sitting)
        watches = one.system.watches
        for number in range(MAX_WATCHERS):
            watches.watched_by(Watch(endpoint=f"loop://dead/{number}", watched=[("gone", 1)]), b"dead")
        assert not watches._watchers
        for number in range(MAX_WATCHERS + 9):
            life = (sitting.name, sitting.incarnation)
            watches.watched_by(Watch(endpoint=f"loop://live/{number}", watched=[life]), b"live")
        assert len(watches.watchers_of(sitting.name, sitting.incarnation)) == MAX_WATCHERS
        assert "is notified of dead links only" in caplog.text


@pytest.mark.realprocess
async def test_killed_process_is_noticed_by_its_closed_connection(
    tmp_path: Path,
) -> None:
    system = system_of("watching", tmp_path, PATIENT)
    system.start()
    async with watched_process() as (process, address):
        looking = look(system, address)
        await until_watched(system, address)
        process.kill()
        await until(lambda: looking.ended)
        assert not looking.ended[0].cause.startswith("silent for")
    await system.close()


@pytest.mark.realprocess
async def test_frozen_process_is_suspected_then_dead_beyond_bound(
    tmp_path: Path,
) -> None:
    system = system_of("watching", tmp_path, PATIENT)
    system.start()
    async with watched_process() as (process, address):
        looking = look(system, address)
        await until_watched(system, address)
        os.kill(process.pid, signal.SIGSTOP)
        await until(lambda: looking.suspected and looking.suspected[-1])
        os.kill(process.pid, signal.SIGCONT)
        await until(lambda: not looking.suspected[-1])
        assert not looking.ended, "a freeze within the acceptable pause"
        os.kill(process.pid, signal.SIGSTOP)
        await until(lambda: looking.suspected[-1])
        assert not looking.ended
        system.live_by(LIMITS)
        await until(lambda: looking.ended)
        assert looking.suspected[-1]
        assert looking.ended[0].cause.startswith("silent for")
        os.kill(process.pid, signal.SIGCONT)
    await system.close()


def test_default_bound_allows_some_lost_beats() -> None:
    limits = Limits()
    assert limits.silent_s >= 5 * limits.beat_s
