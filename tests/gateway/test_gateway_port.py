"""A standalone gateway whose actor dies: it returns at the same port."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer
from gateway_runs import greedy, healthy

from bench.gateway.fake_server import Server
from gleaner.configs.schema import Config, Gateway
from gleaner.nodeagent.host import LOG_BYTES, ProcessLocation
from gleaner.nodeagent.host_services import RealHostServices
from gleaner.nodeagent.shutdown import Shutdown
from gleaner.nodeagent.standalone_gateway import GatewayOptions, run_gateway
from gleaner.supervisor import ActorSystem

GATEWAY = "rollout/gateway"
WITHIN_S = 60.0
DEATHS = 2


class Watched(RealHostServices):
    """A site that shows its actors to the test and opens no log."""

    def opened(self, system: ActorSystem) -> None:
        self.system = system

    def open_log(self, location: ProcessLocation, log_bytes: int = LOG_BYTES) -> None:
        pass


@asynccontextmanager
async def engine() -> AsyncIterator[str]:
    """The URL of a server that makes the same tokens for all clients."""
    server, app = Server(0.001, 64), web.Application()
    app.router.add_post("/generate", server.generate)
    app.router.add_route("*", "/{path:.*}", server.info)
    stepping = asyncio.create_task(server.steps())
    async with TestServer(app) as serving:
        yield str(serving.make_url("")).rstrip("/")
    stepping.cancel()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.02)


async def test_free_port_is_kept_across_restarts(tmp_path: Path) -> None:
    config = msgspec.structs.replace(Config(), gateway=Gateway(listen="127.0.0.1:0"))
    services, stop, urls = Watched(), Shutdown("test"), asyncio.Queue[str]()
    async with engine() as behind:
        location = ProcessLocation("gateway", "gateway", tmp_path)
        options = GatewayOptions(location, [behind], config, "", lambda url, first: urls.put_nowait(url))
        running = asyncio.create_task(run_gateway(options, stop, services))
        url = await asyncio.wait_for(urls.get(), WITHIN_S)
        await until(lambda: healthy(url) == [behind])
        calm = await greedy(url, [5, 9], 20)
        assert len(calm[0]) == 20
        for _ in range(DEATHS):
            killed = services.system.cell(GATEWAY)
            assert killed is not None
            killed.crash(RuntimeError("killed by the test"))
            await until(lambda killed=killed: services.system.cell(GATEWAY) not in (None, killed))
            await until(lambda: healthy(url) == [behind])
            assert await greedy(url, [5, 9], 20) == calm
        assert urls.empty(), "the URL was reported once"
        stop.set()
        assert await asyncio.wait_for(running, WITHIN_S) == 0
