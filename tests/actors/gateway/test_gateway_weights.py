"""Weight updates of a gateway's own engines: load, publish, refuse.

A version is published once an engine has loaded it, and refused with the engine's message. A journaled
version that no engine loads does not stop the gateway."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from aiohttp import web

from gleaner.actors.engine.servers.factory import sglang_host
from gleaner.actors.engine.servers.foreign_facts import EngineFacts
from gleaner.actors.engine.worker import served_weights
from gleaner.actors.engine.worker.settings import WorkerSettings
from gleaner.actors.engine.worker.worker import RolloutWorker
from gleaner.actors.gateway.fleet import CannotLoad, Failed, VersionTaken
from gleaner.actors.gateway.folder_weights import FolderWeights, in_folder
from gleaner.actors.gateway.job_fleet import HoldableRequests
from gleaner.actors.gateway.model_check import ModelCheck
from gleaner.actors.gateway.own_fleet import EngineAt, OwnFleet
from gleaner.actors.protocol.instances import InstancesAre, ListInstances
from gleaner.actors.protocol.requests import Generate, Generated
from gleaner.actors.protocol.rollout import PublishVersion
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.configs.load import from_tree
from gleaner.supervisor import Actor, Done
from gleaner.supervisor.testing import TestSystem

WORDS = "Failed to get weights iterator: no file"


@dataclass
class Server:
    """The weight routes of SGLang. good: folders that it can load; half: folders that it loads in part;
    broken: folders that it loads and whose tensors hold NaN."""

    good: set[str] = field(default_factory=lambda: {"/first"})
    half: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    path: str = "/first"
    version: str = "default"
    holds: str = "/first"  # the folder whose bytes are in its memory
    asked: list[str] = field(default_factory=list)
    url: str = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Server"]:
        app = web.Application()
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/update_weights_from_disk", self.update)
        app.router.add_route("*", "/{path:.*}", self.info)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def update(self, request: web.Request) -> web.Response:
        body = await request.json()
        path = body["model_path"]
        self.asked.append(path)
        if path in self.half:
            self.holds = "mixed"
        if path not in self.good | self.broken:
            return web.json_response({"success": False, "message": WORDS}, status=400)
        self.holds = self.path = path
        self.version = body["weight_version"]
        return web.json_response({"success": True, "message": ""})

    async def info(self, _: web.Request) -> web.Response:
        return web.json_response(
            {"model_path": self.path, "weight_version": self.version, "success": True, "message": ""}
        )

    async def generate(self, request: web.Request) -> web.StreamResponse:
        count = (await request.json())["sampling_params"]["max_new_tokens"]
        reply = web.StreamResponse()
        await reply.prepare(request)
        logprob = "null" if self.holds in self.broken else "-0.5"  # JSON has no NaN
        rows = ",".join(f"[{logprob}, 7, null]" for _ in range(count))
        meta = (
            f'"completion_tokens": {count}, "output_token_logprobs": [{rows}], '
            f'"finish_reason": {{"type": "length"}}, "weight_version": "{self.version}"'
        )
        await reply.write(f'data: {{"meta_info": {{{meta}}}}}\n\ndata: [DONE]\n\n'.encode())
        return reply


class Holder(Actor):
    """The actor that owns the gateway's fleet."""

    def __init__(self, world: "World") -> None:
        self.world = world

    async def on_start(self) -> None:
        self.world.fleet = OwnFleet(self.ctx, cast(HoldableRequests, None), self.world)
        self.world.ready.set()


class World:
    """A manager and engines by URL; fills `EngineControl`."""

    def __init__(self, directory: Path, head: TestSystem) -> None:
        self.directory, self.head = directory, head
        self.known: dict[str, EngineAt] = {}
        self.models = cast(ModelCheck, None)  # `add` of the fleet is not called
        self.hosts: dict[str, TestSystem] = {}
        self.fleet: OwnFleet
        self.ready = asyncio.Event()
        head.spawn("rollout/balancer", lambda: LoadBalancer(4))
        self.manager()
        head.spawn("rollout/gateway", lambda: Holder(self))

    def manager(self) -> None:
        self.head.spawn(
            "rollout/manager",
            lambda: RolloutManager(ManagerSettings.of(from_tree({"rollout": {"max_new_tokens": 16}}, "t"))),
        )

    async def look(self, url: str, api_key: str) -> EngineFacts:
        raise AssertionError("engines are added by `add` here")

    async def start(self, engine: EngineAt) -> None: ...

    async def stop(self, name: str) -> None: ...

    async def add(self, name: str, server: Server) -> None:
        config = from_tree(
            {"engine": {"kind": "sglang", "url": server.url}, "rollout": {"max_new_tokens": 16}}, "t"
        )
        host = self.hosts[name] = await TestSystem(self.directory, node=name, join=self.head).__aenter__()
        host.spawn(f"{name}/transfer", lambda: FolderWeights(0))
        host.spawn(
            f"{name}/engine",
            lambda: RolloutWorker(WorkerSettings.of(config), name, "preemptible", sglang_host(config)),
        )

    async def seen(self) -> InstancesAre:
        return await self.head.ask("rollout/manager", ListInstances(), InstancesAre)

    async def until(self, *versions: int) -> None:
        async with asyncio.timeout(60):
            while [one.version for one in (await self.seen()).instances] != list(versions):
                await asyncio.sleep(0.01)

    async def generate(self, name: str) -> Generated:
        prompt = array("I", [5, 6]).tobytes()
        ask = Generate(id=name, prompt=prompt, max_new_tokens=4, seed=1)
        return await self.head.ask("rollout/manager", ask, Generated, deadline_s=60.0)


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(served_weights, "LOAD_AGAIN_S", 0.01)
    async with TestSystem(tmp_path, node="head") as head:
        world = World(tmp_path, head)
        await world.ready.wait()
        await world.fleet.open()
        yield world
        for host in world.hosts.values():
            await host.__aexit__(None, None, None)


async def test_unloadable_folder_is_refused_and_changes_nothing(
    world: World,
) -> None:
    async with Server(half={"/half"}).running() as one, Server(half={"/half"}).running() as other:
        await world.add("a", one)
        await world.add("b", other)
        await world.until(0, 0)
        before = {it.name: it.incarnation for it in (await world.seen()).instances}
        for path in ("/nowhere", "/half"):
            with pytest.raises(CannotLoad, match=WORDS):
                await world.fleet.update_weights(path, 5)
            await world.until(0, 0)
        assert {one.holds, other.holds} == {"/first"}, "the partly loaded version is loaded again"
        assert [len(one.asked), len(other.asked)] in ([4, 0], [0, 4]), "the other engine was not asked"
        assert (await world.seen()).published == 0
        assert {it.name: it.incarnation for it in (await world.seen()).instances} == before
        assert (await world.generate("r")).version_end == 0

        for server in (one, other):
            server.good.add("/second")
        assert await world.fleet.update_weights("/second/", 5) == 5
        await world.until(5, 5)
        world.head.kill("rollout/manager")
        world.manager()
        await world.until(5, 5)


@pytest.mark.parametrize("published", ["as found", "given"])
async def test_folder_of_nan_is_not_published_and_engine_reverts(world: World, published: str) -> None:
    async with (
        Server(good={"/first", "/second"}, broken={"/nan"}).running() as one,
        Server(good={"/first", "/second"}, broken={"/nan"}).running() as other,
    ):
        await world.add("a", one)
        await world.add("b", other)
        await world.until(0, 0)
        served, folder = 0, "/first"
        if published == "given":
            served, folder = await world.fleet.update_weights("/second", 5), "/second"
        await world.until(served, served)
        names = {one.version, other.version}
        before = {it.name: it.incarnation for it in (await world.seen()).instances}
        for version in (6, 7):
            with pytest.raises(CannotLoad, match="log-prob"):
                await world.fleet.update_weights("/nan", version)
            await world.until(served, served)
            assert {one.holds, other.holds} == {folder}
            assert {one.version, other.version} == names
            assert (await world.generate(f"r{version}")).version_end == served
        assert (await world.seen()).published == served
        assert {it.name: it.incarnation for it in (await world.seen()).instances} == before, "no restarts"


async def test_version_is_one_folder_and_increases(world: World) -> None:
    with pytest.raises(Failed, match="no instance is there"):
        await world.fleet.update_weights("/second", 5)
    async with Server(good={"/first", "/second", "/third"}).running() as server:
        await world.add("a", server)
        await world.until(0)
        assert await world.fleet.update_weights("/second", 5) == 5
        assert await world.fleet.update_weights("/second/", 5) == 5, "a repeated request is applied once"
        assert server.asked == ["/second"]
        with pytest.raises(VersionTaken, match="version 5 was published before with other bytes"):
            await world.fleet.update_weights("/third", 5)
        with pytest.raises(VersionTaken, match="go on with 6"):
            await world.fleet.update_weights("/third", 4)
        assert (server.asked, server.holds) == (["/second"], "/second")
        assert await world.fleet.update_weights("/third", None) == 6


async def test_server_with_a_foreign_folder_loads_ours(world: World) -> None:
    async with Server(good={"/first", "/second"}, path="/theirs", version="5").running() as server:
        await world.add("a", server)
        await world.until(0)
        assert await world.fleet.update_weights("/second", 5) == 5
        assert server.holds == "/second"


@pytest.mark.parametrize("engines", ["a", "ab"])
async def test_journaled_version_that_no_engine_loads_is_skipped(world: World, engines: str) -> None:
    bad = PublishVersion(weights=in_folder(5, "/nowhere"))
    await world.head.ask("rollout/manager", bad, Done)  # as earlier releases did, without a trial
    async with Server().running() as one, Server().running() as other:
        for name, server in zip(engines, (one, other), strict=False):
            await world.add(name, server)
        await world.until(*[0] * len(engines))
        assert [(it.version, WORDS in it.why) for it in (await world.seen()).failed] == [(5, True)]
        assert (await world.generate("r")).version_end == 0
        one.good.add("/second")
        other.good.add("/second")
        with pytest.raises(VersionTaken):
            await world.fleet.update_weights("/second", 5)
        assert await world.fleet.update_weights("/second", None) == 6
