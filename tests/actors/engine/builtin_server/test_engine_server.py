"""Builtin engine server in this process: effects of each route on requests.

The routes are those of SGLang's protocol.
"""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from served import Client, Serve, make_folder

from gleaner.actors.engine.servers.port import Ask, Loads
from gleaner.actors.engine.servers.sglang import SglangWire
from gleaner.actors.model.checkpoint import load_checkpoint
from gleaner.actors.model.flat_image import image_bytes, weight_layout, write_weights
from gleaner.actors.protocol.sampling_params import Sampling
from gleaner.actors.protocol.weights import Fetched
from gleaner.actors.weights.image.store import ImageStore

Answer = dict[str, Any]
PROMPT = [40, 41, 42, 43]
LONG = {"max_new_tokens": 192, "sampling_seed": 5, "ignore_eos": True}


async def post(client: Client, path: str, **body: object) -> tuple[int, Any]:
    async with client.post(path, json=body) as answer:
        raw = await answer.read()
        return answer.status, json.loads(raw) if raw else None


async def generate(client: Client, **body: object) -> Answer:
    body.setdefault("input_ids", PROMPT)
    status, answer = await post(client, "/generate", **body)
    assert status == 200, answer
    return answer


async def chunks(client: Client, **body: object) -> AsyncIterator[Answer]:
    body.setdefault("input_ids", PROMPT)
    async with client.post("/generate", json={"stream": True, **body}) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"
        async for line in answer.content:
            if line.strip() == b"data: [DONE]":
                return
            if line.strip():
                yield json.loads(line.removeprefix(b"data: "))
    raise AssertionError("the stream has no end")


async def running(client: Client) -> int:
    async with client.get("/get_load") as answer:
        return int((await answer.json())[0]["num_reqs"])


async def until(client: Client, n: int) -> None:
    async with asyncio.timeout(60):
        while await running(client) != n:
            await asyncio.sleep(0.01)


async def test_last_chunk_is_the_whole_answer(
    serve: Serve,
) -> None:
    client = await serve()
    asked = {"sampling_params": {"max_new_tokens": 24, "sampling_seed": 3}, "return_logprob": True}
    whole = await generate(client, **asked)
    seen = [chunk async for chunk in chunks(client, **asked)]
    assert len(seen) > 1
    for chunk in seen:
        n = chunk["meta_info"]["completion_tokens"]
        assert chunk["output_ids"] == whole["output_ids"][:n]
        assert chunk["meta_info"]["output_token_logprobs"] == whole["meta_info"]["output_token_logprobs"][:n]
        assert [one[1] for one in chunk["meta_info"]["output_token_logprobs"]] == chunk["output_ids"]
    assert [chunk["meta_info"]["finish_reason"] for chunk in seen[:-1]] == [None] * (len(seen) - 1)
    last = seen[-1]
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 24}
    assert (last["text"], last["output_ids"]) == (whole["text"], whole["output_ids"])
    assert last["meta_info"]["weight_versions"] == [{"version": "default", "start": 0, "end": 24}]


async def test_continued_response_equals_an_uncut_one(serve: Serve) -> None:
    client, another = await serve(), await serve()
    params = {"max_new_tokens": 30, "sampling_seed": 9, "ignore_eos": True}
    whole = (await generate(client, sampling_params=params))["output_ids"]
    assert len(set(whole)) > 5
    for cut in (1, 13, 29):
        body = {
            "input_ids": PROMPT + whole[:cut],
            "response_start": len(PROMPT),
            "sampling_params": params | {"max_new_tokens": 30 - cut},
        }
        assert (await generate(another, **body))["output_ids"] == whole[cut:]
    body.pop("response_start")  # now all tokens are a prompt, and token 0 is the first new one
    assert (await generate(another, **body))["output_ids"] != whole[cut:]


async def test_min_length_of_continued_response_counts_from_start(serve: Serve) -> None:
    client = await serve()
    stops, ends = list(range(44, 108)), set()
    for start, seed in ((4, 1), (2, 2), (1, 3)):
        params = {"max_new_tokens": 9, "min_new_tokens": 3, "stop_token_ids": stops, "sampling_seed": seed}
        answer = await generate(client, input_ids=PROMPT, response_start=start, sampling_params=params)
        assert not {*answer["output_ids"][:3]} & {*stops}
        ends.add(answer["meta_info"]["finish_reason"]["type"])
    assert "stop" in ends


async def test_sglang_adapter_drives_the_server_and_continues_exactly(
    serve: Serve, tmp_path: Path, folder: Path
) -> None:
    client, free = await serve(exact=True), Sampling(ignore_eos=True)
    wire = SglangWire(str(client.make_url("")).rstrip("/"), None)
    try:
        await wire.stage(published(tmp_path, folder))
        name = await wire.commit()
        assert name.startswith("v7-")
        whole = await streamed(wire, Ask("a", array("I", PROMPT), 20, 1.0, seed=11, sampling=free))
        assert (len(whole[0]), whole[1], whole[2]) == (20, "length", {name})
        tokens = array("I", PROMPT + whole[0][:8])
        cut = Ask("b", tokens, 12, 1.0, seed=11, made=8, sampling=free)
        assert (await streamed(wire, cut))[0] == whole[0][8:]
        assert await wire.loads() == Loads(0, 0)
        await wire.healthy()
        await wire.abort(["nobody's"])
    finally:
        await wire.disconnect()
        wire.close()


async def streamed(wire: SglangWire, ask: Ask) -> tuple[list[int], str | None, set[str]]:
    """The tokens of a stream, its end, and the versions that it named."""
    seen = [chunk async for chunk in wire.stream(ask)]
    return [token for chunk in seen for token in chunk.tokens], seen[-1].finish, {one.version for one in seen}


def published(root: Path, folder: Path) -> Fetched:
    """The model of a folder as an image of weights, as an instance receives it."""
    model = load_checkpoint(folder)
    specs, store = tuple(weight_layout(model)), ImageStore(root / "store")
    with store.create(7, image_bytes(specs), specs) as draft:
        write_weights(model, draft.view)
        draft.seal()
    return Fetched(
        version=7,
        root=b"0123",
        path=str(store.path(7)),
        tensors=specs,
        model_config=msgspec.json.encode(model.config),
        pulled_bytes=0,
        seconds=0.0,
    )


async def test_batch_is_answered_in_order_and_streams_indexed(serve: Serve) -> None:
    client = await serve()
    prompts, params = [[40], [41, 42], [43]], {"max_new_tokens": 5, "sampling_seed": 1}
    alone = [(await generate(client, input_ids=one, sampling_params=params))["output_ids"] for one in prompts]
    batch = await generate(client, input_ids=prompts, sampling_params=params, rid="b")
    assert [one["output_ids"] for one in batch] == alone
    assert [one["meta_info"]["id"] for one in batch] == ["b_0", "b_1", "b_2"]
    last = {
        chunk["index"]: chunk["output_ids"]
        async for chunk in chunks(client, input_ids=prompts, sampling_params=params)
    }
    assert last == dict(enumerate(alone))


async def test_text_is_encoded_decoded_and_stopped(serve: Serve) -> None:
    client = await serve()
    asked = {
        "input_ids": None,
        "text": "hello",
        "sampling_params": {"max_new_tokens": 40, "sampling_seed": 2},
    }
    whole = await generate(client, **asked)
    stop = whole["text"][7:9]
    asked["sampling_params"] |= {"stop": ["never found", stop]}
    cut = await generate(client, **asked)
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert cut["text"] == whole["text"].partition(stop)[0]
    assert len(cut["output_ids"]) < len(whole["output_ids"])
    asked["sampling_params"] |= {"no_stop_trim": True}
    assert (await generate(client, **asked))["text"].startswith(cut["text"] + stop)
    token = whole["output_ids"][3]
    asked["sampling_params"] |= {"stop": None, "stop_token_ids": [token], "no_stop_trim": False}
    ended = await generate(client, **asked)
    assert ended["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}
    assert ended["output_ids"] == whole["output_ids"][: whole["output_ids"].index(token) + 1]
    await until(client, 0)


async def test_aborted_request_answers_with_its_tokens(serve: Serve) -> None:
    client = await serve(slots=1)
    stream = chunks(client, rid="r0", sampling_params=LONG, return_logprob=True)
    await anext(stream)
    await post(client, "/pause_generation", mode="in_place")
    waiting = [
        asyncio.ensure_future(generate(client, rid=f"r{n}", sampling_params=LONG, return_logprob=True))
        for n in (1, 2)
    ]
    await until(client, 3)
    assert await post(client, "/abort_request", rid="r") == (200, None)  # no request of that name
    assert await running(client) == 3
    assert await post(client, "/abort_request", rid="r2") == (200, None)
    ended = [await waiting[1]]
    assert await post(client, "/abort_request", abort_all=True) == (200, None)
    ended += [await waiting[0]]
    for one in ended:  # these requests never had the slot
        assert one["meta_info"]["finish_reason"]["type"] == "abort"
        assert (one["output_ids"], one["meta_info"]["output_token_logprobs"]) == ([], [])
    first = [chunk async for chunk in stream][-1]
    assert first["meta_info"]["finish_reason"]["type"] == "abort"
    assert 192 > len(first["output_ids"]) == len(first["meta_info"]["output_token_logprobs"]) > 0
    assert await running(client) == 0
    await post(client, "/continue_generation")
    assert len((await generate(client, sampling_params={"max_new_tokens": 2}))["output_ids"]) == 2


async def test_client_that_disconnects_frees_its_slot(serve: Serve) -> None:
    client = await serve(slots=1)
    stream = chunks(client, sampling_params=LONG)
    await anext(stream)
    await post(client, "/pause_generation", mode="in_place")  # so that nothing ends by itself
    waiting = asyncio.ensure_future(generate(client, sampling_params=LONG))
    await until(client, 2)
    await stream.aclose()
    await until(client, 1)
    waiting.cancel()
    await until(client, 0)
    await post(client, "/continue_generation")
    assert len((await generate(client, sampling_params={"max_new_tokens": 2}))["output_ids"]) == 2


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_weights_changed_in_a_pause_continue_the_response(serve: Serve, other: Path, mode: str) -> None:
    client = await serve()
    stream = chunks(client, sampling_params=LONG)
    first = await anext(stream)
    assert (await post(client, "/pause_generation", mode=mode))[0] == 200
    held = asyncio.ensure_future(generate(client, sampling_params={"max_new_tokens": 3, "sampling_seed": 8}))
    status, reply = await post(
        client, "/update_weights_from_disk", model_path=str(other), weight_version="w-2"
    )
    assert (status, reply["success"], reply["num_paused_requests"] >= 1) == (200, True, True)
    async with client.get("/health_generate") as probe:
        assert probe.status == 503
    await post(client, "/continue_generation")
    seen = [first, *[chunk async for chunk in stream]]
    old, new = seen[-1]["meta_info"]["weight_versions"]
    assert (old["version"], old["start"], new["version"], new["end"]) == ("default", 0, "w-2", 192)
    assert 0 < old["end"] == new["start"] < 192
    assert seen[-1]["meta_info"]["weight_version"] == "w-2"
    # after the change, the new weights continue the tokens before it
    tokens = seen[-1]["output_ids"]
    fresh = await serve(other)
    rest = await generate(
        fresh,
        input_ids=PROMPT + tokens[: new["start"]],
        response_start=len(PROMPT),
        sampling_params=LONG | {"max_new_tokens": 192 - new["start"]},
    )
    assert rest["output_ids"] == tokens[new["start"] :]
    assert (await held)["meta_info"]["weight_versions"] == [{"version": "w-2", "start": 0, "end": 3}]


async def test_weights_wait_for_running_requests_unless_they_abort(serve: Serve, other: Path) -> None:
    client = await serve()
    body = {"model_path": str(other)}
    stream = chunks(client, sampling_params=LONG)
    await anext(stream)
    change = asyncio.ensure_future(post(client, "/update_weights_from_disk", **body, weight_version="w-2"))
    seen = [chunk async for chunk in stream]
    assert seen[-1]["meta_info"]["weight_versions"] == [{"version": "default", "start": 0, "end": 192}]
    assert (await change)[0] == 200
    stream = chunks(client, sampling_params=LONG)
    await anext(stream)
    await post(client, "/pause_generation", mode="in_place")
    await post(client, "/update_weights_from_disk", **body, weight_version="w-3", abort_all_requests=True)
    seen = [chunk async for chunk in stream]
    assert seen[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    async with client.get("/model_info") as answer:
        assert (await answer.json())["weight_version"] == "w-3"


async def test_unfit_weights_are_named_and_change_nothing(serve: Serve, tmp_path: Path) -> None:
    client = await serve()
    params = {"max_new_tokens": 9, "sampling_seed": 4}
    before = await generate(client, sampling_params=params)
    larger = make_folder(tmp_path / "larger", intermediate_size=96)
    for path, why in ((larger, "another model"), (tmp_path / "nowhere", "is not a directory")):
        status, reply = await post(
            client, "/update_weights_from_disk", model_path=str(path), weight_version="x"
        )
        assert (status, reply["success"]) == (400, False)
        assert str(path) in reply["message"]
        assert why in reply["message"]
    after = await generate(client, sampling_params=params)
    assert after["output_ids"] == before["output_ids"]
    assert after["meta_info"]["weight_version"] == "default"


async def test_aborting_pause_ends_running_and_holds_new_requests(serve: Serve) -> None:
    client = await serve()
    stream = chunks(client, sampling_params=LONG)
    await anext(stream)
    assert (await post(client, "/pause_generation"))[0] == 200
    assert [chunk async for chunk in stream][-1]["meta_info"]["finish_reason"]["type"] == "abort"
    held = asyncio.ensure_future(generate(client, sampling_params={"max_new_tokens": 2}))
    await until(client, 1)
    async with client.get("/flush_cache") as answer:
        assert answer.status == 400
    await asyncio.sleep(0.05)
    assert not held.done()
    for _ in range(2):  # a repetition changes nothing
        assert (await post(client, "/continue_generation"))[0] == 200
    assert len((await held)["output_ids"]) == 2
    async with client.post("/flush_cache?timeout=20") as answer:
        assert answer.status == 200


WRONG: list[tuple[dict[str, object], str]] = [
    ({}, "text, input_ids"),
    ({"input_ids": [1], "text": "a"}, "text, input_ids"),
    ({"input_ids": []}, "empty"),
    ({"input_ids": [[1], 2]}, "not both"),
    ({"input_ids": [10**6]}, "1000000 is no token"),
    ({"input_ids": [-1]}, "-1 is no token"),
    ({"input_ids": ["a"]}, "input_ids"),
    ({"input_ids": [1], "nonsense": 1}, "nonsense"),
    ({"input_ids": [1], "sampling_params": {"top": 1}}, "top"),
    ({"input_ids": [1], "sampling_params": {"top_p": 0}}, "top_p"),
    ({"input_ids": [1], "sampling_params": {"temperature": -1}}, "temperature"),
    ({"input_ids": [1], "sampling_params": {"max_new_tokens": 600}}, "max_new_tokens"),
    ({"input_ids": [1], "sampling_params": {"n": 2}}, "n: expected 1"),
    ({"input_ids": [1], "sampling_params": {"regex": "a*"}}, "regex"),
    ({"input_ids": [1], "sampling_params": {"frequency_penalty": 1}}, "frequency_penalty"),
    ({"input_ids": [1], "image_data": "x"}, "image_data"),
    ({"input_ids": [1], "logprob_start_len": 0}, "logprob_start_len"),
    ({"input_ids": [1, 2], "response_start": 3}, "response_start"),
    ({"input_ids": [[1], [2]], "rid": ["a", "a"]}, "rid"),
    ({"input_ids": [[1], [2]], "return_logprob": [True]}, "return_logprob"),
]


async def test_invalid_request_gets_the_reason(serve: Serve) -> None:
    client = await serve()
    for body, word in WRONG:
        for stream in (False, True):
            status, reply = await post(client, "/generate", **body, stream=stream)
            assert (status, reply["error"]["code"]) == (400, 400)
            assert word in reply["error"]["message"]
    assert await running(client) == 0


async def test_garbage_and_unknown_routes_get_a_reason(serve: Serve) -> None:
    client = await serve(api_key="secret")
    head = {"Authorization": "Bearer secret"}
    for path in ("/generate", "/abort_request", "/pause_generation", "/update_weights_from_disk"):
        for body in (b"{", b"[]", b'"a"', b"\xff\xfe", b'{"x": 1}', b"[" * 10_000):
            async with client.post(path, data=body, headers=head) as answer:
                assert answer.status == 400, (path, body)
                assert (await answer.json())["error"]["message"]
    for path, status in (("/nowhere", 404), ("/generate", 405)):
        async with client.get(path, headers=head) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (status, status)
    async with client.get("/server_info") as answer:
        assert (answer.status, "Bearer" in (await answer.json())["error"]["message"]) == (401, True)
    async with client.get("/health") as answer:
        assert answer.status == 200


async def test_oversized_body_is_refused_with_the_limit(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gleaner.actors.engine.builtin_server.application.MAX_BODY_BYTES", 1024)
    client = await serve()
    async with client.post("/generate", data=b" " * 1500) as answer:
        assert answer.status == 413
        assert "1024" in (await answer.json())["error"]["message"]


async def test_reported_state_agrees_with_the_behaviour(serve: Serve) -> None:
    client = await serve(slots=2)
    streams = [chunks(client, sampling_params=LONG) for _ in range(2)]
    for stream in streams:
        await anext(stream)
    async with client.get("/health_generate") as answer:
        assert answer.status == 200
    await post(client, "/pause_generation", mode="in_place")
    waiting = asyncio.ensure_future(generate(client, sampling_params=LONG))
    await until(client, 3)
    async with client.get("/v1/loads?include=core") as answer:
        load = (await answer.json())["loads"][0]
    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["utilization"]) == (2, 1, 1.0)
    assert 2 * len(PROMPT) < load["num_used_tokens"] < load["num_total_tokens"] - 3
    assert load["max_total_num_tokens"] == 2 * 512
    await post(client, "/abort_request", abort_all=True)
    ends = [[chunk async for chunk in stream][-1] for stream in streams]
    made = sum(len(one["output_ids"]) for one in [*ends, await waiting])
    async with client.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    total = {name.partition("{")[0]: float(value) for name, value in figures.items()}
    assert total["sglang:generation_tokens_total"] == made > 0
    assert total["sglang:num_aborted_requests_total"] == total["sglang:num_requests_total"] == 3
    async with client.get("/server_info") as answer:
        info = await answer.json()
    assert (info["status"], info["max_running_requests"], info["response_start"]) == ("paused", 2, True)
