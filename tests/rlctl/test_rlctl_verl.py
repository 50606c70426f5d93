"""verl's servers through the gateway: requests, answers, and gateway outages.

The gateway is a small HTTP server here; verl itself is not needed (`test_rlctl_verl_classes` has that).
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer
from safetensors.torch import load_file

from gleaner.actors.gateway.control.wire import FromDisk
from gleaner.actors.gateway.sglang.answers import GenerateIs, MetaIs
from gleaner.actors.gateway.sglang.wire import GenerateBody, SamplingBody
from gleaner.rlctl.integrations import verl_server
from gleaner.rlctl.integrations.verl_server import GatewayAway, GatewayRefused, GatewayServer
from gleaner.rlctl.integrations.verl_translation import CannotAsk, CannotRead, Tokens, ask_of, tokens_of
from gleaner.rlctl.integrations.verl_weights import Folders

PARAMETERS = {"temperature": 0.7, "top_p": 0.9, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


def answer(tokens: list[int], finish: str, **versions: object) -> bytes:
    rows = [[-0.5 * token, token, None] for token in tokens]
    meta = {"finish_reason": {"type": finish}, "output_token_logprobs": rows, **versions}
    return json.dumps({"text": "", "output_ids": tokens, "meta_info": meta}).encode()


class FakeGateway:
    """Replies with `answers`, one (status, body) per request; a request without an answer waits until it is
    aborted."""

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []
        self.answers: list[tuple[int, bytes]] = []
        self.aborted: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        if self.answers:
            status, sent = self.answers.pop(0)
            return web.Response(status=status, body=sent)
        await self.ends.setdefault(body["rid"], asyncio.Event()).wait()
        return web.Response(body=answer([3], "abort", weight_version="4"))

    async def abort(self, request: web.Request) -> web.Response:
        rid = (await request.json())["rid"]
        self.aborted.append(rid)
        self.ends.setdefault(rid, asyncio.Event()).set()
        return web.Response()


@pytest.fixture
async def gateway() -> AsyncIterator[tuple[FakeGateway, str]]:
    fake = FakeGateway()
    app = web.Application()
    app.router.add_post("/generate", fake.generate)
    app.router.add_post("/abort_request", fake.abort)
    async with TestServer(app) as server:
        yield fake, str(server.make_url("/")).rstrip("/")


def server_at(url: str, deadline_s: float = 30.0) -> GatewayServer:
    return GatewayServer(url, "key", response_length=64, deadline_s=deadline_s)


async def until(what: list[object], count: int) -> None:
    async with asyncio.timeout(60.0):
        while len(what) < count:
            await asyncio.sleep(0.005)


def test_verl_request_is_translated_for_the_gateway() -> None:
    ask = ask_of("r", [1, 2], {**PARAMETERS, "max_tokens": 9, "stop_token_ids": [7]}, response_length=64)
    sent = ask.sampling_params
    assert (ask.rid, ask.input_ids, ask.return_logprob, ask.stream) == ("r", [1, 2], True, False)
    assert (sent.max_new_tokens, sent.temperature, sent.top_p, sent.top_k) == (9, 0.7, 0.9, -1)
    assert sent.stop_token_ids == [7]
    assert ask_of("r", [1], PARAMETERS, response_length=64).sampling_params.max_new_tokens == 64


@pytest.mark.parametrize(
    ("parameters", "word"),
    [({"prompt_logprobs": 5}, "prompt_logprobs"), ({"best_of": 3}, "best_of"), ({"top_p": "x"}, "top_p")],
)
def test_unsupported_parameters_are_refused_by_name(parameters: dict[str, object], word: str) -> None:
    with pytest.raises(CannotAsk, match=word):
        ask_of("r", [1], parameters, response_length=64)


def test_answer_carries_tokens_and_steps_of_weights() -> None:
    versions = {"weight_version": "6", "weight_version_start": 5, "weight_version_end": 6}
    tokens = tokens_of(answer([1, 2], "length", **versions), known_steps=None)
    assert (tokens.token_ids, tokens.log_probs) == ([1, 2], [-0.5, -1.0])
    assert tokens.stop_reason == "completed"
    assert (tokens.min_global_steps, tokens.global_steps, tokens.max_global_steps) == (5, 6, 6)
    assert tokens_of(answer([], "abort"), 3).stop_reason == "aborted"
    assert tokens_of(answer([], "stop", weight_version="default"), 3).global_steps == 3
    with pytest.raises(CannotRead):
        tokens_of(b'{"text": "no meta"}', None)


def test_gateway_accepts_requests_and_its_answer_is_parsed() -> None:
    parameters = {**PARAMETERS, "max_tokens": 9, "stop": ["x"], "seed": 3, "min_tokens": 2}
    asked = msgspec.json.encode(ask_of("r", [1, 2], parameters, response_length=64))
    body = msgspec.json.decode(asked, type=GenerateBody)
    assert (body.rid, body.input_ids, body.return_logprob, body.stream) == ("r", [1, 2], True, False)
    assert isinstance(body.sampling_params, SamplingBody)
    assert (body.sampling_params.max_new_tokens, body.sampling_params.sampling_seed) == (9, 3)
    meta = MetaIs(
        id="r",
        prompt_tokens=2,
        finish_reason={"type": "length", "length": 9},
        weight_version="8",
        weight_version_start="7",
        weight_version_end="8",
        weight_versions=[],
        num_retractions=0,
        e2e_latency=0.1,
        completion_tokens=1,
        cached_tokens=1,
        output_token_logprobs=[(-0.5, 4, None)],
    )
    tokens = tokens_of(msgspec.json.encode(GenerateIs("", [4], meta)), None)
    assert tokens == Tokens([4], [-0.5], "completed", 8, 7, 8, 1)
    update = msgspec.json.encode({"model_path": "/weights/version-8", "weight_version": "8"})
    assert msgspec.json.decode(update, type=FromDisk).weight_version == "8"


async def test_unavailable_gateway_is_retried_with_same_request(
    gateway: tuple[FakeGateway, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verl_server, "AGAIN_S", 0.001)
    fake, url = gateway
    fake.answers = [(503, b"{}"), (429, b"{}"), (200, answer([1, 2, 3], "stop", weight_version="9"))]
    tokens = await server_at(url).generate("one", [5], PARAMETERS)
    assert (tokens.token_ids, tokens.global_steps) == ([1, 2, 3], 9)
    assert [one["rid"] for one in fake.asked] == ["one"] * 3


async def test_refusal_keeps_the_gateways_text_without_a_retry(
    gateway: tuple[FakeGateway, str],
) -> None:
    fake, url = gateway
    fake.answers = [(400, b"input_ids: too long")]
    with pytest.raises(GatewayRefused, match=r"400: input_ids: too long"):
        await server_at(url).generate("one", [5], PARAMETERS)
    assert len(fake.asked) == 1


async def test_answer_beyond_the_limit_is_refused_with_limit(
    gateway: tuple[FakeGateway, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gleaner.rlctl.integrations.verl_server.MAX_BODY_BYTES", 100)
    fake, url = gateway
    fake.answers = [(200, b" " * 101)]
    with pytest.raises(GatewayRefused, match=r"POST /generate answers with more than 100 bytes"):
        await server_at(url).generate("one", [5], PARAMETERS)
    assert len(fake.asked) == 1


async def test_persistent_gateway_outage_ends_wait_with_last_error(
    gateway: tuple[FakeGateway, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verl_server, "AGAIN_S", 0.001)
    fake, url = gateway
    fake.answers = [(503, b"no engine")] * 100_000
    with pytest.raises(GatewayAway, match="no engine"):
        await server_at(url, deadline_s=0.3).generate("one", [5], PARAMETERS)


async def test_abort_ends_running_requests_and_holds_new_ones(
    gateway: tuple[FakeGateway, str],
) -> None:
    fake, url = gateway
    server = server_at(url)
    await server.set_global_steps(4)
    first = asyncio.ensure_future(server.generate("one", [5], PARAMETERS))
    await until(fake.asked, 1)
    assert await server.abort_all_requests() == {"aborted_count": 1, "request_ids": ["one"]}
    tokens = await first
    assert (tokens.token_ids, tokens.stop_reason) == ([3], "aborted")
    assert fake.aborted == ["one"]

    held = asyncio.ensure_future(server.generate("two", [5], PARAMETERS))
    await asyncio.sleep(0.05)
    assert not held.done()
    assert len(fake.asked) == 1
    fake.answers = [(200, answer([8], "stop"))]
    await server.resume_generation()
    assert (await held).token_ids == [8]


async def test_leaving_server_aborts_late_requests(
    gateway: tuple[FakeGateway, str],
) -> None:
    fake, url = gateway
    server = server_at(url)
    await server.abort_all_requests(reject_request=True)
    tokens = await server.generate("one", [5], PARAMETERS)
    assert (tokens.token_ids, tokens.stop_reason, fake.asked) == ([], "aborted", [])


async def test_pictures_are_refused(gateway: tuple[FakeGateway, str]) -> None:
    with pytest.raises(CannotAsk, match="images"):
        await server_at(gateway[1]).generate("one", [5], PARAMETERS, image_data=["png"])


async def stream(tensors: dict[str, torch.Tensor]) -> AsyncIterator[tuple[str, torch.Tensor]]:
    """One memory for all of them, as trainers do."""
    memory = torch.empty(64)
    for name, tensor in tensors.items():
        memory[: tensor.numel()] = tensor.flatten()
        yield name, memory[: tensor.numel()].view(tensor.shape)


async def test_version_is_a_whole_folder_and_two_are_kept(tmp_path: Path) -> None:
    like = tmp_path / "model"
    like.mkdir()
    (like / "config.json").write_text('{"hidden_size": 4}')
    (like / "model.safetensors").write_bytes(b"old weights")
    folders = Folders(tmp_path / "weights", like, shard_bytes=40)
    tensors = {f"t{index}": torch.full((2, 3), float(index)) for index in range(4)}
    for version in (1, 2, 3):
        folder = await folders.write(stream(tensors), version)
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["version-2", "version-3"]
    assert (folder / "config.json").read_text() == '{"hidden_size": 4}'
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * 24
    assert len(set(index["weight_map"].values())) == 2
    for name, tensor in tensors.items():
        assert torch.equal(load_file(folder / index["weight_map"][name])[name], tensor)
