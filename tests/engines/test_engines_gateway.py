"""`rlctl gateway` in front of two real servers of the user, one of which is killed under clients."""

import asyncio
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_kinds import NEW_TOKENS
from engines_world import Servers, broken, publish_image, single_minded, token_of

sys.path.insert(0, str(Path(__file__).parent.parent / "gateway"))

from gateway_runs import Processes, Streamed, all_clients, get, greedy, healthy, loads, post, refused
from small_model import make_folder

from gleaner.actors.engine.images.checkpoint_folder import ServedFolder
from tests.actors.gateway.clients import everyone, trl_package

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

PROMPTS = [[7 + number, 5, 9] for number in range(2)]
TRL_GREEDY = {"trl-greedy": trl_package.rollout_greedy, "trl-chat": trl_package.chat_greedy}


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path)
    yield found
    found.close()


@pytest.mark.long
async def test_every_client_gets_a_whole_response_across_server_death(
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
    calm_of_trl = await all_clients(url, model, PROMPTS, NEW_TOKENS, clients=TRL_GREEDY)
    assert [one.tokens for one in calm_of_trl["trl-greedy"]] == [tokens for tokens, _ in calm]

    hit: list[int] = []

    def strike() -> None:
        at_work = loads(url)
        servers.both.sort(key=lambda server: at_work[server.url])  # the busier one is killed
        hit.append(at_work[servers.both[1].url])
        servers.both[1].kill()

    try:
        disturbed = [
            asyncio.create_task(greedy(url, prompt, NEW_TOKENS)) for prompt in PROMPTS for _ in range(3)
        ]
        streamed = [Streamed(url, prompt, NEW_TOKENS) for prompt in PROMPTS]
        got = await all_clients(url, model, PROMPTS, NEW_TOKENS, strike, everyone.ALL | TRL_GREEDY)
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


async def test_unloadable_folder_changes_nothing_even_after_a_restart(
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

    def again() -> None:
        """Kill the gateway and start another one in the same state directory."""
        processes.kill("gateway")
        processes.start("gateway", "gateway", "--listen", url.removeprefix("http://"), *behind)
        processes.wait(lambda: len(healthy(url)) == 2, "both to be used again")

    async def require_calm() -> None:
        """Require that both servers serve their first weights."""
        assert len(healthy(url)) == 2
        assert get(f"{url}/get_weight_version") == {"weight_version": "0"}
        for _ in servers.both:
            assert (await greedy(url, PROMPTS[0], 8))[0] == calm[0]
        own = [(await greedy(server.url, PROMPTS[0], 8))[0] for server in servers.both]
        assert own == [calm[0], calm[0]]

    calm = await greedy(url, PROMPTS[0], 8)
    folder = ServedFolder()
    try:
        nan = folder.write(publish_image(tmp_path / "nan", 9, broken))
        for path, words in ((nan, "log-prob"), (tmp_path / "nowhere", str(tmp_path / "nowhere"))):
            status, outcome = await asyncio.to_thread(update, path, "5")
            assert (status, outcome["type"]) == (400, "CannotLoad")
            assert words in str(outcome["message"])
            await require_calm()
        await asyncio.to_thread(again)
        await require_calm()

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
        await asyncio.to_thread(again)
        assert get(f"{url}/get_weight_version") == {"weight_version": "5"}
        assert set((await greedy(url, PROMPTS[0], 8))[0]) == {token_of(2)}
        assert processes.end("gateway") == 0
    finally:
        folder.remove()


async def test_server_of_another_model_gets_no_request(
    servers: Servers, processes: Processes, tmp_path: Path
) -> None:
    """Uses the builtin server: it starts in seconds and has another vocabulary and context."""
    await servers.first_weights(tmp_path / "first")
    first, model = servers.both[0].url, make_folder(tmp_path / "other", 1)
    processes.start("other", "engine", "serve", "--model", str(model), "--listen", "127.0.0.1:0")
    other = await asyncio.to_thread(processes.url, "other")
    processes.start(
        "gateway", "gateway", "--listen", "127.0.0.1:0", "--engine-url", first, "--engine-url", other
    )
    url = await asyncio.to_thread(processes.url, "gateway")
    await asyncio.to_thread(
        processes.wait, lambda: healthy(url) == [first] and other in refused(url), "a verdict"
    )
    why = refused(url)[other]
    assert f"its model is '{model}'" in why
    assert "its vocabulary has " in why
    assert "its context is 512 tokens" in why
    assert f"engine {other} is refused: {why}" in processes.printed("gateway")
    with pytest.raises(urllib.error.HTTPError) as problem:
        await asyncio.to_thread(post, f"{url}/workers", {"url": other})
    with problem.value as answer:
        assert answer.code == 409
        assert why in json.loads(answer.read())["error"]["message"]

    calm = {number: (await greedy(first, prompt, 40))[0] for number, prompt in enumerate(PROMPTS)}
    answers = await asyncio.gather(*(greedy(url, PROMPTS[number % 2], 40) for number in range(8)))
    assert [tokens for tokens, _ in answers] == [calm[number % 2] for number in range(8)]
    figures = (await asyncio.to_thread(read, f"{other}/metrics")).splitlines()
    made = [line for line in figures if line.startswith("sglang:num_requests_total")]
    assert [float(line.rpartition(" ")[2]) for line in made] in ([], [0.0]), (
        "it had no request, not even a probe"
    )
    assert processes.end("gateway") == 0


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
        return text
