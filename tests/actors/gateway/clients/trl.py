"""TRL by its requests: the client of `trl vllm-serve` (up to 1.10) and the worker of asynchronous GRPO.

The client of TRL's current package is in `trl_package`.
"""

import json

import httpx

from tests.actors.gateway.clients.rollout import Rollout, post


async def is_up(url: str) -> bool:
    async with httpx.AsyncClient(timeout=60) as client:
        return (await client.get(f"{url}/health/")).status_code == 200


async def generate(
    url: str, prompts: list[str] | list[list[int]], limit: int, n: int = 1, **more: object
) -> list[Rollout]:
    """`VLLMClient.generate`: all prompts in one call, n responses each."""
    body = {
        "prompts": prompts,
        "images": None,
        "n": n,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "max_tokens": limit,
        "logprobs": 0,
        "structured_outputs_regex": None,
        "generation_kwargs": more,
    }
    return _columns(json.loads(await post(f"{url}/generate/", body, spaced=True)), len(prompts), n)


async def chat(url: str, questions: list[str], limit: int, n: int = 1) -> list[Rollout]:
    """`VLLMClient.chat`."""
    body = {
        "messages": [[{"role": "user", "content": question}] for question in questions],
        "n": n,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "max_tokens": limit,
        "logprobs": 0,
        "structured_outputs_regex": None,
        "generation_kwargs": {},
        "chat_template_kwargs": {},
        "tools": None,
    }
    return _columns(json.loads(await post(f"{url}/chat/", body, spaced=True)), len(questions), n)


def _columns(answer: dict[str, list[list[list[float]]]], prompts: int, n: int) -> list[Rollout]:
    assert len(answer["prompt_ids"]) == prompts
    assert len(answer["completion_ids"]) == len(answer["logprobs"]) == prompts * n
    found = []
    for tokens, logprobs, ids in zip(
        answer["completion_ids"], answer["logprobs"], answer["logprob_token_ids"], strict=True
    ):
        assert ids == [[token] for token in tokens]
        found.append(Rollout([*tokens], [row[0] for row in logprobs], "stop"))  # type: ignore[list-item]
    return found


async def rollout(url: str, model: str, prompt: list[int], limit: int) -> Rollout:
    """One request of asynchronous GRPO."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": limit,
        "temperature": 1.0,
        "n": 1,
        "return_token_ids": True,
        "logprobs": 0,
    }
    choice = json.loads(await post(f"{url}/v1/completions", body, spaced=True))["choices"][0]
    return Rollout(choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"])
