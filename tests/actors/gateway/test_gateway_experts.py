"""Routed experts through the gateway's HTTP, before servers that die, drain and forget.

Each row is of the engine that made the next token, or of the next engine that read it."""

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from numpy.typing import NDArray

from gleaner.actors.engine.servers.factory import sglang_host
from gleaner.actors.engine.worker.settings import WorkerSettings
from gleaner.actors.engine.worker.worker import RolloutWorker
from gleaner.actors.gateway.folder_weights import FolderWeights, as_found
from gleaner.actors.gateway.gateway import Gateway
from gleaner.actors.protocol.instances import Withdraw, Withdrawn
from gleaner.actors.protocol.rollout import PublishVersion, RolloutFigures, RolloutStatus
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.configs.load import from_tree
from gleaner.nodeagent.gateway_http import door_of
from gleaner.supervisor import Done
from gleaner.supervisor.testing import TestSystem
from tests.actors.gateway.expert_server import EACH, LAYERS, ExpertServer, rows_of, token_at

PROMPT = [7, 9, 11, 13]
LIMIT = 40
RESPONSE = [token_at(len(PROMPT) + place) for place in range(LIMIT)]
WHOLE = len(PROMPT) + LIMIT - 1


@dataclass
class Moe:
    """A gateway at `url` with the engines that a test adds."""

    head: TestSystem
    directory: Path
    url: str = ""
    hosts: list[TestSystem] = field(default_factory=list)

    async def engine(self, server: ExpertServer) -> None:
        """Add this engine."""
        config = from_tree(
            {"engine": {"kind": "sglang", "url": server.url}, "rollout": {"max_new_tokens": LIMIT}}, "t"
        )
        name = f"e{server.name}"
        host = TestSystem(self.directory, node=name, join=self.head)
        await host.__aenter__()
        self.hosts.append(host)
        host.spawn(f"{name}/transfer", lambda: FolderWeights(0))
        host.spawn(
            f"{name}/engine",
            lambda: RolloutWorker(WorkerSettings.of(config), name, "preemptible", sglang_host(config)),
        )
        await self.until_serving(len(self.hosts))

    async def engine_instead(self, dead: ExpertServer, server: ExpertServer) -> None:
        """Kill `one` and add `other`."""
        await dead.die()
        await self.until_serving(0)
        self.hosts.clear()
        await self.engine(server)

    async def until_serving(self, count: int) -> None:
        async with asyncio.timeout(60):
            while (await self.figures()).serving_preemptible != count:
                await asyncio.sleep(0.01)

    async def until_made(self, count: int) -> None:
        async with asyncio.timeout(60):
            while (await self.figures()).tokens_collected < count:
                await asyncio.sleep(0.01)

    async def figures(self) -> RolloutFigures:
        return await self.head.ask("rollout/manager", RolloutStatus(), RolloutFigures)

    async def post(self, path: str, body: object) -> tuple[int, bytes]:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as client,
            client.post(self.url + path, json=body) as reply,
        ):
            return reply.status, await reply.read()

    async def generate(self, **more: object) -> dict[str, object]:
        status, payload = await self.post("/generate", slime_body() | more)
        assert status == 200, payload
        answer = json.loads(payload)
        assert isinstance(answer, dict)
        return answer


def slime_body() -> dict[str, object]:
    params = {"max_new_tokens": LIMIT, "temperature": 1.0, "ignore_eos": True}
    return {
        "input_ids": PROMPT,
        "sampling_params": params,
        "return_logprob": True,
        "return_routed_experts": True,
    }


def of_slime(answer: dict[str, object]) -> NDArray[np.int32]:
    """Rows as slime reads them; slime refuses a number of elements other than its own count."""
    meta = answer["meta_info"]
    assert isinstance(meta, dict)
    tokens = [*PROMPT, *(row[1] for row in meta["output_token_logprobs"])]
    flat = np.frombuffer(base64.b64decode(meta["routed_experts"]), np.int32)
    assert len(flat) == (len(tokens) - 1 - meta.get("routed_experts_start_len", 0)) * LAYERS * EACH
    return flat.reshape(-1, LAYERS * EACH)


@asynccontextmanager
async def moe(directory: Path, *servers: ExpertServer, routed: bool = True) -> AsyncIterator[Moe]:
    model = directory / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"num_hidden_layers": LAYERS, "num_experts_per_tok": EACH}))
    config = from_tree(
        {
            "rollout": {"max_new_tokens": LIMIT},
            "engine": {"max_prompt_tokens": 16},
            "gateway": {"listen": "127.0.0.1:0", "routed_experts": routed},
        },
        "t",
    )
    async with AsyncExitStack() as stack:
        head = await stack.enter_async_context(TestSystem(directory, node="head"))
        head.spawn("rollout/balancer", lambda: LoadBalancer(4))
        head.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(config)))
        head.spawn("rollout/gateway", lambda: Gateway(config.gateway, door_of(config, "moe", model)))
        await head.ask("rollout/manager", PublishVersion(weights=as_found(0)), Done)
        running = Moe(head, directory)
        async with asyncio.timeout(60):
            while not running.url:
                cell = head.system.cell("rollout/gateway")
                assert cell is not None
                running.url = str(cell.actor.summary().get("url", ""))
                await asyncio.sleep(0.01)
        for server in servers:
            await running.engine(await stack.enter_async_context(server))
        try:
            yield running
        finally:
            for host in running.hosts:
                await host.system.close()


def expected(*shares: tuple[int, int]) -> NDArray[np.int32]:
    """(server, rows behind its last), in order."""
    parts, start = [], 0
    for name, end in shares:
        parts.append(rows_of(name, [*PROMPT, *RESPONSE])[start:end])
        start = end
    return np.concatenate(parts)


async def test_rows_of_an_undisturbed_request_have_every_encoding(tmp_path: Path) -> None:
    async with moe(tmp_path, ExpertServer(1)) as running:
        answer = await running.generate()
        assert answer["output_ids"] == RESPONSE
        assert np.array_equal(of_slime(answer), expected((1, WHOLE)))
        later = await running.generate(routed_experts_start_len=3)
        assert np.array_equal(of_slime(later), expected((1, WHOLE))[3:])

        status, payload = await running.post("/generate", slime_body() | {"stream": True})
        assert status == 200
        chunks = [json.loads(line[6:]) for line in payload.split(b"\n\n") if line.startswith(b"data: {")]
        assert np.array_equal(of_slime(chunks[-1]), expected((1, WHOLE)))
        assert not any("routed_experts" in chunk["meta_info"] for chunk in chunks[:-1])

        from renderers.client import parse_generate_response  # a second: not in every worker

        sampling = {"max_tokens": LIMIT, "logprobs": 1, "ignore_eos": True}
        body = {"token_ids": PROMPT, "sampling_params": sampling}
        for path in ("/skyrl/v1/generate", "/inference/v1/generate"):
            status, payload = await running.post(path, body)
            assert status == 200, payload
            encoded = json.loads(payload)["choices"][0]["routed_experts"]
            assert (encoded["shape"], encoded["dtype"]) == ([WHOLE, LAYERS, EACH], "uint8")
            flat = np.frombuffer(base64.b64decode(encoded["data"]), encoded["dtype"])
            assert np.array_equal(flat.reshape(WHOLE, -1), expected((1, WHOLE)))
            cut_out = parse_generate_response(payload)["choices"][0]["routed_experts"]["data"]
            assert bytes(cut_out) == encoded["data"].encode(), "prime-rl's client finds it in the raw bytes"
        late = {**sampling, "routed_experts_prompt_start": 2}
        npy = {**body, "sampling_params": late, "routed_experts_format": "npy"}
        _, payload = await running.post("/inference/v1/generate", npy)
        file = base64.b64decode(json.loads(payload)["choices"][0]["routed_experts"])
        array = np.load(io.BytesIO(file), allow_pickle=False)
        assert np.array_equal(array.reshape(WHOLE - 2, -1), expected((1, WHOLE))[2:])


async def test_rows_of_a_killed_engine_are_recomputed(tmp_path: Path) -> None:
    one = ExpertServer(1, hold_at=10)
    async with moe(tmp_path, one) as running:
        asked = asyncio.create_task(running.generate())
        await running.until_made(10)
        async with ExpertServer(2) as two:
            await running.engine_instead(one, two)
            answer = await asked
        assert answer["output_ids"] == RESPONSE
        assert two.asked[0] == [*PROMPT, *RESPONSE[:10]], "it continued where the other engine died"
        assert np.array_equal(of_slime(answer), expected((2, WHOLE)))


async def test_rows_of_a_drained_engine_are_kept(tmp_path: Path) -> None:
    one = ExpertServer(1, hold_at=10)
    async with moe(tmp_path, one) as running:
        asked = asyncio.create_task(running.generate())
        await running.until_made(10)
        async with ExpertServer(2) as two:
            await running.engine(two)
            leave = Withdraw(instance="e1/engine", grace_s=0.0, leaves=True)
            await running.head.ask("rollout/manager", leave, Withdrawn)
            answer = await asked
        assert answer["output_ids"] == RESPONSE
        assert len(two.asked) == 1, "nothing had to be read again"
        assert np.array_equal(of_slime(answer), expected((1, len(PROMPT) + 10 - 1), (2, WHOLE)))


async def test_lost_rows_are_recomputed_before_the_answer(tmp_path: Path) -> None:
    async with moe(tmp_path, ExpertServer(1, silent=1)) as running:
        answer = await running.generate()
        assert answer["output_ids"] == RESPONSE
        assert np.array_equal(of_slime(answer), expected((1, WHOLE)))


async def test_aborted_request_has_rows_of_its_tokens(tmp_path: Path) -> None:
    async with moe(tmp_path, ExpertServer(1, hold_at=10)) as running:
        asked = asyncio.create_task(running.generate(rid="round-3"))
        await running.until_made(10)
        await running.post("/abort_request", {"abort_all": True})
        answer = await asked
        meta = answer["meta_info"]
        assert isinstance(meta, dict)
        assert meta["finish_reason"]["type"] == "abort"
        assert answer["output_ids"] == RESPONSE[:10]
        assert np.array_equal(of_slime(answer), expected((1, len(PROMPT) + 10 - 1)))


async def test_experts_are_refused_if_the_engine_reports_none(tmp_path: Path) -> None:
    async with moe(tmp_path, ExpertServer(1, routed=False)) as running:
        status, payload = await running.post("/generate", slime_body())
        assert status == 400
        assert b"--enable-return-routed-experts" in payload
        plain = {name: value for name, value in slime_body().items() if name != "return_routed_experts"}
        status, payload = await running.post("/generate", plain)
        assert status == 200
        assert "routed_experts" not in json.loads(payload)["meta_info"]


@pytest.mark.parametrize("path", ["/generate", "/skyrl/v1/generate"])
async def test_dense_model_gateway_refuses_expert_requests(tmp_path: Path, path: str) -> None:
    async with moe(tmp_path, routed=False) as running:
        body = slime_body() if path == "/generate" else {"token_ids": PROMPT}
        status, payload = await running.post(path, body)
        assert status == (400 if path == "/generate" else 501)
        assert b"gateway.routed_experts" in payload
