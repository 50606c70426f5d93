"""Failed loads of weights.

The old weights are still served and the load is retried; finally the instance ends.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import msgspec
import pytest

from gleaner.actors.engine.builtin.host import BuiltinHost
from gleaner.actors.engine.builtin.settings import BuiltinSettings
from gleaner.actors.engine.servers.port import LoadFailed, ServerDied
from gleaner.actors.engine.worker import served_weights
from gleaner.actors.engine.worker.port import EngineHost, StepCommands, StepResult
from gleaner.actors.engine.worker.served_weights import ServedWeights
from gleaner.actors.engine.worker.settings import WorkerSettings
from gleaner.actors.engine.worker.worker import RolloutWorker
from gleaner.actors.protocol.instances import (
    FailedVersion,
    InstancesAre,
    ListInstances,
    NotLoaded,
    ServeNow,
    Serving,
)
from gleaner.actors.protocol.rollout import NotPublished, PublishVersion, Weights
from gleaner.actors.protocol.weights import Fetch, Fetched
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.fleet import failed_loads
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.actors.weights.control.file import ControlFile, has_writer, read_page
from gleaner.actors.weights.control.page import NONE, Page, State
from gleaner.configs.schema import Config
from gleaner.supervisor import Actor, Context, Done, Message, Refused, handles
from gleaner.supervisor.testing import TestSystem
from tests.actors.engine.servers.test_servers_host import fetched as without_tensors
from tests.actors.engine.servers.test_servers_sglang import published


def test_builtin_engine_keeps_weights_after_an_unfit_image(tmp_path: Path) -> None:
    host, good = BuiltinHost(BuiltinSettings.of(Config())), published(tmp_path)[1]
    other = msgspec.structs.replace(good, version=4, root=b"4", tensors=good.tensors[:-1])
    with pytest.raises(LoadFailed, match="lacks"):
        BuiltinHost(BuiltinSettings.of(Config())).turn(StepCommands(load=other))
    host.turn(StepCommands(load=good))
    turn = host.turn(StepCommands(load=other))
    assert (turn.version, turn.root) == (3, good.root)
    assert turn.load_failed.startswith("version 4 was not loaded: the image lacks")
    gone = msgspec.structs.replace(good, path=str(tmp_path / "gone"))
    assert "No such file" in host.turn(StepCommands(load=gone)).load_failed


class Stubborn:
    """Accepts version 1 at once, and each later version only at try `tries`, or at that of `takes`."""

    engines, cache_tokens, weight_tokens, device = 1, 0, 0, None

    def __init__(self, tries: int) -> None:
        self.tries, self.takes = tries, {1: 1}
        self.tried: Counter[int] = Counter()  # by version
        self.gate = threading.Event()
        self.gate.set()
        self._version: int | None = None

    def stage(self, fetched: Fetched) -> None:
        """Nothing to prepare."""

    def turn(self, commands: StepCommands) -> StepResult:
        failed = ""
        if (load := commands.load) is not None:
            assert self.gate.wait(60)
            self.tried[load.version] += 1
            if self.tried[load.version] >= self.takes.get(load.version, self.tries):
                self._version = load.version
            else:
                failed = "it does not fit"
        return StepResult(None, [], self._version, b"r%d" % (self._version or 0), True, load_failed=failed)

    def hurry(self) -> None: ...

    def close(self) -> None: ...


class Transfer(Actor):
    """Has every version."""

    @handles(Fetch)
    async def fetch(self, message: Fetch) -> Fetched:
        return msgspec.structs.replace(without_tensors(message.version), root=message.root)


class Fleet:
    """A manager, and instances on hosts of their own."""

    def __init__(self, directory: Path, head: TestSystem) -> None:
        self.directory, self.head = directory, head
        self.spots: dict[str, TestSystem] = {}
        self.pages: dict[str, ControlFile] = {}

    def manager(self) -> None:
        self.head.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(Config())))

    async def spot(self, name: str, host: EngineHost) -> None:
        spot = self.spots[name] = await TestSystem(self.directory, node=name, join=self.head).__aenter__()
        page = self.pages[name] = ControlFile(self.directory, f"{name}/engine")
        spot.spawn(f"{name}/transfer", Transfer)
        spot.spawn(
            f"{name}/engine",
            lambda: RolloutWorker(WorkerSettings.of(Config()), name, "preemptible", host, page),
        )

    def lives(self, name: str) -> bool:
        return self.spots[name].system.cell(f"{name}/engine") is not None

    def page(self, name: str) -> Page:
        return read_page(self.pages[name].path)

    async def serving(self) -> dict[str, int | None]:
        return {one.name.partition("/")[0]: one.version for one in (await self.seen()).instances}

    async def seen(self) -> InstancesAre:
        return await self.head.ask("rollout/manager", ListInstances(), InstancesAre)

    async def until(self, **serving: int) -> None:
        async with asyncio.timeout(60):
            while await self.serving() != serving:
                await asyncio.sleep(0.01)

    async def publish(self, version: int, *, ascending: bool = True, tried: bool = False) -> Message:
        weights = Weights(version=version, root=b"r%d" % version, sources=("s/transfer",))
        message = PublishVersion(weights=weights, ascending=ascending, tried=tried)
        return await self.head.ask("rollout/manager", message, Message, deadline_s=60.0)


@pytest.fixture
async def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(served_weights, "LOAD_AGAIN_S", 0.01)
    async with TestSystem(tmp_path, node="head") as head:
        head.spawn("rollout/balancer", lambda: LoadBalancer(4))
        fleet = Fleet(tmp_path, head)
        fleet.manager()
        yield fleet
        for spot in fleet.spots.values():
            await spot.__aexit__(None, None, None)


async def test_failed_load_is_tried_again(fleet: Fleet) -> None:
    host = Stubborn(tries=2)
    await fleet.spot("s", host)
    await fleet.publish(1)
    await fleet.until(s=1)
    assert (fleet.page("s").state, fleet.page("s").version) == (State.SERVING, 1)
    await fleet.publish(2)
    await fleet.until(s=2)
    assert fleet.lives("s")
    assert (fleet.page("s").version, fleet.page("s").failed_version) == (2, NONE)
    assert fleet.page("s").failures == 1
    assert not (await fleet.seen()).failed


async def test_instance_ends_when_only_its_own_loads_fail(
    fleet: Fleet,
) -> None:
    host = Stubborn(served_weights.LOAD_TRIES + 1)
    await fleet.spot("s", host)
    await fleet.spot("t", Stubborn(tries=1))
    await fleet.publish(1)
    await fleet.until(s=1, t=1)
    host.gate.clear()
    await fleet.publish(2)
    await fleet.until(s=1, t=2)
    host.gate.set()
    async with asyncio.timeout(60):
        while fleet.lives("s"):
            await asyncio.sleep(0.01)
    assert host.tried[2] == served_weights.LOAD_TRIES
    left = fleet.page("s")
    assert (left.state, left.version, left.failed_version) == (State.LOAD_FAILED, 1, 2)
    assert (left.tries, left.why) == (served_weights.LOAD_TRIES, "it does not fit")
    assert not has_writer(fleet.pages["s"].path)
    assert not (await fleet.seen()).failed


@pytest.mark.parametrize("instances", ["s", "st", "stuv"])
async def test_version_that_no_instance_loads_is_given_up(
    fleet: Fleet, instances: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_weights, "LOAD_TRIES", 1000)  # one may try thrice before another tries
    hosts = {name: Stubborn(tries=2000) for name in instances}
    for name, host in hosts.items():
        await fleet.spot(name, host)
    await fleet.publish(1)
    await fleet.until(**dict.fromkeys(instances, 1))
    before = {one.name: one.incarnation for one in (await fleet.seen()).instances}
    await fleet.publish(2)
    async with asyncio.timeout(60):
        while not (seen := await fleet.seen()).failed:
            await asyncio.sleep(0.01)
    assert (seen.published, seen.failed) == (1, [FailedVersion(version=2, why="it does not fit")])
    await fleet.until(**dict.fromkeys(instances, 1))
    tried = sum(host.tried[2] for host in hosts.values())
    assert tried >= failed_loads.LOADS

    fleet.head.kill("rollout/manager")  # the decision is in the journal
    fleet.manager()
    await fleet.until(**dict.fromkeys(instances, 1))
    seen = await fleet.seen()
    assert [one.version for one in seen.failed] == [2]
    assert {one.name: one.incarnation for one in seen.instances} == before, "no instance was restarted"
    for ascending in (True, False):
        with pytest.raises(Refused, match="instances could not load it: it does not fit"):
            await fleet.publish(2, ascending=ascending)
    for host in hosts.values():  # one instance may still try version 2
        host.takes[3] = 1
    await fleet.publish(3)
    await fleet.until(**dict.fromkeys(instances, 3))
    assert sum(host.tried[2] for host in hosts.values()) <= tried + len(hosts), "each once more at most"


async def test_tried_version_is_published_after_its_first_load(fleet: Fleet) -> None:
    hosts = {name: Stubborn(tries=1) for name in "st"}
    for name, host in hosts.items():
        await fleet.spot(name, host)
    await fleet.publish(1)
    await fleet.until(s=1, t=1)
    assert await fleet.publish(2, tried=True) == Done()
    await fleet.until(s=2, t=2)
    assert await fleet.publish(2, tried=True) == Done(), "a repetition changes nothing"
    with pytest.raises(Refused, match="go on with 3"):
        await fleet.publish(0, tried=True)


async def test_version_that_fails_its_trial_is_never_published(fleet: Fleet) -> None:
    hosts = {name: Stubborn(tries=100) for name in "st"}
    for name, host in hosts.items():
        await fleet.spot(name, host)
    await fleet.publish(1)
    await fleet.until(s=1, t=1)
    answer = await fleet.publish(2, tried=True)
    assert answer == NotPublished(version=2, why="it does not fit")
    await fleet.until(s=1, t=1)
    assert sorted(host.tried[2] for host in hosts.values()) == [0, 1], "no other instance tried version 2"
    seen = await fleet.seen()
    assert (seen.published, seen.failed) == (1, [])
    fleet.head.kill("rollout/manager")
    fleet.manager()
    await fleet.until(s=1, t=1)
    assert (await fleet.seen()).published == 1


class Mortal(Stubborn):
    """A host whose engine dies in its first load."""

    def turn(self, commands: StepCommands) -> StepResult:
        if commands.load is not None:
            raise ServerDied("the server has no room for it")
        return super().turn(commands)


async def test_death_in_a_load_leaves_version_and_reason(
    tmp_path: Path,
) -> None:
    page = ControlFile(tmp_path, "s/engine")
    async with (
        TestSystem(tmp_path, node="head") as head,
        TestSystem(tmp_path, node="s", join=head) as spot,
    ):
        head.spawn("rollout/balancer", lambda: LoadBalancer(4))
        head.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(Config())))
        spot.spawn("s/transfer", Transfer)
        spot.spawn(
            "s/engine",
            lambda: RolloutWorker(WorkerSettings.of(Config()), "s", "preemptible", Mortal(1), page),
        )
        weights = Weights(version=1, root=b"r1", sources=("s/transfer",))
        await head.ask("rollout/manager", PublishVersion(weights=weights), Done)
        async with asyncio.timeout(60):
            while spot.system.cell("s/engine") is not None:
                await asyncio.sleep(0.01)
    left = read_page(page.path)
    assert (left.state, left.version, left.failed_version) == (State.LOAD_FAILED, -1, 1)
    assert left.why == "the server has no room for it"


class Waiting:
    """The context of a worker, as its weights need it: every version is present, messages are dropped."""

    name, incarnation = "s/engine", 1
    log = logging.LoggerAdapter(logging.getLogger("test"))

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.wanted = Weights(version=2, root=b"r2", sources=("s/transfer",))

    def now(self) -> float:
        return 0.0

    def background(self, work: Coroutine[object, object, None], _: str) -> None:
        self.tasks.append(asyncio.create_task(work))

    @asynccontextmanager
    async def wait(self, *_: object, **__: object) -> AsyncIterator[None]:
        yield

    async def ask(
        self, _: str, message: Fetch | Serving | NotLoaded, **__: object
    ) -> Fetched | Done | ServeNow:
        if isinstance(message, Serving):
            return Done()
        if isinstance(message, NotLoaded):
            return ServeNow(weights=self.wanted)
        return msgspec.structs.replace(without_tensors(message.version), root=message.root)


async def test_repeated_weights_are_not_tried_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_weights, "LOAD_AGAIN_S", 0.0)
    tried = 0

    async def stage(_: Fetched) -> None: ...

    async def load(_: Fetched) -> str:
        nonlocal tried
        tried += 1
        return "it does not fit"

    ctx = Waiting()
    weights = ServedWeights(cast(Context, ctx), Config().engine, "s", "reserved", (stage, load))
    for _ in range(3):
        weights.want(ctx.wanted)
    done, rest = await asyncio.wait(ctx.tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in rest:
        task.cancel()
    await asyncio.gather(*ctx.tasks, return_exceptions=True)
    assert [str(task.exception()) for task in done if task.exception()]
    assert tried == served_weights.LOAD_TRIES
    figures = weights.summary()
    assert (figures["version"], figures["failed_version"], figures["failed_tries"]) == (-1, 2, tried)
    assert figures["failed_why"] == "it does not fit"
