"""slime: its rollout over a router's `/generate`, whole and streamed, and the abort at the end of a round."""

import asyncio
import json
from typing import Any

import httpx

from tests.actors.gateway.clients.rollout import Rollout, post

HEADERS = {"X-SMG-Routing-Key": "session-1"}


def body_of(prompt: list[int], limit: int) -> dict[str, Any]:
    return {
        "sampling_params": {
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "max_new_tokens": limit,
            "stop": None,
            "stop_token_ids": None,
            "skip_special_tokens": False,
            "no_stop_trim": True,
            "spaces_between_special_tokens": False,
        },
        "return_logprob": True,
        "input_ids": prompt,
    }


def read(output: dict[str, Any]) -> Rollout:
    meta, text = output["meta_info"], output["text"]
    rows = meta.get("output_token_logprobs", [])
    reason = meta["finish_reason"]["type"]
    return Rollout(
        [row[1] for row in rows], [row[0] for row in rows], reason, text, str(meta["weight_version"])
    )


async def rollout(url: str, model: str, prompt: list[int], limit: int) -> Rollout:
    return read(json.loads(await post(f"{url}/generate", body_of(prompt, limit), HEADERS)))


async def streamed(url: str, model: str, prompt: list[int], limit: int) -> Rollout:
    """Chunks are cumulative: the last one is the answer, and each contains all earlier ones."""
    last, before = None, 0
    body = {**body_of(prompt, limit), "stream": True}
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", f"{url}/generate", json=body, headers=HEADERS) as response,
    ):
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            data = line[len("data:") :].strip()
            if data == "[DONE]":
                break
            last = json.loads(data)
            rows = last["meta_info"].get("output_token_logprobs", [])
            assert len(rows) >= before
            before = len(rows)
    assert last is not None
    return read(last)


async def abort_all(url: str, every_s: float = 3.0, rounds: int = 20) -> list[str]:
    """End a round: send aborts to each worker of the router until the worker has no request. slime does not
    limit the rounds."""
    async with httpx.AsyncClient(timeout=60) as client:
        workers = (await client.get(f"{url}/workers")).json()["workers"]
        urls = [worker["url"] for worker in workers]
        for worker in urls:
            for _ in range(rounds):
                (await client.post(f"{worker}/abort_request", json={"abort_all": True})).raise_for_status()
                loads = (await client.get(f"{worker}/v1/loads?include=core")).json()
                if count(loads) == 0:
                    break
                await asyncio.sleep(every_s)
            else:
                raise AssertionError(f"{worker} never came to rest")
    return urls


def count(loads: Any) -> int:
    """Requests in the answer, by the first of the names that slime knows."""
    if isinstance(loads, list):
        return sum(count(one) for one in loads)
    for name in ("num_reqs", "num_total_reqs", "total_reqs"):
        if isinstance(loads.get(name), int):
            return int(loads[name])
    names = ("num_running_reqs", "total_running_reqs"), ("num_waiting_reqs", "total_waiting_reqs")
    found = [next((loads[name] for name in pair if name in loads), None) for pair in names]
    if found != [None, None]:
        return sum(one or 0 for one in found)
    return count(loads["loads"])
