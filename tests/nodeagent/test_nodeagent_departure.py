"""How a host goes, and how it stays: told by orders and by its cloud, asking a manager that plays along."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from gleaner.actors.protocol.cluster import CloudNotice, HandedOver, JobSpec, NodeSeen, PreemptionNotice
from gleaner.actors.protocol.instances import NewWork, Withdraw, Withdrawn
from gleaner.nodeagent import departure
from gleaner.nodeagent.departure import Departure
from gleaner.supervisor import Actor, Deferred, Done, Message, Refused, handles
from gleaner.supervisor.testing import TestSystem

JOB = cast(JobSpec, object())
HOST = "spot-1"


@dataclass
class World:
    """What the host did, in order, and what the manager answers."""

    said: list[str] = field(default_factory=list)
    busy: bool = False  # the manager has not got the requests yet
    deaf: bool = False  # the manager refuses
    connected: bool = True
    job: JobSpec | None = JOB
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, text: str) -> None:
        self.said.append(text)
        self.changed.set()

    async def until(self, *wanted: str) -> None:
        async with asyncio.timeout(60.0):
            while any(self.said.count(one) < wanted.count(one) for one in wanted):
                self.changed.clear()
                await self.changed.wait()


class Manager(Actor):
    def __init__(self, world: World) -> None:
        self._world = world

    @handles(Withdraw)
    async def withdraw(self, message: Withdraw) -> Withdrawn | Deferred:
        assert message.leaves
        if self._world.deaf:
            raise Refused("not now")
        self._world.say(f"withdraw {message.grace_s:.0f}")
        return Deferred() if self._world.busy else Withdrawn(handed_over=1)

    @handles(NewWork)
    async def new_work(self, message: NewWork) -> None:
        if self._world.deaf:
            raise Refused("not now")
        self._world.say("new work" if message.allowed else "no new work")


class Reports(Actor):
    """The Scheduler, and whoever follows the cloud."""

    def __init__(self, world: World) -> None:
        self._world = world

    @handles(NodeSeen)
    async def seen(self, message: NodeSeen) -> None:
        self._world.say(f"reports {message.event}")

    @handles(HandedOver)
    async def handed_over(self, message: HandedOver) -> None:
        self._world.say("acknowledged")


class Host(Actor):
    def __init__(self, world: World) -> None:
        self._world = world

    async def on_start(self) -> None:
        world = self._world
        self._departure = Departure(
            self.ctx,
            "preemptible",
            connected=lambda: world.connected,
            job=lambda: world.job,
            become=lambda state: world.say(f"is {state}"),
            go=self._go,
        )

    def _go(self) -> None:
        self._world.say("goes")
        self.ctx.background(self._departure.acknowledge(), "acknowledge")

    @handles(PreemptionNotice)
    async def order(self, message: PreemptionNotice) -> None:
        self._departure.order(message.deadline_s)

    @handles(CloudNotice)
    async def heard(self, message: CloudNotice) -> None:
        self._departure.heard(message)


@dataclass
class Stage:
    world: World
    system: TestSystem

    async def tell(self, message: Message) -> None:
        await self.system.ask(f"{HOST}/agent", message, Done)


@asynccontextmanager
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(departure, "AGAIN_S", 0.05)
    monkeypatch.setattr(departure, "MARGIN_S", 0.1)
    world = World()
    async with TestSystem(tmp_path, node=HOST) as system:
        system.spawn("rollout/manager", lambda: Manager(world))
        system.spawn("cluster/scheduler", lambda: Reports(world))
        system.spawn(f"{HOST}/notices", lambda: Reports(world))
        system.spawn(f"{HOST}/agent", lambda: Host(world))
        yield Stage(world, system)


def notice(deadline_s: float, *, acknowledges: bool = False) -> CloudNotice:
    return CloudNotice(kind="notice", deadline_s=deadline_s, source="aws", acknowledges=acknowledges)


NONE = CloudNotice(kind="none")
HINT = CloudNotice(kind="hint")


async def test_a_host_that_is_ordered_away_goes_as_soon_as_it_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        await it.tell(PreemptionNotice(deadline_s=60.0))
        await it.world.until("goes", "reports noticed", "reports drained")
        await it.tell(NONE)
        await it.tell(notice(5.0))
        await asyncio.sleep(0.1)
        assert it.world.said.count("goes") == 1
        assert "is up" not in it.world.said, "an order stands, whatever a cloud says"
        assert "acknowledged" not in it.world.said


async def test_a_host_with_a_notice_is_emptied_at_once_and_waits_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        await it.tell(notice(1.0))
        await it.world.until("reports drained", "withdraw 1")
        assert "goes" not in it.world.said
        await it.world.until("goes")
        assert it.world.said.count("reports noticed") == it.world.said.count("reports drained") == 1
        assert it.world.said.count("is draining") == 1


async def test_a_notice_that_is_taken_back_leaves_the_host_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        it.world.busy = True  # it is still handing over
        await it.tell(notice(0.6))
        await it.world.until("withdraw 0")
        await it.tell(NONE)
        await it.world.until("is up", "new work", "reports spared")
        await asyncio.sleep(0.7)
        assert "goes" not in it.world.said
        it.world.busy = False
        await it.tell(notice(0.3))  # the next one is a notice like the first
        await it.world.until("goes", "reports noticed", "reports noticed")


async def test_the_same_notice_told_again_changes_nothing_and_a_nearer_end_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        it.world.busy = True
        await it.tell(notice(60.0))
        await it.world.until("withdraw 60")
        await it.tell(notice(60.3))
        await asyncio.sleep(0.05)
        assert it.world.said.count("is draining") == 1
        await it.tell(notice(0.3))
        await it.world.until("withdraw 0", "goes")


async def test_a_signal_during_a_notice_makes_it_final_and_no_later_than_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        await it.tell(notice(60.0))
        await it.world.until("reports drained")
        await it.tell(PreemptionNotice(deadline_s=15.0))
        await it.world.until("goes")
        assert "withdraw 15" in it.world.said


async def test_a_cloud_that_wants_to_hear_of_it_is_told_of_an_empty_host_which_goes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        await it.tell(notice(60.0, acknowledges=True))
        await it.world.until("goes", "acknowledged")
        said = it.world.said
        assert said.index("reports drained") < said.index("goes") < said.index("acknowledged")


async def test_a_hint_keeps_new_requests_off_until_it_is_lifted_and_never_ends_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        await it.tell(HINT)
        await it.world.until("no new work", "no new work")  # again: the manager may have been restarted
        await it.tell(NONE)
        await it.world.until("new work")
        count = it.world.said.count("no new work")
        await asyncio.sleep(0.15)
        assert it.world.said.count("no new work") == count
        assert not {"goes", "is draining", "reports noticed", "reports spared"} & set(it.world.said)


async def test_a_notice_that_becomes_a_hint_is_lifted_before_new_requests_are_kept_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        await it.tell(notice(60.0))
        await it.world.until("reports drained")
        await it.tell(HINT)
        await it.world.until("no new work")
        assert it.world.said.index("new work") < it.world.said.index("no new work")


async def test_a_manager_that_cannot_be_asked_is_asked_until_the_end_and_told_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        it.world.deaf = True
        await it.tell(notice(30.0))
        await asyncio.sleep(0.2)
        assert "goes" not in it.world.said, "there is time left"
        it.world.deaf = False
        await it.world.until("reports drained")
        it.world.deaf = True
        await it.tell(NONE)
        await it.world.until("is up")
        await asyncio.sleep(0.1)
        assert "new work" not in it.world.said
        it.world.deaf = False
        await it.world.until("new work")


async def test_a_deadline_that_is_no_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        for deadline_s in (float("nan"), -1.0):
            with pytest.raises(Refused, match="expected a number of seconds from 0 up"):
                await it.tell(notice(deadline_s))
        await it.tell(notice(float("inf")))
        await it.world.until("reports drained")
