"""All clients at once on a real manager with real engines, both killed in the middle; no client sees it."""

import asyncio
from pathlib import Path

from gleaner.actors.gateway.calls import HandlerContext, ServedModel
from gleaner.actors.gateway.routes import ROUTES
from gleaner.actors.gateway.server import HttpServer
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.configs.schema import Gateway as Settings
from tests.actors.gateway.clients import everyone, roll
from tests.actors.gateway.gateway_world import Letters
from tests.actors.gateway.test_gateway_plane import gateway_of
from tests.actors.rollout.test_actors_rollout_plane import NEW_TOKENS, plane

PROMPT = [5, 9, 11]
LIMIT = 24


async def test_engine_and_manager_death_is_invisible_to_clients(tmp_path: Path) -> None:
    async with plane(tmp_path) as running:
        host = await running.host("s1")
        gateway, fleet = await gateway_of(running)
        await running.submit()  # publishes version 3
        served = ServedModel(model="tiny", max_prompt_tokens=16, max_new_tokens=NEW_TOKENS)
        server = HttpServer(HandlerContext(gateway, fleet, Settings(), served, Letters()), ROUTES)
        url = await server.start("127.0.0.1", 0)
        await running.responses()
        running.hold.begin(turns=10)
        rollouts = {
            name: asyncio.create_task(client(url, "tiny", PROMPT, LIMIT))
            for name, client in everyone.ALL.items()
        }
        rollouts["named"] = asyncio.create_task(roll.rollout(url, "tiny", PROMPT, LIMIT, rid="named"))
        async with asyncio.timeout(60):
            while (figures := await running.figures()).executing < 4 or not figures.pending:
                await asyncio.sleep(0.01)
        under_way = [name for name, rollout in rollouts.items() if not rollout.done()]
        running.head.kill("rollout/manager")
        host.kill("s1/engine")
        other = await running.host("s2")
        running.head.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(running.config)))
        running.hold.end()
        async with asyncio.timeout(60):
            for rollout in rollouts.values():
                (await rollout).check(LIMIT)
        assert len(under_way) >= len(rollouts) // 2, "most requests were in the middle"
        again = await roll.rollout(url, "tiny", PROMPT, LIMIT, rid="named")
        assert again == rollouts["named"].result(), "the same request, asked again"
        await server.close()
        for system in (host, other):
            await system.system.close()
