"""TRL's own package: its `VLLMClient`, as `GRPOTrainer` generates with a server.

Its constructor requires vLLM, which only weights over NCCL use. Here it is patched to find vLLM.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tests.actors.gateway.clients.rollout import Rollout

if TYPE_CHECKING:
    from trl.generation import vllm_client

Columns = Mapping[str, list]


def connected(url: str) -> vllm_client.VLLMClient:
    """Raises ConnectionError without a server. It blocks, as all functions here do."""
    from trl.generation import vllm_client  # seconds: not in every worker of the tests

    vllm_client.is_vllm_available = lambda **_: True
    return vllm_client.VLLMClient(base_url=url)


async def generate(
    url: str, prompts: list[str] | list[list[int]], limit: int, n: int = 1, **more: object
) -> list[Rollout]:
    """All prompts in one call, n responses each."""
    return await _asked(lambda: connected(url).generate(prompts, n=n, max_tokens=limit, **more), limit)


async def chat(url: str, questions: list[str], limit: int, n: int = 1, **more: object) -> list[Rollout]:
    """A call for each question, n responses each."""
    turns = [[{"role": "user", "content": question}] for question in questions]
    return await _asked(lambda: connected(url).chat(turns, n=n, max_tokens=limit, **more), limit)


async def rollout(url: str, model: str, prompt: list[int], limit: int) -> Rollout:
    """A rollout of one prompt."""
    return (await generate(url, [prompt], limit))[0]


async def rollout_greedy(url: str, model: str, prompt: list[int], limit: int) -> Rollout:
    """A greedy rollout of one prompt."""
    return (await generate(url, [prompt], limit, temperature=0.0))[0]


async def chat_greedy(url: str, model: str, prompt: list[int], limit: int) -> Rollout:
    """As `rollout_greedy`, for a conversation of this prompt's numbers."""
    return (await chat(url, [" ".join(map(str, prompt))], limit, temperature=0.0))[0]


async def _asked(call: Callable[[], Columns], limit: int) -> list[Rollout]:
    """TRL reads no reason: a response below the limit counts as stopped."""
    answer = await asyncio.to_thread(call)
    found = []
    for tokens, logprobs, ids in zip(
        answer["completion_ids"], answer["logprobs"], answer["logprob_token_ids"], strict=True
    ):
        assert ids == [[token] for token in tokens]
        reason = "length" if len(tokens) == limit else "stop"
        found.append(Rollout([*tokens], [row[0] for row in logprobs], reason))
    return found
