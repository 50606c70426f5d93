"""`NoticeWatcher`: the notices that the node agent gets, for every behaviour of a metadata service."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gleaner.actors.protocol.cluster import CloudNotice, HandedOver
from gleaner.nodeagent.notices import watcher
from gleaner.nodeagent.notices.cloud import Channel, CloudName, FindCloud, PollFailed
from gleaner.nodeagent.notices.policy import NOTHING, Finding
from gleaner.nodeagent.notices.watcher import NoticeWatcher
from gleaner.supervisor import Actor, Done, Refused, handles
from gleaner.supervisor.testing import TestSystem

GOING = Finding("notice", "terminate", "a", 100.0, acknowledges=True)


class FakeCloud:
    """A cloud that gives a test's answers."""

    name: CloudName = "azure"

    def __init__(self) -> None:
        self.answer: Finding | Exception = NOTHING
        self.looks = 0
        self.acknowledged: list[str] = []
        self.channels: Sequence[Channel] = (Channel("events", self._look, 0.01, 0.01),)

    async def _look(self, at_once: bool) -> Finding:
        self.looks += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def acknowledge(self, id: str) -> None:
        if isinstance(self.answer, Exception):
            raise self.answer
        self.acknowledged.append(id)

    async def close(self) -> None:
        """Nothing is open."""


class Agent(Actor):
    """A node agent that records its notices."""

    def __init__(self, received: list[CloudNotice]) -> None:
        self._received = received

    @handles(CloudNotice)
    async def noticed(self, message: CloudNotice) -> None:
        self._received.append(message)


class Stage:
    def __init__(self, system: TestSystem, cloud: FakeCloud) -> None:
        self.system, self.cloud = system, cloud
        self.received: list[CloudNotice] = []

    async def until(self, condition: object) -> None:
        async with asyncio.timeout(60.0):
            while not condition():  # type: ignore[operator]
                await asyncio.sleep(0.005)

    async def until_notice(self, kind: str) -> None:
        await self.until(lambda: self.received and self.received[-1].kind == kind)

    def figures(self) -> dict[str, str | int | float]:
        cell = self.system.system.cell("spot-1/notices")
        assert cell is not None
        return next(one for one in self.system.system.state().actors if one.name == "spot-1/notices").figures


@asynccontextmanager
async def stage(tmp_path: Path, find: FindCloud | None = None) -> AsyncIterator[Stage]:
    cloud = FakeCloud()

    async def found() -> FakeCloud:
        return cloud

    async with TestSystem(tmp_path, node="spot-1") as system:
        it = Stage(system, cloud)
        system.spawn("spot-1/agent", lambda: Agent(it.received))
        system.spawn("spot-1/notices", lambda: NoticeWatcher(find or found))
        yield it


async def test_agent_gets_a_notice_and_its_withdrawal(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        await it.until_notice("none")
        it.cloud.answer = GOING
        await it.until_notice("notice")
        assert 95.0 < it.received[-1].deadline_s <= 100.0
        assert (it.received[-1].source, it.received[-1].why) == ("azure", "terminate")
        assert it.figures()["notice"] == 2
        it.cloud.answer = NOTHING
        await it.until_notice("none")
        assert [one.kind for one in it.received] == ["none", "notice", "none"]


async def test_notice_survives_failing_looks_with_one_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "FIRST_BACKOFF_S", 0.01)
    caplog.set_level("INFO")
    async with stage(tmp_path) as it:
        it.cloud.answer = GOING
        await it.until_notice("notice")
        it.cloud.answer = PollFailed("status 500")
        looks = it.cloud.looks
        await it.until(lambda: it.cloud.looks > looks + 5)
        assert it.received[-1].kind == "notice"
        assert it.figures()["problem"] == "events: status 500"
        assert int(it.figures()["looks_failed"]) >= 5
        it.cloud.answer = NOTHING
        await it.until_notice("none")
        assert it.figures()["problem"] == ""
    messages = [record.message for record in caplog.records]
    assert sum("cannot be asked" in text for text in messages) == 1
    assert sum("answers again" in text for text in messages) == 1


async def test_failing_service_is_asked_ever_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def quick(delay_s: float, result: object = None) -> object:
        pauses.append(delay_s)
        return await sleep(min(delay_s, 0.001), result)

    monkeypatch.setattr(watcher.asyncio, "sleep", quick)
    async with stage(tmp_path) as it:
        it.cloud.answer = PollFailed("no route")
        await it.until(lambda: it.cloud.looks > 12)
    waits = [pause_s for pause_s in pauses if pause_s >= 0.5]
    assert max(waits) <= watcher.MAX_BACKOFF_S
    assert waits[-1] >= watcher.MAX_BACKOFF_S / 2
    assert waits[0] <= watcher.FIRST_BACKOFF_S


async def test_restarted_agent_gets_the_notice_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "TELL_AGAIN_S", 0.05)
    monkeypatch.setattr(watcher, "LOOK_S", 0.02)
    async with stage(tmp_path) as it:
        it.cloud.answer = GOING
        await it.until(lambda: [one.kind for one in it.received].count("notice") >= 3)


async def test_cloud_is_notified_of_an_empty_host(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        await it.until_notice("none")
        await it.system.ask("spot-1/notices", HandedOver(), Done)
        assert it.cloud.acknowledged == [], "there was nothing to acknowledge"
        it.cloud.answer = GOING
        await it.until_notice("notice")
        await it.system.ask("spot-1/notices", HandedOver(), Done)
        assert it.cloud.acknowledged == ["a"]
        it.cloud.answer = PollFailed("status 400")
        with pytest.raises(Refused, match="azure: status 400"):
            await it.system.ask("spot-1/notices", HandedOver(), Done)


async def test_host_without_a_cloud_gets_no_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "FIND_AFTER_S", (0.0, 0.01))
    tries: list[int] = []

    async def find_none() -> None:
        tries.append(1)

    async with stage(tmp_path, find_none) as it:
        await it.until(lambda: it.figures().get("source") == "none found")
        assert len(tries) == 2
        assert it.received == []
