"""Restarted requests and likeliest tokens when servers die.

The client gets the output of a single server, or an error that gives the reason."""

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
    status, payload = await running.post("/v1/completions", body_of(**more))
    assert status == 200, payload
    choice = json.loads(payload)["choices"][0]
    assert isinstance(choice, dict)
    return choice


async def killed_at_ten(running: Moe, one: ExpertServer, two: ExpertServer, asked: asyncio.Task[Any]) -> Any:
    await running.until_made(10)
    async with two:
        await running.engine_instead(one, two)
        return await asked


@pytest.mark.parametrize("field", [GRAMMAR, PENALTY], ids=["grammar", "penalty"])
async def test_request_that_cannot_be_continued_restarts(field: dict[str, object], tmp_path: Path) -> None:
    one, two = ExpertServer(1, hold_at=10), ExpertServer(2, apart=100)
    async with moe(tmp_path, one) as running:
        asked = asyncio.create_task(completed(running, **field))
        choice = await killed_at_ten(running, one, two, asked)
    assert two.asked == [PROMPT], "no token of the first engine"
    assert choice["token_ids"] == [token + 100 for token in RESPONSE], "all tokens are of one engine"
    assert choice["finish_reason"] == "length"


async def test_token_bias_request_continues_after_engine_death(tmp_path: Path) -> None:
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
                payload = json.loads(line[6:])
                error = payload.get("error", error)
                tokens += [token for choice in payload.get("choices", []) for token in choice["token_ids"]]
    return tokens, error


@pytest.mark.parametrize("apart", [0, 100])
async def test_stream_continues_if_tokens_repeat_and_else_fails(apart: int, tmp_path: Path) -> None:
    one, two = ExpertServer(1, hold_at=10), ExpertServer(2, apart=apart)
    async with moe(tmp_path, one) as running:
        asked = asyncio.create_task(streamed(running, **GRAMMAR))
        tokens, error = await killed_at_ten(running, one, two, asked)
    assert two.asked == [PROMPT]
    if apart:
        assert tokens == RESPONSE[: len(tokens)], "no token of the second engine"
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


async def test_likeliest_tokens_of_a_killed_engine_are_recomputed(
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


async def test_lost_likeliest_tokens_are_recomputed_before_the_answer(tmp_path: Path) -> None:
    async with moe(tmp_path, ExpertServer(1, silent=1)) as running:
        choice = await completed(running, logprobs=2, return_tokens_as_token_ids=True)
        assert choice["token_ids"] == RESPONSE
        assert tops(choice) == [1.0] * LIMIT


async def test_likeliest_tokens_have_log_probs_at_the_request_temperature(tmp_path: Path) -> None:
    async with moe(tmp_path, ExpertServer(1)) as running:
        choice = await completed(running, logprobs=2, return_tokens_as_token_ids=True, temperature=0.5)
        assert tops(choice) == [1.0] * LIMIT, "as the server reported them"


async def test_engine_refusal_gives_400_with_its_message(tmp_path: Path) -> None:
    async with moe(tmp_path, ExpertServer(1, unfit="no such grammar")) as running:
        status, payload = await running.post("/v1/completions", body_of(**GRAMMAR))
        assert status == 400, payload
        assert "no such grammar" in json.loads(payload)["error"]["message"]
