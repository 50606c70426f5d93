"""Length limit of a response: the part of the engines' context that the prompt leaves free."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from gleaner.actors.gateway.ask import End, Piece
from gleaner.actors.gateway.calls import ServedModel
from gleaner.actors.gateway.routes import ROUTES
from tests.actors.gateway.gateway_world import World, pieces, serving

SERVED = ServedModel(model="tiny", max_prompt_tokens=57, max_new_tokens=64, context_tokens=64, room_tokens=58)
"""As SGLang with a context of 64 reports it."""
PROMPT = [7] * 50
TURNS = [{"role": "user", "content": "x" * 30}]
TURNS_TOKENS = len("user: " + "x" * 30 + "\nassistant: ")

CALLS: list[tuple[str, dict[str, Any], int, int | None]] = [
    ("/generate", {"input_ids": PROMPT}, 50, 128),
    ("/generate", {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": None}}, 50, None),
    ("/v1/completions", {"prompt": PROMPT}, 50, 16),
    ("/v1/completions", {"prompt": PROMPT, "max_tokens": None}, 50, None),
    ("/v1/chat/completions", {"messages": TURNS}, TURNS_TOKENS, None),
    ("/inference/v1/generate", {"token_ids": PROMPT}, 50, 16),
    ("/inference/v1/generate", {"token_ids": PROMPT, "sampling_params": {"max_tokens": None}}, 50, None),
    ("/generate/", {"prompts": [PROMPT]}, 50, 16),
    ("/chat/", {"messages": [TURNS]}, TURNS_TOKENS, 16),
]
"""A route, a body that leaves the limit out, tokens of its prompt, the route's usual limit."""
RESPONSES: tuple[str, dict[str, Any], int, int | None] = (
    "/v1/responses",
    {"input": "x" * 30},
    TURNS_TOKENS,
    None,
)
LIMITS = {
    "/generate": ("sampling_params", "max_new_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/chat/completions": ("max_completion_tokens",),
    "/inference/v1/generate": ("sampling_params", "max_tokens"),
    "/generate/": ("max_tokens",),
    "/chat/": ("max_tokens",),
}


async def post(world: World, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    async with world.client.post(world.url + path, json=body) as response:
        return response.status, await response.json()


def limited(path: str, body: dict[str, Any], limit: int) -> dict[str, Any]:
    *outer, name = LIMITS[path]
    return body | ({outer[0]: {name: limit}} if outer else {name: limit})


@pytest.mark.parametrize(("path", "body", "prompt", "usual"), [*CALLS, RESPONSES])
async def test_default_limit_is_the_space_after_the_prompt(
    path: str, body: dict[str, Any], prompt: int, usual: int | None
) -> None:
    async with serving(ROUTES, pieces([65, 66], []), served=SERVED) as world:
        status, answer = await post(world, path, body)
    assert status == 200, answer
    assert [ask.max_new_tokens for ask in world.requests.asked] == [min(usual or 64, 58 - prompt)]


@pytest.mark.parametrize(("path", "body", "prompt", "usual"), CALLS)
async def test_limit_beyond_the_context_is_refused_by_name(
    path: str, body: dict[str, Any], prompt: int, usual: int | None
) -> None:
    async with serving(ROUTES, pieces([65, 66], []), served=SERVED) as world:
        status, answer = await post(world, path, limited(path, body, 64 - prompt + 1))
        assert status == 400, answer
        assert answer["error"]["param"] == ".".join(LIMITS[path])
        assert "maximum context length is 64 tokens" in answer["error"]["message"]
        status, answer = await post(world, path, limited(path, body, 64 - prompt))
        assert status == 200, "a limit within the context is accepted, as by SGLang"
        assert [ask.max_new_tokens for ask in world.requests.asked] == [58 - prompt], (
            "and is cut to the free tokens"
        )


async def test_prompt_without_free_context_is_refused() -> None:
    async with serving(ROUTES, pieces([65, 66], []), served=SERVED) as world:
        status, answer = await post(world, "/generate", {"input_ids": [7] * 58})
        assert (status, answer["error"]["param"]) == (400, "input_ids")
        status, _ = await post(world, "/generate", {"input_ids": [7] * 57})
        assert status == 200
    assert [ask.max_new_tokens for ask in world.requests.asked] == [1]


async def test_limit_of_zero_reads_the_prompt_only() -> None:
    read: list[Piece | End] = [Piece([65], [-0.5], 3), End("length", ((3, 1),), 3, 3)]
    async with serving(ROUTES, read, served=SERVED) as world:
        body: dict[str, Any] = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 0}}
        status, answer = await post(world, "/generate", body | {"return_logprob": True})
        assert status == 200
        assert (answer["text"], answer["output_ids"]) == ("", [])
        meta = answer["meta_info"]
        assert meta["finish_reason"] == {"type": "length", "length": 0}
        assert (meta["prompt_tokens"], meta["completion_tokens"]) == (3, 0)
        assert (meta["output_token_logprobs"], meta["output_token_logprobs_length"]) == ([], 0)
        assert meta["weight_version"] == "3"
        assert meta["weight_versions"] == [{"version": "3", "start": 0, "end": 0}]
        async with world.client.post(world.url + "/generate", json=body | {"stream": True}) as response:
            events = (await response.text()).removesuffix("\n\n").split("\n\n")
        assert len(events) == 2
        assert json.loads(events[0].removeprefix("data: "))["output_ids"] == []
        for path, more in (
            ("/v1/chat/completions", {"messages": TURNS}),
            ("/v1/completions", {"prompt": "a"}),
        ):
            status, answer = await post(world, path, {**more, "max_tokens": 0})
            assert status == 200
            assert answer["choices"][0]["finish_reason"] == "length"
            assert answer["usage"]["completion_tokens"] == 0
    assert {(ask.max_new_tokens, ask.prompt_only) for ask in world.requests.asked} == {(1, True)}


async def test_negative_limit_is_refused() -> None:
    async with serving(ROUTES, pieces([65], []), served=SERVED) as world:
        body = {"input_ids": [1], "sampling_params": {"max_new_tokens": -1}}
        status, answer = await post(world, "/generate", body)
    assert (status, answer["error"]["param"]) == (400, "sampling_params.max_new_tokens")


async def test_reported_context_is_that_of_the_engines() -> None:
    async with serving(ROUTES, served=SERVED) as world:

        async def get(path: str) -> Any:
            async with world.client.get(world.url + path) as response:
                return await response.json()

        assert (await get("/v1/models"))["data"][0]["max_model_len"] == 64
        assert (await get("/model_info"))["max_model_len"] == 64
        info = await get("/server_info")
        assert (info["context_length"], info["max_req_input_len"]) == (64, 58)


@given(
    context=st.integers(2, 300),
    slack=st.integers(0, 8),
    prompt=st.integers(1, 320),
    asked=st.one_of(st.none(), st.just(UNSET), st.integers(-2, 320)),
    usual=st.one_of(st.none(), st.integers(1, 200)),
)
def test_response_can_be_continued_at_any_token(
    context: int, slack: int, prompt: int, asked: Any, usual: int | None
) -> None:
    capacity = max(2, context - slack)
    served = ServedModel("m", capacity - 1, context, context_tokens=context, room_tokens=capacity)
    try:
        limit = served.response_tokens(prompt, asked, usual)
    except ValueError:
        assert prompt >= capacity or (isinstance(asked, int) and not 0 <= asked <= context - prompt)
        return
    assert 0 <= limit <= capacity - prompt
    if isinstance(asked, int):
        assert limit == min(asked, capacity - prompt)
    else:
        assert limit == (min(usual, capacity - prompt) if asked is UNSET and usual else capacity - prompt)
