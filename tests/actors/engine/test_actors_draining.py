"""`engine.drain_s`: running requests when newer weights arrive.

They end under their weights, or continue under the newer ones. A request that continues keeps the tokens
that it has.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from test_actors_load_failed import Transfer

from gleaner.actors.engine.servers.host import RemoteHost
from gleaner.actors.engine.servers.port import Ask, Chunk
from gleaner.actors.engine.worker.settings import WorkerSettings
from gleaner.actors.engine.worker.worker import RolloutWorker
from gleaner.actors.protocol.requests import Generate, Generated
from gleaner.actors.protocol.rollout import PublishVersion, RolloutFigures, RolloutStatus, Weights
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.configs.load import from_tree
from gleaner.supervisor import Done
from gleaner.supervisor.testing import TestSystem
from tests.actors.engine.servers.test_servers_host import ScriptedServer

TOKENS = 20


class Steady(ScriptedServer):
    """Makes `allowed` tokens one by one, and reports which weights it serves."""

    def __init__(self) -> None:
        super().__init__()
        self.chunk_tokens = 1
        self.allowed = 0

    async def commit(self) -> str:
        self.version_name = await super().commit()
        return self.version_name

    async def stream(self, ask: Ask) -> AsyncIterator[Chunk]:
        async for chunk in super().stream(ask):
            if "probe" not in ask.rid:
                while not self.allowed:
                    await asyncio.sleep(0.005)
                self.allowed -= 1
            yield chunk


@pytest.mark.parametrize(("drain_s", "versions"), [(30.0, [3]), (0.2, [3, 4]), (0.0, [3, 4])])
async def test_requests_end_within_the_drain_or_continue_after(
    tmp_path: Path, drain_s: float, versions: list[int]
) -> None:
    server = Steady()
    config = from_tree({"engine": {"drain_s": drain_s}, "rollout": {"max_new_tokens": TOKENS}}, "test")
    host = RemoteHost(server, stall_s=20.0, serve_s=20.0)
    async with (
        TestSystem(tmp_path, node="head") as head,
        TestSystem(tmp_path, node="s", join=head) as spot,
    ):
        head.spawn("rollout/balancer", lambda: LoadBalancer(4))
        head.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(config)))
        spot.spawn("s/transfer", Transfer)
        spot.spawn("s/engine", lambda: RolloutWorker(WorkerSettings.of(config), "s", "preemptible", host))

        async def figures() -> RolloutFigures:
            return await head.ask("rollout/manager", RolloutStatus(), RolloutFigures)

        async def publish(version: int) -> None:
            weights = Weights(version=version, root=b"r", sources=("s/transfer",))
            await head.ask("rollout/manager", PublishVersion(weights=weights), Done)

        async with asyncio.timeout(60):
            await publish(3)
            while not (await figures()).serving_preemptible:
                await asyncio.sleep(0.01)
            prompt = array("I", [7, 8, 9]).tobytes()
            asked = Generate(id="one", prompt=prompt, max_new_tokens=TOKENS, temperature=0.0, seed=0)
            answer = asyncio.create_task(head.ask("rollout/manager", asked, Generated, deadline_s=60.0))
            server.allowed = 5
            while (await figures()).tokens_collected < 5:
                await asyncio.sleep(0.01)
            await publish(4)
            if versions == [3]:
                while (await figures()).serving_preemptible:
                    await asyncio.sleep(0.01)
            else:
                while server.version_name != "4":
                    await asyncio.sleep(0.01)
            server.allowed = TOKENS
            made = await answer
            assert [span.version for span in made.versions] == versions
            assert array("I", made.tokens).tolist() == list(range(103, 103 + TOKENS)), (
                "no token twice or lost"
            )
            while server.version_name != "4" or not (await figures()).serving_preemptible:
                await asyncio.sleep(0.01)
