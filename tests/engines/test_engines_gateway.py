"""`rlctl gateway` in front of two real servers of somebody's own, one of which is killed under clients."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_kinds import NEW_TOKENS
from engines_world import Servers

sys.path.insert(0, str(Path(__file__).parent.parent / "gateway"))

from gateway_runs import Processes, Streamed, everybody, get, greedy, healthy, loads

from tests.actors.rollout.gateway.clients import everyone, trl_package

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

PROMPTS = [[7 + number, 5, 9] for number in range(2)]
TRL_GREEDY = {"trl-greedy": trl_package.rollout_greedy, "trl-chat": trl_package.chat_greedy}


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path)
    yield found
    found.close()


async def test_every_trainers_client_gets_its_response_whole_from_servers_that_are_killed(
    servers: Servers, processes: Processes, tmp_path: Path
) -> None:
    await servers.first_weights(tmp_path / "first")
    behind = [word for server in servers.both for word in ("--engine-url", server.url)]
    behind += ["--state-dir", str(tmp_path / "state")]
    processes.start("gateway", "gateway", "--listen", "127.0.0.1:0", *behind)
    url = await asyncio.to_thread(processes.url, "gateway")
    await asyncio.to_thread(processes.wait, lambda: len(healthy(url)) == 2, "both servers to be in use")
    model = get(f"{url}/v1/models")["data"][0]["id"]
    calm = [await greedy(url, prompt, NEW_TOKENS) for prompt in PROMPTS]
    calm_of_trl = await everybody(url, model, PROMPTS, NEW_TOKENS, clients=TRL_GREEDY)
    assert [one.tokens for one in calm_of_trl["trl-greedy"]] == [tokens for tokens, _ in calm]

    hit: list[int] = []

    def strike() -> None:
        hit.append(loads(url)[servers.both[1].url])
        servers.both[1].kill()

    try:
        disturbed = [
            asyncio.create_task(greedy(url, prompt, NEW_TOKENS)) for prompt in PROMPTS for _ in range(3)
        ]
        streamed = [Streamed(url, prompt, NEW_TOKENS) for prompt in PROMPTS]
        got = await everybody(url, model, PROMPTS, NEW_TOKENS, strike, everyone.ALL | TRL_GREEDY)
        assert hit[0] > len(PROMPTS), "it had requests of several clients"
        assert all(len(one.tokens) == NEW_TOKENS for rollouts in got.values() for one in rollouts)
        for number, task in enumerate(disturbed):
            tokens, logprobs = await task
            assert tokens == calm[number // 3][0], "a splice is exact"
            assert logprobs == pytest.approx(calm[number // 3][1], abs=1e-4)
        assert [(await one.task)["output_ids"] for one in streamed] == [tokens for tokens, _ in calm]
        for name, rollouts in calm_of_trl.items():
            assert [one.tokens for one in got[name]] == [one.tokens for one in rollouts]
            for one, undisturbed in zip(got[name], rollouts, strict=True):
                assert one.logprobs == pytest.approx(undisturbed.logprobs, abs=1e-4)
        assert healthy(url) == [servers.both[0].url]
        assert processes.end("gateway") == 0
    finally:
        servers.revive()
