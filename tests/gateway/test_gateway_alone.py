"""`rlctl gateway` in front of engines that are killed: every client gets the undisturbed response."""

import asyncio
import json
import urllib.error

import pytest
from gateway_runs import Processes, Streamed, all_clients, get, greedy, healthy, loads, post
from small_model import MakeModel

pytestmark = [pytest.mark.realprocess, pytest.mark.timeout(900)]

LIMIT = 160
PROMPTS = [[7 + number, 5, 9] for number in range(3)]


def start(processes: Processes, model: str, engines: int = 2) -> tuple[str, list[str]]:
    """Engines, and a gateway in front of them: its URL and theirs."""
    for number in range(engines):
        processes.start(f"engine-{number}", "engine", "serve", "--model", model, "--listen", "127.0.0.1:0")
    urls = [processes.url(f"engine-{number}") for number in range(engines)]
    options = [word for url in urls for word in ("--engine-url", url)]
    options += ["--state-dir", str(processes.directory / "state")]
    processes.start("gateway", "gateway", "--listen", "127.0.0.1:0", *options)
    url = processes.url("gateway")
    processes.wait(lambda: len(healthy(url)) == engines, "the engines to be in use")
    return url, urls


@pytest.mark.long
async def test_engine_death_is_invisible_to_clients(processes: Processes, make_model: MakeModel) -> None:
    model = str(make_model("calm", 1))
    url, engines = await asyncio.to_thread(start, processes, model)
    calm = [await greedy(url, prompt, LIMIT) for prompt in PROMPTS]
    assert len({tuple(tokens) for tokens, _ in calm}) == len(PROMPTS)

    hit: list[int] = []

    def strike() -> None:
        hit.append(loads(url)[engines[0]])
        processes.kill("engine-0")

    disturbed = [asyncio.create_task(greedy(url, prompt, LIMIT)) for prompt in PROMPTS for _ in range(2)]
    got = await all_clients(url, model, PROMPTS, LIMIT, strike)
    assert hit[0] > len(PROMPTS), "it had requests of several clients"
    assert all(len(one.tokens) == LIMIT for rollouts in got.values() for one in rollouts)
    for number, task in enumerate(disturbed):
        tokens, logprobs = await task
        assert tokens == calm[number // 2][0], "a splice is exact"
        assert logprobs == pytest.approx(calm[number // 2][1], abs=1e-4)
    assert healthy(url) == [engines[1]]

    port = engines[0].rpartition(":")[2]
    processes.start("engine-0", "engine", "serve", "--model", model, "--listen", f"127.0.0.1:{port}")
    await asyncio.to_thread(processes.wait, lambda: len(healthy(url)) == 2, "the engine to be used again")
    assert processes.end("gateway") == 0
    assert "Traceback" not in processes.printed("gateway")


@pytest.mark.long
async def test_response_names_a_weight_change_under_way(processes: Processes, make_model: MakeModel) -> None:
    url, engines = await asyncio.to_thread(start, processes, str(make_model("calm", 1)))
    newer = str(make_model("newer", 2))
    under_way = Streamed(url, PROMPTS[0], 400)
    await under_way.begun()
    update = {"model_path": newer, "weight_version": "7"}
    updated = await asyncio.to_thread(post, f"{url}/update_weights_from_disk", update)
    assert updated["success"] is True
    spans = (await under_way.task)["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] == ["0", "7"]
    assert [span["start"] for span in spans] == [0, spans[0]["end"]]
    assert spans[1]["end"] == 400
    meta = (await greedy(url, PROMPTS[0], 8, whole=True))["meta_info"]
    assert (meta["weight_version_start"], meta["weight_version_end"]) == (7, 7)
    assert get(f"{url}/get_weight_version") == {"weight_version": "7"}
    again = await asyncio.to_thread(post, f"{url}/update_weights_from_disk", update)
    assert again["success"] is True, "a repeated request is applied once"
    with pytest.raises(urllib.error.HTTPError) as refused:
        body = {"input_ids": [1], "weight_version": {"exact_version": 0}}
        await asyncio.to_thread(post, f"{url}/generate", body)
    assert refused.value.code == 409
    assert json.loads(refused.value.read())["type"] == "WeightVersionNotReady"

    # An engine that was away meanwhile has the old weights. It gets the new ones before it is used.
    processes.kill("engine-0")
    port = engines[0].rpartition(":")[2]
    model = str(make_model("calm", 1))
    processes.start("engine-0", "engine", "serve", "--model", model, "--listen", f"127.0.0.1:{port}")
    await asyncio.to_thread(processes.wait, lambda: len(healthy(url)) == 2, "the engine to be used again")
    served = {worker["weight_version"] for worker in get(f"{url}/workers?engines=1")["workers"]}
    assert served == {"7"}


async def test_pause_stops_the_fleet_and_engines_can_change(
    processes: Processes, make_model: MakeModel
) -> None:
    url, engines = await asyncio.to_thread(start, processes, str(make_model("calm", 1)))
    calm, _ = await greedy(url, PROMPTS[0], 400)
    under_way = Streamed(url, PROMPTS[0], 400)
    await under_way.begun()
    await asyncio.to_thread(post, f"{url}/pause_generation", {"mode": "in_place"})
    await asyncio.to_thread(processes.wait, lambda: not sum(loads(url).values()), "engines to be idle")
    await asyncio.sleep(0.3)
    assert not under_way.task.done()
    await asyncio.to_thread(post, f"{url}/continue_generation", {})
    assert (await under_way.task)["output_ids"] == calm

    worker = next(one for one in get(f"{url}/workers?engines=1")["workers"] if one["url"] == engines[0])
    await asyncio.to_thread(post, f"{url}/workers/{worker['id']}", None, "DELETE")
    assert healthy(url) == [engines[1]]
    assert processes.alive("engine-0"), "it belongs to its user"
    await asyncio.to_thread(post, f"{url}/workers", {"url": engines[0]})
    await asyncio.to_thread(processes.wait, lambda: len(healthy(url)) == 2, "the engine to be used again")


@pytest.mark.long
async def test_restarted_gateway_answers_the_same_request(
    processes: Processes, make_model: MakeModel
) -> None:
    url, engines = await asyncio.to_thread(start, processes, str(make_model("calm", 1)))
    first = await greedy(url, PROMPTS[0], 60, whole=True, rid="mine")
    processes.kill("gateway")
    options = [word for one in engines for word in ("--engine-url", one)]
    options += ["--state-dir", str(processes.directory / "state")]
    processes.start("gateway", "gateway", "--listen", url.removeprefix("http://"), *options)
    await asyncio.to_thread(processes.wait, lambda: len(healthy(url)) == 2, "the engines to be in use")
    again = await greedy(url, PROMPTS[0], 60, whole=True, rid="mine")
    assert again["output_ids"] == first["output_ids"]
    journal = processes.directory / "state" / "journal"
    assert list(journal.rglob("*.sqlite")), "it was kept, not made again"
    state = processes.directory / "state"
    readable = [path for path in (state, *state.rglob("*")) if path.lstat().st_mode & 0o077]
    assert not readable, "only the user of the gateway may read prompts and responses"
