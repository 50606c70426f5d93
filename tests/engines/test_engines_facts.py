"""Facts of real servers that answer in small segments: kind, context and model, as a gateway finds them."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines_world import Servers

sys.path.insert(0, str(Path(__file__).parent.parent / "gateway"))

from gateway_runs import Processes, get, greedy, healthy, post

from gleaner.actors.engine.servers.foreign_facts import differences
from gleaner.actors.engine.servers.server_facts import look
from tests.segmenting_proxy import SEGMENT_BYTES, SegmentingProxy

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

TURNS = [{"role": "user", "content": "ab"}]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path)
    yield found
    found.close()


async def test_server_behind_a_segmenting_proxy_is_identified(servers: Servers) -> None:
    with SegmentingProxy(servers.both[0].url) as proxy:
        for _ in range(10):
            facts = await look(proxy.url)
            assert facts.kind == servers.kind.name
        assert proxy.largest <= SEGMENT_BYTES
        info = await asyncio.to_thread(get, f"{proxy.url}/server_info")
        models = await asyncio.to_thread(get, f"{proxy.url}/v1/models")
    assert facts.context_tokens == models["data"][0]["max_model_len"]
    assert (facts.architecture, facts.vocabulary) == ("Qwen3ForCausalLM", 256)
    if servers.kind.name == "sglang":
        assert len(str(info)) > 2 * SEGMENT_BYTES, "the answer has several segments"
        assert facts.room_tokens == info["max_req_input_len"]
        assert facts.release == f"SGLang {info['version']}"
    assert differences(facts, await look(servers.both[1].url)) == []


async def test_gateway_serves_the_context_after_the_prompt(
    servers: Servers, processes: Processes, tmp_path: Path
) -> None:
    await servers.first_weights(tmp_path / "first")
    server = servers.both[0].url
    facts = await look(server)
    with SegmentingProxy(server) as one, SegmentingProxy(servers.both[1].url) as two:
        behind = ["--engine-url", one.url, "--engine-url", two.url, "--state-dir", str(tmp_path / "state")]
        processes.start("gateway", "gateway", "--listen", "127.0.0.1:0", *behind)
        url = await asyncio.to_thread(processes.url, "gateway")
        await asyncio.to_thread(processes.wait, lambda: len(healthy(url)) == 2, "both servers to be in use")
        assert f"engine {one.url}: {facts.described()}" in processes.printed("gateway")
        model = (await asyncio.to_thread(get, f"{url}/v1/models"))["data"][0]
        assert model["max_model_len"] == facts.context_tokens
        assert (await asyncio.to_thread(get, f"{url}/server_info"))["context_length"] == facts.context_tokens

        async def chat(**more: object) -> Any:
            body = {"model": model["id"], "messages": TURNS, "temperature": 0, "ignore_eos": True} | more
            return await asyncio.to_thread(post, f"{url}/v1/chat/completions", body)

        unlimited = await chat()
        prompt = unlimited["usage"]["prompt_tokens"]
        assert unlimited["choices"][0]["finish_reason"] == "length"
        assert unlimited["usage"]["completion_tokens"] == facts.room - prompt
        named = await chat(max_tokens=facts.context_tokens - prompt)
        assert named["choices"] == unlimited["choices"], (
            "a limit within the context is cut to the free tokens"
        )
        assert (await chat(max_tokens=0))["usage"]["completion_tokens"] == 0
        whole = await greedy(url, [5] * (facts.room - 1), 1)
        assert len(whole[0]) == 1, "the last token that a continuation may have to make"
        read = await greedy(url, [5, 9, 11], 0, whole=True)
        assert read["output_ids"] == []
        assert read["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
        if servers.kind.name == "sglang":
            own = await greedy(server, [5, 9, 11], 0, whole=True)
            for key in ("finish_reason", "completion_tokens", "prompt_tokens", "output_token_logprobs"):
                assert read["meta_info"][key] == own["meta_info"][key], key
        assert processes.end("gateway") == 0
