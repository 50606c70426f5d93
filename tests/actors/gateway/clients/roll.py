"""ROLL: `/generate` with a request id of its own, its abort, and the load that it balances by."""

import json
from uuid import uuid4

import httpx

from tests.actors.gateway.clients.rollout import Rollout, post


async def rollout(url: str, model: str, prompt: list[int], limit: int, rid: str | None = None) -> Rollout:
    body = {
        "rid": rid or uuid4().hex,
        "input_ids": prompt,
        "sampling_params": {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": limit},
        "return_logprob": True,
    }
    meta = json.loads(await post(f"{url}/generate", body, spaced=True))["meta_info"]
    rows = meta["output_token_logprobs"]
    return Rollout([row[1] for row in rows], [row[0] for row in rows], meta["finish_reason"]["type"])


async def abort(url: str, rid: str) -> None:
    await post(f"{url}/abort_request", {"rid": rid}, spaced=True)


async def load(url: str) -> int:
    """Requests of all its workers."""
    async with httpx.AsyncClient(timeout=60) as client:
        rows = (await client.get(f"{url}/get_load")).json()
    return sum(int(row["num_reqs"]) + int(row["num_waiting_reqs"]) for row in rows)
