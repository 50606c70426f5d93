"""Departure of a host by orders and cloud notices, with a scripted manager."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from gleaner.actors.cluster import host_events
from gleaner.actors.protocol.cluster import CloudNotice, HandedOver, JobSpec, NodeSeen, PreemptionNotice
from gleaner.actors.protocol.instances import NewWork, Withdraw, Withdrawn
from gleaner.nodeagent import departure
from gleaner.nodeagent.departure import Departure, Orders
from gleaner.supervisor import Actor, Deferred, Done, Message, Refused, handles
from gleaner.supervisor.testing import TestSystem

JOB = cast(JobSpec, object())
HOST = "spot-1"


@dataclass
class World:
    """Events of the host in order, and the manager's answers."""

    events: list[str] = field(default_factory=list)
    busy: bool = False  # the manager has not received the requests yet
    deaf: bool = False  # the manager refuses
    connected: bool = True
    job: JobSpec | None = JOB
    orders: Orders = field(default_factory=Orders)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add_event(self, text: str) -> None:
        self.events.append(text)
        self.changed.set()

    async def until(self, *wanted: str) -> None:
        async with asyncio.timeout(60.0):
            while any(self.events.count(one) < wanted.count(one) for one in wanted):
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
        self._world.add_event(f"withdraw {message.grace_s:.0f}")
        return Deferred() if self._world.busy else Withdrawn(handed_over=1)

    @handles(NewWork)
    async def new_work(self, message: NewWork) -> None:
        if self._world.deaf:
            raise Refused("not now")
        self._world.add_event("new work" if message.allowed else "no new work")


class Reports(Actor):
    """The Scheduler, and the cloud's notice watcher."""

    def __init__(self, world: World) -> None:
        self._world = world

    @handles(NodeSeen)
    async def seen(self, message: NodeSeen) -> None:
        self._world.add_event(f"reports {message.event}")

    @handles(HandedOver)
    async def handed_over(self, message: HandedOver) -> None:
        self._world.add_event("acknowledged")


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
            become=lambda state: world.add_event(f"is {state}"),
            go=self._go,
        )
        self._departure.resume(world.orders)

    def _go(self) -> None:
        self._departure.over()
        self._world.add_event("goes")
        self.ctx.background(self._departure.acknowledge(), "acknowledge")

    @handles(PreemptionNotice)
    async def order(self, message: PreemptionNotice) -> None:
        self._departure.order(message.deadline_s)

    @handles(CloudNotice)
    async def noticed(self, message: CloudNotice) -> None:
        self._departure.receive(message)


@dataclass
class Stage:
    world: World
    system: TestSystem

    async def send(self, message: Message) -> None:
        await self.system.ask(f"{HOST}/agent", message, Done)

    def crash(self) -> None:
        """The node agent crashes, and its supervisor starts it again."""
        self.system.kill(f"{HOST}/agent")
        self.world.events.clear()
        self.system.spawn(f"{HOST}/agent", lambda: Host(self.world))


@asynccontextmanager
async def stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, away: bool = False
) -> AsyncIterator[Stage]:
    """away: there is no Scheduler yet."""
    monkeypatch.setattr(departure, "AGAIN_S", 0.05)
    monkeypatch.setattr(departure, "MARGIN_S", 0.1)
    world = World()
    async with TestSystem(tmp_path, node=HOST) as system:
        system.spawn("rollout/manager", lambda: Manager(world))
        if not away:
            system.spawn("cluster/scheduler", lambda: Reports(world))
        system.spawn(f"{HOST}/notices", lambda: Reports(world))
        system.spawn(f"{HOST}/agent", lambda: Host(world))
        yield Stage(world, system)


def notice(deadline_s: float, *, acknowledges: bool = False) -> CloudNotice:
    return CloudNotice(kind="notice", deadline_s=deadline_s, source="aws", acknowledges=acknowledges)


NONE = CloudNotice(kind="none")
HINT = CloudNotice(kind="hint")


async def test_ordered_host_goes_as_soon_as_it_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        await it.send(PreemptionNotice(deadline_s=60.0))
        await it.world.until("goes", "reports noticed", "reports drained")
        await it.send(NONE)
        await it.send(notice(5.0))
        await asyncio.sleep(0.1)
        assert it.world.events.count("goes") == 1
        assert "is up" not in it.world.events, "a cloud cannot take an order back"
        assert "acknowledged" not in it.world.events


async def test_host_with_a_notice_drains_and_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        await it.send(notice(1.0))
        await it.world.until("reports drained", "withdraw 1")
        assert "goes" not in it.world.events
        await it.world.until("goes")
        assert it.world.events.count("reports noticed") == it.world.events.count("reports drained") == 1
        assert it.world.events.count("is draining") == 1


async def test_withdrawn_notice_restores_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        it.world.busy = True  # the handover is still running
        await it.send(notice(0.6))
        await it.world.until("withdraw 0")
        await it.send(NONE)
        await it.world.until("is up", "new work", "reports spared")
        await asyncio.sleep(0.7)
        assert "goes" not in it.world.events
        it.world.busy = False
        await it.send(notice(0.3))  # the next notice acts like the first
        await it.world.until("goes", "reports noticed", "reports noticed")


async def test_repeated_notice_changes_nothing_and_nearer_end_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        it.world.busy = True
        await it.send(notice(60.0))
        await it.world.until("withdraw 60")
        await it.send(notice(60.3))
        await asyncio.sleep(0.05)
        assert it.world.events.count("is draining") == 1
        await it.send(notice(0.3))
        await it.world.until("withdraw 0", "goes")


async def test_signal_during_a_notice_makes_it_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        await it.send(notice(60.0))
        await it.world.until("reports drained")
        await it.send(PreemptionNotice(deadline_s=15.0))
        await it.world.until("goes")
        assert "withdraw 15" in it.world.events


async def test_acknowledging_cloud_is_notified_of_an_empty_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        await it.send(notice(60.0, acknowledges=True))
        await it.world.until("goes", "acknowledged")
        events = it.world.events
        assert events.index("reports drained") < events.index("goes") < events.index("acknowledged")


async def test_hint_blocks_new_requests_until_lifted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        await it.send(HINT)
        await it.world.until("no new work", "no new work")  # again: the manager may have been restarted
        await it.send(NONE)
        await it.world.until("new work")
        count = it.world.events.count("no new work")
        await asyncio.sleep(0.15)
        assert it.world.events.count("no new work") == count
        assert not {"goes", "is draining", "reports noticed", "reports spared"} & set(it.world.events)


async def test_notice_that_becomes_a_hint_never_lets_new_work_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        await it.send(notice(60.0))
        await it.world.until("reports drained")
        await it.send(HINT)
        await it.world.until("no new work", "reports spared")
        assert "new work" not in it.world.events


async def test_unreachable_manager_is_retried_until_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        it.world.deaf = True
        await it.send(notice(30.0))
        await asyncio.sleep(0.2)
        assert "goes" not in it.world.events, "there is time left"
        it.world.deaf = False
        await it.world.until("reports drained")
        it.world.deaf = True
        await it.send(NONE)
        await it.world.until("is up")
        await asyncio.sleep(0.1)
        assert "new work" not in it.world.events
        it.world.deaf = False
        await it.world.until("new work")


async def test_events_are_reported_in_order_when_the_scheduler_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_events, "ASK_DEADLINE_S", 0.1)
    monkeypatch.setattr(departure, "REPORTED_LATE_S", 0.1)
    async with stage(tmp_path, monkeypatch, away=True) as it:
        await it.send(notice(30.0))
        await it.world.until("withdraw 30")
        await asyncio.sleep(0.2)
        await it.send(NONE)
        await it.world.until("is up", "new work")
        it.system.spawn("cluster/scheduler", lambda: Reports(it.world))
        await it.world.until("reports spared")
    reported = [event for event in it.world.events if event.startswith("reports")]
    assert reported == ["reports noticed", "reports drained", "reports spared"]


async def test_empty_host_goes_without_a_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departure, "REPORTED_LATE_S", 0.1)
    async with stage(tmp_path, monkeypatch, away=True) as it:
        await it.send(PreemptionNotice(deadline_s=60.0))
        await it.world.until("goes")


async def test_invalid_deadline_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        for deadline_s in (float("nan"), -1.0):
            with pytest.raises(Refused, match="expected a number of seconds from 0 up"):
                await it.send(notice(deadline_s))
        await it.send(notice(float("inf")))
        await it.world.until("reports drained")


async def test_order_is_followed_when_the_node_agent_crashed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        it.world.busy = True
        await it.send(PreemptionNotice(deadline_s=60.0))
        await it.world.until("withdraw 60", "reports noticed")
        it.crash()
        await it.world.until("is draining", "withdraw 60")
        assert "reports noticed" not in it.world.events, "it is reported once"
        it.crash()
        it.world.busy = False
        await it.world.until("reports drained", "goes")
        it.crash()
        await it.world.until("goes")


async def test_notice_holds_when_the_node_agent_crashed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, monkeypatch) as it:
        await it.send(notice(60.0))
        await it.world.until("reports drained")
        it.crash()
        await it.world.until("is draining", "withdraw 60")
        await it.send(HINT)
        await it.world.until("is up", "no new work", "reports spared")
        it.crash()
        await it.world.until("no new work")
        await it.send(NONE)
        await it.world.until("new work")
        assert not {"goes", "is draining"} & set(it.world.events)
