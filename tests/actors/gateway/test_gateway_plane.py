"""Gateway on a real manager with real engines: the client reads a whole response across deaths."""

import asyncio
from array import array
from pathlib import Path

import pytest

from gleaner.actors.gateway.ask import Ask, End, Piece
from gleaner.actors.gateway.fleet import Fleet
from gleaner.actors.gateway.gateway import Gateway
from gleaner.actors.gateway.job_fleet import JobFleet
from gleaner.actors.protocol.sampling_params import Sampling
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.configs.schema import Gateway as Settings
from tests.actors.rollout.test_actors_rollout_plane import NEW_TOKENS, Plane, plane


class NoDoor:
    async def start(self) -> str:
        return "http://nowhere"

    async def close(self) -> None:
        return None


async def gateway_of(running: Plane) -> tuple[Gateway, Fleet]:
    made: list[tuple[Gateway, Fleet]] = []

    def door(gateway: Gateway, fleet: Fleet) -> NoDoor:
        made.append((gateway, fleet))
        return NoDoor()

    running.head.spawn("rollout/gateway", lambda: Gateway(Settings(), door, JobFleet))
    async with asyncio.timeout(60):
        while not made:
            await asyncio.sleep(0.01)
    return made[0]


def ask(id: str) -> Ask:
    sampling = Sampling(ignore_eos=True)
    return Ask(id, array("I", [5, 9, 11]), NEW_TOKENS, seed=7, sampling=sampling, deadline_s=60.0)


async def test_stream_keeps_its_tokens_across_engine_and_manager_death(
    tmp_path: Path,
) -> None:
    async with plane(tmp_path) as running:
        host = await running.host("s1")
        gateway, fleet = await gateway_of(running)
        await running.submit()  # publishes version 3
        calm: list[Piece | End] = [item async for item in gateway.stream(ask("calm"))]
        await running.responses()
        running.hold.begin(turns=15)
        tokens: list[int] = []
        logprobs: list[float] = []
        stormy = 0
        async for item in gateway.stream(ask("storm")):
            if isinstance(item, End):
                assert item == calm[-1]
                break
            tokens += item.tokens
            logprobs += item.logprobs
            if len(tokens) >= 10 and not stormy:
                stormy = len(tokens)
                running.head.kill("rollout/manager")
                host.kill("s1/engine")
                other = await running.host("s2")
                running.head.spawn(
                    "rollout/manager", lambda: RolloutManager(ManagerSettings.of(running.config))
                )
                running.hold.end()
        assert 10 <= stormy < NEW_TOKENS, "something died in the middle"
        assert tokens == [token for item in calm if isinstance(item, Piece) for token in item.tokens]
        calmly = [one for item in calm if isinstance(item, Piece) for one in item.logprobs]
        assert logprobs == pytest.approx(calmly, abs=1e-4)  # another batch rounds otherwise
        assert (await fleet.versions()).applied == 3
        await fleet.probe()
        for system in (host, other):
            await system.system.close()


async def test_abort_ends_decoding_with_the_tokens_so_far(tmp_path: Path) -> None:
    async with plane(tmp_path) as running:
        host = await running.host("s1")
        gateway, _ = await gateway_of(running)
        await running.submit()
        await running.responses()
        running.hold.begin(turns=5)
        got: list[Piece | End] = []
        async for item in gateway.stream(ask("long")):
            got.append(item)
            if len(got) == 1:
                assert await gateway.abort(["long"]) == 1
        end = got[-1]
        assert isinstance(end, End)
        assert end.status == "abort"
        assert sum(count for _, count in end.versions) == sum(
            len(item.tokens) for item in got if isinstance(item, Piece)
        )
        await host.system.close()
