"""A standalone gateway in front of engines of two models: no response mixes both models."""

import asyncio
import urllib.error
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from gateway_runs import greedy, healthy, post, refused
from test_gateway_port import WITHIN_S, Watched, until

from bench.gateway.fake_server import Server
from gleaner.configs.schema import Config, Engine, Gateway
from gleaner.nodeagent.host import ProcessLocation
from gleaner.nodeagent.shutdown import Shutdown
from gleaner.nodeagent.standalone_gateway import GatewayOptions, run_gateway


class Site(Watched):
    """A site that keeps the lines for the user."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


class Named(Server):
    """Makes the same tokens as any other, and counts its requests."""

    def __init__(self, model: str) -> None:
        super().__init__(0.001, 64)
        self.model, self.asked = model, 0

    async def generate(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        return await super().generate(request)

    async def info(self, request: web.Request) -> web.Response:
        facts: dict[str, Any] = msgspec.json.decode((await super().info(request)).body)  # type: ignore[arg-type]
        named = {"served_model_name": self.model, "model_path": self.model, "architectures": ["Fake"]}
        return web.json_response(facts | named)


@asynccontextmanager
async def engine(model: str) -> AsyncIterator[tuple[str, Named]]:
    server, app = Named(model), web.Application()
    app.router.add_post("/generate", server.generate)
    app.router.add_route("*", "/{path:.*}", server.info)
    stepping = asyncio.create_task(server.steps())
    async with TestServer(app) as serving:
        yield str(serving.make_url("")).rstrip("/"), server
    stepping.cancel()


@asynccontextmanager
async def gateway(state: Path, *behind: str) -> AsyncIterator[tuple[Site, "asyncio.Queue[str]"]]:
    """A gateway in front of these engines: its site, and its URL once it serves."""
    engine = Engine(stall_s=2.0)  # so that an engine's health is checked often
    config = msgspec.structs.replace(Config(), gateway=Gateway(listen="127.0.0.1:0"), engine=engine)
    services, stop, urls = Site(), Shutdown("test"), asyncio.Queue[str]()
    options = GatewayOptions(
        ProcessLocation("gateway", "gateway", state),
        behind,
        config,
        "",
        lambda url, first: urls.put_nowait(url),
    )
    running = asyncio.create_task(run_gateway(options, stop, services))
    try:
        yield services, urls
    finally:
        stop.set()
        assert await asyncio.wait_for(running, WITHIN_S) == 0


async def test_engine_of_another_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with engine("small") as (first, small), engine("large") as (second, large):
        async with gateway(tmp_path, first, second) as (services, urls):
            url = await asyncio.wait_for(urls.get(), WITHIN_S)
            await until(lambda: healthy(url) == [first])
            await until(lambda: second in refused(url))
            why = "its model is 'large', the others serve 'small'"
            assert (await asyncio.to_thread(refused, url))[second].startswith(why)
            assert any(line.startswith(f"engine {second} is refused: {why}") for line in services.lines)
            taken = [line for line in services.lines if line.startswith(f"engine {first}: ")]
            assert taken == [
                f"engine {first}: SGLang (sglang protocol): model small, Fake, context 4096 tokens"
            ]
            with pytest.raises(urllib.error.HTTPError) as problem:
                await asyncio.to_thread(post, f"{url}/add_worker", {"url": second})
            with problem.value as answer:
                assert answer.code == 409
                assert msgspec.json.decode(answer.read())["error"]["type"] == "OtherModel"
            probes = large.asked
            await asyncio.gather(*(greedy(url, [5, 9], 20) for _ in range(8)))
            assert (large.asked, probes) == (0, 0)
            assert small.asked >= 8

            large.model = "small"  # the user starts the right model there
            await until(lambda: set(healthy(url)) == {first, second})
            assert await asyncio.to_thread(refused, url) == {}


async def test_engine_replaced_by_another_model_is_found(
    tmp_path: Path,
) -> None:
    async with engine("small") as (first, _small), engine("small") as (second, other):
        async with gateway(tmp_path, first, second) as (services, urls):
            url = await asyncio.wait_for(urls.get(), WITHIN_S)
            await until(lambda: set(healthy(url)) == {first, second})
            other.model = "large"
            await until(lambda: healthy(url) == [first])
            await until(lambda: second in refused(url))
            assert any(line.startswith(f"engine {second} is refused: ") for line in services.lines)
            asked = other.asked
            await asyncio.gather(*(greedy(url, [5, 9], 20) for _ in range(8)))
            assert other.asked == asked

            other.model = "small"
            await until(lambda: set(healthy(url)) == {first, second})
            assert any(line.startswith(f"engine {second} is used again: ") for line in services.lines)
            assert await asyncio.to_thread(refused, url) == {}


async def test_state_directory_belongs_to_one_model(tmp_path: Path) -> None:
    async with engine("small") as (first, _), engine("large") as (second, large):
        async with gateway(tmp_path, first) as (services, urls):
            await asyncio.wait_for(urls.get(), WITHIN_S)
        async with gateway(tmp_path, second) as (services, urls):
            await until(lambda: any("is refused: its model is 'large'" in line for line in services.lines))
            assert urls.empty()
            large.model = "small"
            await asyncio.wait_for(urls.get(), WITHIN_S)


async def test_removed_refused_engine_is_not_probed_again(tmp_path: Path) -> None:
    async with engine("small") as (first, _), engine("large") as (second, large):
        async with gateway(tmp_path, first, second) as (_services, urls):
            url = await asyncio.wait_for(urls.get(), WITHIN_S)
            await until(lambda: second in refused(url))
            with suppress(urllib.error.HTTPError):
                await asyncio.to_thread(post, f"{url}/remove_worker", {"url": second})
            large.model = "small"
            await asyncio.sleep(1.5)  # longer than the period of the looks
            assert await asyncio.to_thread(healthy, url) == [first]
