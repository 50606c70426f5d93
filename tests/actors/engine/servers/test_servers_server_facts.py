"""Server detection: the kind of a server by its answers, in any segments."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gleaner.actors.engine.servers import http as http_wire
from gleaner.actors.engine.servers import server_facts
from gleaner.actors.engine.servers.foreign_facts import EngineFacts
from gleaner.actors.engine.servers.http import HttpWire
from gleaner.actors.engine.servers.port import ServerDied
from gleaner.actors.engine.servers.server_facts import NoServer, look
from gleaner.actors.engine.servers.sglang_messages import ServerInfo
from gleaner.transport.http_body import BodyTooLong, body_start, whole_body
from tests.segmenting_proxy import SegmentingProxy

Answer = Callable[[web.Request], web.StreamResponse]

SGLANG_INFO: dict[str, Any] = {
    "model_path": "/models/Qwen3-8B",
    "served_model_name": "qwen",
    "context_length": 4096,
    "max_req_input_len": 4090,
    "max_running_requests": 48,
    "version": "0.5.23",
    "internal_states": [{"effective_max_running_requests_per_dp": 32}, {}],
    "launch_command": "x" * 37_000,
}
MODEL_INFO = {"model_path": "/models/Qwen3-8B", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151_936}
SGLANG_MODELS = {"object": "list", "data": [{"id": "qwen", "owned_by": "sglang", "max_model_len": 4096}]}
VLLM_MODELS = {
    "object": "list",
    "data": [{"id": "qwen", "owned_by": "vllm", "root": "/m/q", "max_model_len": 64}],
}


def answering(body: object, status: int = 200) -> Answer:
    return lambda request: web.json_response(body, status=status)


SGLANG = {
    "/server_info": answering(SGLANG_INFO),
    "/model_info": answering(MODEL_INFO),
    "/v1/models": answering(SGLANG_MODELS),
}


@asynccontextmanager
async def serving(routes: dict[str, Answer]) -> AsyncIterator[str]:
    """A server with these routes and 404 for others; yields its URL."""

    async def answer(request: web.Request) -> web.StreamResponse:
        route = routes.get(request.path)
        return web.Response(status=404) if route is None else route(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def test_long_answer_in_small_segments_is_read_whole() -> None:
    async with serving(SGLANG) as url:
        with SegmentingProxy(url) as proxy:
            facts = await look(proxy.url)
            assert proxy.segments > len(json.dumps(SGLANG_INFO)) // 8192, "the answer arrived in parts"
            wire = HttpWire(proxy.url)
            assert (await wire.get("/server_info", ServerInfo)).version == "0.5.23"
            await wire.close()
    assert facts == EngineFacts(
        kind="sglang",
        slots=32,
        context_tokens=4096,
        model="qwen",
        vocabulary=151_936,
        release="SGLang 0.5.23",
        root="/models/Qwen3-8B",
        architecture="Qwen3ForCausalLM",
        room_tokens=4090,
    )
    assert facts.described() == (
        "SGLang 0.5.23 (sglang protocol): model qwen, Qwen3ForCausalLM, context 4096 tokens, "
        "vocabulary 151936"
    )


@pytest.mark.parametrize("segment_bytes", [1, 100, 1448])
async def test_verdict_does_not_depend_on_the_segment_size(segment_bytes: int) -> None:
    short = SGLANG | {"/server_info": answering({**SGLANG_INFO, "launch_command": "x" * 2000})}
    async with serving(short) as url:
        with SegmentingProxy(url, segment_bytes, pause_s=0.0) as proxy:
            assert (await look(proxy.url)).kind == "sglang"
            assert proxy.largest <= segment_bytes


def cut_off(request: web.Request) -> web.StreamResponse:
    """A body that ends before its announced end."""
    assert request.transport is not None
    request.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n\r\n{" + b" " * 9000)
    request.transport.close()
    return web.Response()


def endless(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"{" + b" " * 5000)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (cut_off, "http://127.0.0.1"),
        (endless, "/server_info answers with more than 4096 bytes \\(5001 are announced\\)"),
        (answering({}, 503), "/server_info answers 503"),
        (answering({}, 401), "/server_info answers 401"),
        (lambda request: web.Response(text="hello"), "5 bytes that are no JSON"),
    ],
    ids=["cut off", "too long", "busy", "no key", "no JSON"],
)
async def test_incomplete_answer_gives_no_kind(
    answer: Answer, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_facts, "MAX_BYTES", 4096)
    async with serving({"/server_info": answer, "/v1/models": answering(VLLM_MODELS)}) as url:
        with pytest.raises(NoServer, match=message):
            await look(url)


@pytest.mark.parametrize("server_info", [None, answering({"vllm_config": {"model_config": {}}})])
async def test_server_without_sglang_routes_is_vllm(server_info: Answer | None) -> None:
    routes = {"/v1/models": answering(VLLM_MODELS), "/version": answering({"version": "0.32.0"})}
    async with serving(routes | ({} if server_info is None else {"/server_info": server_info})) as url:
        facts = await look(url)
    assert facts == EngineFacts(
        kind="vllm",
        slots=0,
        context_tokens=64,
        model="qwen",
        release="vLLM 0.32.0",
        root="/m/q",
        room_tokens=64,
    )


@pytest.mark.parametrize(
    "models", [SGLANG_MODELS, {"data": []}, {"data": [{"id": "x", "owned_by": "llamacpp"}]}]
)
async def test_server_of_another_kind_is_not_vllm(models: object) -> None:
    async with serving({"/v1/models": answering(models)}) as url:
        with pytest.raises(NoServer, match="is neither SGLang nor vLLM.*/v1/models names"):
            await look(url)


async def test_oversized_body_error_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_wire, "MAX_BODY_BYTES", 1000)
    async with serving({"/server_info": endless}) as url:
        wire = HttpWire(url)
        with pytest.raises(ServerDied, match=r"GET /server_info answers with more than 1000 bytes"):
            await wire.get("/server_info", ServerInfo)
        await wire.close()


async def test_body_without_a_length_is_limited() -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(10):
            await response.write(b"x" * 1000)
        return response

    app = web.Application()
    app.router.add_get("/", stream)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        async with session.get(url) as response:
            assert await whole_body(response, 10_000) == b"x" * 10_000
        async with session.get(url) as response:
            with pytest.raises(BodyTooLong, match="GET / answers with more than 9999 bytes"):
                await whole_body(response, 9999)
        async with session.get(url) as response:
            assert await body_start(response, 1500) == b"x" * 1500
    await runner.cleanup()
