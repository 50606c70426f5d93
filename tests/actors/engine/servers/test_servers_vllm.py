"""The wire of a vLLM server, with a small server that speaks vLLM's protocol.

`tests/engines` compares the protocol with vLLM's own classes, and the whole with real servers.
"""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer
from safetensors.torch import load_file

from gleaner.actors.engine.servers.port import Ask, Chunk, LoadFailed, Loads, ServerDied, ServerRefused
from gleaner.actors.engine.servers.vllm import VllmWire
from gleaner.actors.engine.servers.vllm_messages import chunk_of, completion_of, seed_at
from gleaner.actors.model.qwen3_config import Qwen3Config
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.sampling_params import CANNOT_CONTINUE, Grammar, Sampling
from gleaner.actors.protocol.weights import Fetched
from gleaner.actors.weights.image.draft import FILE
from gleaner.actors.weights.image.store import ImageStore

CONFIG = Qwen3Config(
    vocab_size=32,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=4,
    rope_theta=5e5,
    tie_word_embeddings=True,
    max_position_embeddings=64,
    eos_token_ids=(5, 6),
)


def event(tokens: list[int], finish: str | None = None) -> bytes:
    choice: dict[str, object] = {"index": 0, "text": "x", "token_ids": tokens}
    choice["logprobs"] = {"token_logprobs": [-0.5] * len(tokens)}
    if finish is not None:
        choice["finish_reason"] = finish
    return b"data: " + json.dumps({"id": "cmpl-1", "choices": [choice]}).encode() + b"\n\n"


@dataclass
class FakeVllm:
    """Records what is called; `events` are a stream's. `image`: it has our weight transfer engine."""

    image: bool = True
    device: str = "cuda"
    development: bool = True
    alien: str = ""  # a tensor that its model does not have
    version: str = "v4-abababab"
    masked_logprob: float = 0.0
    made: dict[str, int] | None = None  # of its held requests; None: it has no route of ours
    status: int = 200
    events: list[bytes] = field(default_factory=list)
    failing: list[str] = field(default_factory=list)  # each once
    calls: list[str] = field(default_factory=list)
    bodies: list[dict[str, object]] = field(default_factory=list)
    folders: list[str] | None = None  # the folders to reload; None: reads given images
    reloaded: dict[str, torch.Tensor] = field(default_factory=dict)
    connections: list[asyncio.BaseTransport | None] = field(default_factory=list)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if not body.get("stream"):
            logprobs = {"token_logprobs": [self.masked_logprob]}
            return web.json_response({"choices": [{"token_ids": [1], "logprobs": logprobs}]})
        if self.status != 200:
            return web.json_response({"error": {"message": "because", "code": 400}}, status=self.status)
        response = web.StreamResponse()
        await response.prepare(request)
        for one in self.events:
            await response.write(one)
        return response

    async def other(self, request: web.Request) -> web.Response:
        path = request.path_qs
        self.calls.append(path)
        if request.transport not in self.connections:
            self.connections.append(request.transport)
        if path in self.failing:
            self.failing.remove(path)
            return web.json_response({"error": {"message": "because"}}, status=500)
        if path == "/v1/models":
            return web.json_response({"data": [{"id": "the-model", "max_model_len": 64}]})
        if path == "/metrics":
            lines = ("running", 3.0), ("waiting", 2.0), ("running", 1.0)
            rows = [f'vllm:num_requests_{name}{{engine="0"}} {count}' for name, count in lines]
            return web.Response(text="# HELP x\n" + "\n".join(rows) + "\nother 7\n")
        if not self.development and path.startswith("/init_weight"):
            return web.json_response({"detail": "Not Found"}, status=404)
        if not self.image and path.startswith("/init_weight"):
            return web.json_response({"error": {"message": "Weight transfer not configured"}}, status=500)
        if path == "/gleaner/made_tokens" and self.made is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        if path == "/gleaner/made_tokens":
            paused = "/pause?mode=keep" in self.calls
            return web.json_response({"paused": paused, "made": self.made if paused else {}})
        if path.startswith("/server_info"):
            return web.json_response({"vllm_config": f"model='m', device_config={self.device}, x=1"})
        if path == "/weight_info":
            return web.json_response({"weight_version": self.version})
        if request.can_read_body:
            body = await request.json()
            self.bodies.append(body)
            if path == "/update_weights" and self.alien in str(body) and self.alien:
                return web.json_response({"error": {"message": f"no {self.alien}"}}, status=500)
            if path == "/finish_weight_update":
                self.version = body["weight_version"]
            if path == "/collective_rpc" and self.folders is not None:
                self.folders.append(str(body["kwargs"].get("weights_path", "as it began")))
                if self.folders[-1].startswith("/bad"):
                    return web.json_response({"error": {"message": "no such tensor"}}, status=500)
            elif path == "/update_weight_version":
                self.version = body["new_version"]
            elif path == "/collective_rpc":
                folder = Path(body["kwargs"]["weights_path"])
                self.reloaded = load_file(folder / "model.safetensors")
                assert Qwen3Config.load(folder) == CONFIG
        return web.json_response({})


@pytest.fixture
def fake() -> FakeVllm:
    return FakeVllm()


@pytest.fixture
async def wire(fake: FakeVllm) -> AsyncIterator[VllmWire]:
    app = web.Application()
    app.router.add_post("/v1/completions", fake.completions)
    app.router.add_route("*", "/{path:.*}", fake.other)
    async with TestServer(app) as server:
        wire = VllmWire(str(server.make_url("/")), start=None)
        yield wire
        await wire.disconnect()


def image_in(folder: Path) -> tuple[Fetched, dict[str, torch.Tensor]]:
    tensors = {"a.weight": torch.randn(3, 5), "b.weight": torch.randn(7)}
    specs, offset, whole = [], 0, bytearray()
    for name, tensor in tensors.items():
        data = tensor.numpy().tobytes()
        specs.append(TensorSpec(name, "float32", tuple(tensor.shape), offset, len(data)))
        whole += data + bytes(-len(data) % 64)  # like a foreign layout, with gaps
        offset = len(whole)
    with ImageStore(folder).create(4, len(whole), specs) as draft:
        draft.view[:] = whole
        path = draft.seal() / FILE
    config = msgspec.json.encode(CONFIG)
    return Fetched(4, bytes.fromhex("ab" * 16), str(path), tuple(specs), config, 0, 0.0), tensors


def ask(temperature: float = 0.5) -> Ask:
    return Ask("r-1", array("I", [1, 2, 3]), 9, temperature, seed=7)


async def serve(wire: VllmWire, fetched: Fetched) -> str:
    await wire.stage(fetched)
    return await wire.commit()


async def chunks(wire: VllmWire, asked: Ask) -> list[Chunk]:
    return [chunk async for chunk in wire.stream(asked)]


async def test_workers_map_an_image_while_nothing_executes(
    fake: FakeVllm, wire: VllmWire, tmp_path: Path
) -> None:
    fetched, _ = image_in(tmp_path)
    name = await serve(wire, fetched)
    assert name == "v4-abababab"
    assert fake.calls == [
        "/init_weight_transfer_engine",
        "/gleaner/made_tokens",
        "/v1/models",
        "/pause?mode=abort",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/resume",
        "/weight_info",
    ]
    update = next(body["update_info"] for body in fake.bodies if "update_info" in body)
    assert update == {
        "path": fetched.path,
        "tensors": [["a.weight", "float32", [3, 5], 4096, 60], ["b.weight", "float32", [7], 4160, 28]],
    }
    assert {"weight_version": name} in fake.bodies


async def test_server_holds_requests_until_the_change_ends(
    fake: FakeVllm, wire: VllmWire, tmp_path: Path
) -> None:
    first, _ = image_in(tmp_path)
    fake.made = {"cmpl-r1-0": 7, "cmpl-of-others-0": 3}
    await serve(wire, first)
    assert wire.keeps
    await wire.stage(msgspec.structs.replace(first, version=5))
    fake.calls.clear()
    asked = len(fake.bodies)
    assert await wire.hold(["r1", "r2"]) == {"r1": 7}
    assert await wire.commit() == "v5-abababab"
    await wire.go_on()
    assert fake.calls == [
        "/pause?mode=keep",
        "/reset_prefix_cache?reset_running_requests=true",
        "/gleaner/made_tokens",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/weight_info",
        "/resume",
    ]
    assert not any("prompt" in body for body in fake.bodies[asked:]), "a request would wait for the end"
    await wire.stage(first)
    fake.calls.clear()
    await wire.commit()
    assert fake.calls[0] == "/pause?mode=abort", "the next change has its own pause again"


async def test_server_without_route_reports_that_nothing_is_held(
    fake: FakeVllm, wire: VllmWire, tmp_path: Path
) -> None:
    await serve(wire, image_in(tmp_path)[0])
    assert not wire.keeps


async def test_server_that_cannot_pause_does_not_hold(fake: FakeVllm, wire: VllmWire, tmp_path: Path) -> None:
    fake.made = {}
    fake.failing = ["/pause?mode=keep"]
    await serve(wire, image_in(tmp_path)[0])
    with pytest.raises(ServerRefused):
        await wire.hold(["r1"])


async def test_server_that_refuses_weights_reloads_the_previous(
    fake: FakeVllm, wire: VllmWire, tmp_path: Path
) -> None:
    before, _ = image_in(tmp_path)
    await serve(wire, before)
    fake.calls.clear()
    fake.failing = ["/update_weights"]
    with pytest.raises(LoadFailed, match="version 5 was not loaded(.|\n)*version 4 was loaded again"):
        await serve(wire, msgspec.structs.replace(before, version=5))
    updates = ["/start_weight_update", "/update_weights"]
    assert fake.calls == ["/pause?mode=abort", *updates, *updates, "/finish_weight_update", "/resume"]
    fake.failing = ["/update_weights", "/start_weight_update"]
    with pytest.raises(ServerDied, match="nor was version 4 again"):
        await serve(wire, msgspec.structs.replace(before, version=5))


async def test_server_without_transfer_engine_reloads_a_temporary_checkpoint(
    fake: FakeVllm, wire: VllmWire, tmp_path: Path
) -> None:
    fake.image = False
    fetched, tensors = image_in(tmp_path)
    await serve(wire, fetched)
    assert fake.calls[:6] == [
        "/init_weight_transfer_engine",
        "/server_info?config_format=text",
        "/v1/models",
        "/pause?mode=abort",
        "/collective_rpc",
        "/update_weight_version",
    ]
    assert fake.reloaded.keys() == tensors.keys()
    for key, tensor in tensors.items():
        np.testing.assert_array_equal(fake.reloaded[key].numpy(), tensor.numpy())
    assert not list(tmp_path.rglob("served-*/*/*.safetensors"))


async def test_server_that_fails_a_folder_reloads_the_previous(fake: FakeVllm, wire: VllmWire) -> None:
    async def serve_folder(version: int, path: str) -> str:
        empty = Fetched(
            version=version, root=b"r", path=path, tensors=(), model_config=b"", pulled_bytes=0, seconds=0.0
        )
        await wire.stage(empty)
        return await wire.commit()

    fake.folders = []
    assert await serve_folder(0, "") == "v4-abababab"
    with pytest.raises(LoadFailed, match="did not load /bad(.|\n)*no such tensor"):
        await serve_folder(1, "/bad")
    assert (fake.folders, fake.calls[-1]) == (["/bad", "as it began"], "/resume")
    assert await serve_folder(2, "/good") == "2"
    with pytest.raises(LoadFailed):
        await serve_folder(3, "/bad/again")
    assert fake.folders[2:] == ["/good", "/bad/again", "/good"]
    assert fake.version == "2"
    assert await serve_folder(3, "/good/three") == "3"
    assert (await wire.revert(), fake.folders[-1], fake.version) == ("2", "/good", "2")
    assert await wire.revert() is None, "the version before is not known"
    with pytest.raises(ServerDied, match="nor what it served before"):
        fake.failing = ["/collective_rpc", "/collective_rpc"]
        await serve_folder(3, "/good/two")


async def test_tied_model_is_not_reloaded_with_stale_output(
    fake: FakeVllm, wire: VllmWire, tmp_path: Path
) -> None:
    fake.image, fake.device = False, "cpu"
    with pytest.raises(ServerDied, match="vllm_plugin"):
        await serve(wire, image_in(tmp_path)[0])
    assert "/collective_rpc" not in fake.calls


async def test_server_without_weight_routes_is_refused(
    fake: FakeVllm, wire: VllmWire, tmp_path: Path
) -> None:
    fake.development = False
    with pytest.raises(ServerDied, match="VLLM_SERVER_DEV_MODE=1"):
        await serve(wire, image_in(tmp_path)[0])


async def test_stream_request_and_answer_follow_the_protocol(
    fake: FakeVllm, wire: VllmWire, tmp_path: Path
) -> None:
    fake.events = [event([8]), b": ping\n\n", event([9, 10]), event([6], "stop"), b"data: [DONE]\n\n"]
    name = await serve(wire, image_in(tmp_path)[0])
    came = await chunks(wire, ask())
    assert [chunk.tokens for chunk in came] == [[8], [9, 10], [6]]
    assert [chunk.finish for chunk in came] == [None, None, "stop"]
    assert came[1].logprobs == [-0.5, -0.5]
    body = fake.bodies[-1]
    assert (body["model"], body["prompt"], body["max_tokens"]) == ("the-model", [1, 2, 3], 9)
    assert (body["cache_salt"], body["ignore_eos"], body["stop_token_ids"]) == (name, True, [5, 6])
    assert body["request_id"] == "r-1"


async def test_log_probs_without_the_temperature_are_refused(
    fake: FakeVllm, wire: VllmWire, tmp_path: Path
) -> None:
    fake.masked_logprob = -2.5
    fake.events = [event([8], "length"), b"data: [DONE]\n\n"]
    await serve(wire, image_in(tmp_path)[0])
    with pytest.raises(ServerRefused, match="processed_logprobs") as refused:
        await chunks(wire, ask(0.5))
    assert refused.value.never
    assert [chunk.finish for chunk in await chunks(wire, ask(1.0))] == ["length"]
    assert [chunk.finish for chunk in await chunks(wire, ask(0.0))] == ["length"]


@pytest.mark.parametrize(("status", "never"), [(400, True), (503, False)])
async def test_rejected_request_is_refused_with_the_servers_reason(
    fake: FakeVllm, wire: VllmWire, status: int, never: bool
) -> None:
    fake.status = status
    with pytest.raises(ServerRefused, match="because") as refused:
        await chunks(wire, ask())
    assert refused.value.never is never


@pytest.mark.parametrize(
    "line",
    [
        b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\n',
        b'data: {"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": []}}]}\n\n',
        b'data: {"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [-9999.0]}}]}\n\n',
        b'data: {"choices": [{"token_ids": [], "finish_reason": "teapot"}]}\n\n',
        b"data: {broken\n\n",
    ],
)
async def test_invalid_events_end_the_server(fake: FakeVllm, wire: VllmWire, line: bytes) -> None:
    fake.events = [event([8]), line]
    with pytest.raises(ServerDied):
        await chunks(wire, ask())


async def test_control_requests_follow_the_protocol(fake: FakeVllm, wire: VllmWire) -> None:
    await wire.abort(["r-1", "r-2"])
    assert fake.bodies == [{"request_ids": ["cmpl-r-1-0", "cmpl-r-2-0"]}]
    assert await wire.loads() == Loads(running=4, waiting=2)
    assert await wire.version() == "v4-abababab"
    fake.calls.clear()
    await wire.pause("in_place")
    await wire.pause("retract")
    await wire.go_on()
    await wire.healthy()
    assert fake.calls == [
        "/pause?mode=keep",
        "/pause?mode=keep",
        "/reset_prefix_cache?reset_running_requests=true",
        "/resume",
        "/health",
    ]


async def test_closed_connection_after_an_answer_is_no_death(fake: FakeVllm, wire: VllmWire) -> None:
    await wire.healthy()
    await wire.healthy()
    assert len(fake.connections) == 2, "a used connection may already be closed"


async def test_absent_server_is_dead() -> None:
    wire = VllmWire("http://127.0.0.1:9", start=None)
    with pytest.raises(ServerDied):
        await wire.healthy()
    with pytest.raises(ServerDied):
        await chunks(wire, ask())
    await wire.disconnect()


def test_continued_request_has_seeds_of_its_own() -> None:
    seeds = {seed_at(seed, position) for seed in (0, 1, 2**63, 2**64 - 1) for position in range(1, 200)}
    assert len(seeds) == 4 * 199
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_grammar_is_written_for_vllm_but_never_continued() -> None:
    def encoded(kind: str, made: int = 0) -> dict[str, object]:
        asked = Sampling(grammar=Grammar(kind=kind, text="x"), logit_bias=((7, -2.0),))
        one = Ask("r", array("I", [1, 2]), 9, 1.0, 0, made=made, sampling=asked)
        body: dict[str, object] = msgspec.json.decode(msgspec.json.encode(completion_of(one, "m", "s", ())))
        return body

    words = {"json_schema": "json", "regex": "regex", "ebnf": "grammar", "structural_tag": "structural_tag"}
    for kind, word in words.items():
        assert encoded(kind)["structured_outputs"] == {word: "x"}
    assert encoded("regex")["logit_bias"] == {"7": -2.0}
    with pytest.raises(ServerRefused, match=f"{CANNOT_CONTINUE}$"):
        encoded("regex", made=1)
    plain = completion_of(Ask("r", array("I", [1]), 9, 1.0, 0), "m", "s", ())
    assert not {"structured_outputs", "logit_bias"} & set(msgspec.json.decode(msgspec.json.encode(plain)))


def test_event_without_news_gives_no_chunk() -> None:
    assert chunk_of(b'{"choices": [], "usage": {"total_tokens": 3}}') is None
    assert chunk_of(b'{"choices": [{"token_ids": []}]}') is None
