"""miles: `/generate` as slime sends it, with its own fields, and the workers of the old router."""

import json

import httpx

from tests.actors.gateway.clients import slime
from tests.actors.gateway.clients.rollout import Rollout, post


async def rollout(url: str, model: str, prompt: list[int], limit: int) -> Rollout:
    body = {**slime.body_of(prompt, limit), "return_routed_experts": False, "return_indexer_topk": False}
    return slime.read(json.loads(await post(f"{url}/generate", body, slime.HEADERS)))


async def workers(url: str) -> list[str]:
    async with httpx.AsyncClient(timeout=60) as client:
        urls: list[str] = (await client.get(f"{url}/list_workers")).json()["urls"]
    return urls


async def gated(url: str, prompt: list[int], limit: int, **gate: int) -> httpx.Response:
    """One request that names the version of the weights that it wants, as miles' contract has it."""
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(
            f"{url}/generate", json={**slime.body_of(prompt, limit), "weight_version": gate}
        )
