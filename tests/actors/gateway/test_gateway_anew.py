"""Requests that no other engine can continue, and likeliest tokens, before servers that die: what the client
gets is of one server, or says plainly that it cannot be had."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.actors.gateway.expert_server import ExpertServer
from tests.actors.gateway.test_gateway_experts import LIMIT, PROMPT, RESPONSE, Moe, moe

GRAMMAR = {"regex": "a+"}
PENALTY = {"presence_penalty": 0.5}


def body_of(**more: object) -> dict[str, object]:
    return {"prompt": PROMPT, "max_tokens": LIMIT, "ignore_eos": True, "return_token_ids": True, **more}


async def completed(running: Moe, **more: object) -> dict[str, Any]:
    status, said = await running.post("/v1/completions", body_of(**more))
    assert status == 200, said
    choice = json.loads(said)["choices"][0]
    assert isinstance(choice, dict)
    return choice


async def killed_at_ten(running: Moe, one: ExpertServer, two: ExpertServer, asked: asyncio.Task[Any]) -> Any:
    await running.until_made(10)
    async with two:
        await running.engine_instead(one, two)
        return await asked


@pytest.mark.parametrize("field", [GRAMMAR, PENALTY], ids=["grammar", "penalty"])
async def test_a_request_that_no_other_engine_can_continue_begins_anew(
    field: dict[str, object], tmp_path: Path
) -> None:
    one, two = ExpertServer(1, hold_at=10), ExpertServer(2, apart=100)
    async with moe(tmp_path, one) as running:
        asked = asyncio.create_task(completed(running, **field))
        choice = await killed_at_ten(running, one, two, asked)
    assert two.asked == [PROMPT], "nothing of what the first one made"
    assert choice["token_ids"] == [token + 100 for token in RESPONSE], "all of it is of one engine"
    assert choice["finish_reason"] == "length"


async def test_a_token_bias_is_continued_where_the_engine_died(tmp_path: Path) -> None:
    one, two = ExpertServer(1, hold_at=10), ExpertServer(2)
    async with moe(tmp_path, one) as running:
        asked = asyncio.create_task(completed(running, logit_bias={"7": 3.0}))
        choice = await killed_at_ten(running, one, two, asked)
    assert two.asked == [[*PROMPT, *RESPONSE[:10]]]
    assert two.params[0]["logit_bias"] == {"7": 3.0}
    assert choice["token_ids"] == RESPONSE


async def streamed(running: Moe, **more: object) -> tuple[list[int], dict[str, Any]]:
    """The tokens of a stream, and the error that ended it."""
    tokens: list[int] = []
    error: dict[str, Any] = {}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as client,
        client.post(f"{running.url}/v1/completions", json=body_of(stream=True, **more)) as reply,
    ):
        async for line in reply.content:
            if line.startswith(b"data: {"):
                said = json.loads(line[6:])
                error = said.get("error", error)
                tokens += [token for choice in said.get("choices", []) for token in choice["token_ids"]]
    return tokens, error


@pytest.mark.parametrize("apart", [0, 100])
async def test_a_stream_goes_on_where_the_new_one_repeats_what_was_told_and_else_says_so(
    apart: int, tmp_path: Path
) -> None:
    one, two = ExpertServer(1, hold_at=10), ExpertServer(2, apart=apart)
    async with moe(tmp_path, one) as running:
        asked = asyncio.create_task(streamed(running, **GRAMMAR))
        tokens, error = await killed_at_ten(running, one, two, asked)
    assert two.asked == [PROMPT]
    if apart:
        assert tokens == RESPONSE[: len(tokens)], "nothing of the second one"
        assert (error["code"], error["retryable"]) == (503, True)
    else:
        assert tokens == RESPONSE
        assert not error


def tops(choice: dict[str, Any]) -> list[float]:
    """By how much the second of the likeliest tokens is less likely, place by place."""
    found = []
    for own, top in zip(
        choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"], strict=True
    ):
        if top is not None:
            assert len(top) == 2
            found.append(round(own - min(top.values()), 3))
    return found


async def test_likeliest_tokens_of_a_killed_engine_are_those_that_the_next_one_computes(
    tmp_path: Path,
) -> None:
    one, two = ExpertServer(1, hold_at=10), ExpertServer(2)
    async with moe(tmp_path, one) as running:
        asked = asyncio.create_task(
            completed(running, logprobs=2, echo=True, return_tokens_as_token_ids=True)
        )
        choice = await killed_at_ten(running, one, two, asked)
    assert choice["token_ids"] == RESPONSE
    assert tops(choice) == [2.0] * (len(PROMPT) + LIMIT - 1)


async def test_likeliest_tokens_that_were_lost_are_computed_again_before_the_answer(tmp_path: Path) -> None:
    async with moe(tmp_path, ExpertServer(1, silent=1)) as running:
        choice = await completed(running, logprobs=2, return_tokens_as_token_ids=True)
        assert choice["token_ids"] == RESPONSE
        assert tops(choice) == [1.0] * LIMIT


async def test_likeliest_tokens_have_the_log_probs_of_the_requests_temperature(tmp_path: Path) -> None:
    async with moe(tmp_path, ExpertServer(1)) as running:
        choice = await completed(running, logprobs=2, return_tokens_as_token_ids=True, temperature=0.5)
        assert tops(choice) == [1.0] * LIMIT, "as the server told them"


async def test_a_refusal_of_the_engine_is_400_with_its_words(tmp_path: Path) -> None:
    async with moe(tmp_path, ExpertServer(1, unfit="no such grammar")) as running:
        status, said = await running.post("/v1/completions", body_of(**GRAMMAR))
        assert status == 400, said
        assert "no such grammar" in json.loads(said)["error"]["message"]
