"""prime-rl: the generate client of `renderers`, on the openai package's transport, with its checks."""

import json
import math
from typing import Any, cast

import httpx
from openai import AsyncOpenAI

from tests.actors.rollout.gateway.clients.rollout import Rollout

EXPERTS = b'"routed_experts":{"data":"'
"""It cuts a blob out of the raw bytes at exactly this prefix."""


class MalformedGenerateResponseError(ValueError):
    """What `renderers` raises for evidence that it cannot train on."""


def parse(raw: bytes) -> dict[str, Any]:
    at = raw.find(EXPERTS)
    if at >= 0:
        end = raw.index(b'"', at + len(EXPERTS))
        raw = raw[: at + len(EXPERTS)] + raw[end:]
    return cast(dict[str, Any], json.loads(raw))


def evidence(choice: dict[str, Any]) -> tuple[list[int], list[float]]:
    """Tokens and log-probs, or the error."""
    tokens, content = choice["token_ids"], (choice.get("logprobs") or {}).get("content")
    if content is None:
        raise MalformedGenerateResponseError("no logprobs")
    if len(content) != len(tokens):
        raise MalformedGenerateResponseError(f"{len(content)} logprobs for {len(tokens)} tokens")
    for token, entry in zip(tokens, content, strict=True):
        if entry["token"] != f"token_id:{token}":
            raise MalformedGenerateResponseError(f"{entry['token']} stands for {token}")
        if not math.isfinite(entry["logprob"]) or entry["logprob"] == -9999.0:
            raise MalformedGenerateResponseError(f"logprob {entry['logprob']}")
    return tokens, [entry["logprob"] for entry in content]


async def longest(url: str, model: str) -> int | None:
    """`max_model_len` of the model, as it asks before its first request."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="EMPTY", max_retries=0) as client:
        payload = await client.get("/models", cast_to=cast(Any, dict[str, Any]))
    cards = [card for card in payload["data"] if card["id"] == model]
    return cards[0]["max_model_len"] if cards else None


async def rollout(url: str, model: str, prompt: list[int], limit: int) -> Rollout:
    sampling = {
        "temperature": 1.0,
        "top_p": 1.0,
        "max_tokens": limit,
        "skip_special_tokens": False,
        "stop_token_ids": [],
        "logprobs": 1,
    }
    body = {
        "model": model,
        "token_ids": prompt,
        "sampling_params": sampling,
        "cache_salt": "step-3",
        "priority": 0,
    }
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="EMPTY", max_retries=0) as client:
        response = await client.post(
            f"{url}/inference/v1/generate",
            cast_to=httpx.Response,
            body=body,
            options={"headers": {"X-Session-ID": "rollout-7", "X-data-parallel-rank": "0"}},
        )
    payload = parse(response.content)
    assert payload["request_id"]
    choice = payload["choices"][0]
    tokens, logprobs = evidence(choice)
    assert choice["finish_reason"] != "tool_calls", "that is for the client to find"
    return Rollout(tokens, logprobs, choice["finish_reason"], version=payload.get("weight_version"))
