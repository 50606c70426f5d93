"""`rlctl gateway` in front of two real servers of somebody's own, one of which is killed under clients."""

import asyncio
import json
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_kinds import NEW_TOKENS
from engines_world import Servers, publish_image, single_minded, token_of

sys.path.insert(0, str(Path(__file__).parent.parent / "gateway"))

from gateway_runs import Processes, Streamed, everybody, get, greedy, healthy, loads, post

from actors.engine.served_folder import ServedFolder
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


async def test_a_folder_that_a_server_does_not_load_leaves_the_gateway_as_it_was_also_over_a_restart(
    servers: Servers, processes: Processes, tmp_path: Path
) -> None:
    await servers.first_weights(tmp_path / "first")
    behind = [word for server in servers.both for word in ("--engine-url", server.url)]
    behind += ["--state-dir", str(tmp_path / "state")]
    processes.start("gateway", "gateway", "--listen", "127.0.0.1:0", *behind)
    url = await asyncio.to_thread(processes.url, "gateway")
    await asyncio.to_thread(processes.wait, lambda: len(healthy(url)) == 2, "both servers to be in use")

    def update(path: Path, version: str) -> tuple[int, dict[str, object]]:
        try:
            body = {"model_path": str(path), "weight_version": version}
            return 200, post(f"{url}/update_weights_from_disk", body)
        except urllib.error.HTTPError as refused:
            return refused.code, json.loads(refused.read())["error"]

    calm = await greedy(url, PROMPTS[0], 8)
    status, told = await asyncio.to_thread(update, tmp_path / "nowhere", "5")
    assert (status, told["type"]) == (400, "CannotLoad")
    assert str(tmp_path / "nowhere") in str(told["message"])
    assert (await greedy(url, PROMPTS[0], 8))[0] == calm[0]
    assert get(f"{url}/get_weight_version") == {"weight_version": "0"}
    assert len(healthy(url)) == 2

    folder = ServedFolder()
    try:
        second = folder.write(publish_image(tmp_path / "second", 2, single_minded))
        assert (await asyncio.to_thread(update, second, "5"))[0] == 200
        await asyncio.to_thread(processes.wait, lambda: len(healthy(url)) == 2, "both to serve")
        assert set((await greedy(url, PROMPTS[0], 8))[0]) == {token_of(2)}
        for path, version, code in (
            (tmp_path / "nowhere", "5", 409),
            (second, "4", 409),
            (second, "v1.2.10", 400),
            (tmp_path / "nowhere", "6", 400),
        ):
            assert (await asyncio.to_thread(update, path, version))[0] == code
        processes.kill("gateway")
        processes.start("gateway", "gateway", "--listen", url.removeprefix("http://"), *behind)
        await asyncio.to_thread(processes.wait, lambda: len(healthy(url)) == 2, "both to be used again")
        assert get(f"{url}/get_weight_version") == {"weight_version": "5"}
        assert set((await greedy(url, PROMPTS[0], 8))[0]) == {token_of(2)}
        assert processes.end("gateway") == 0
    finally:
        folder.remove()
