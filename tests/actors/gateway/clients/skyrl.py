"""SkyRL: its remote inference client, which speaks vLLM through aiohttp."""

import json

from tests.actors.gateway.clients.rollout import Rollout, post


async def rollout(url: str, model: str, prompt: list[int], limit: int) -> Rollout:
    sampling = {
        "min_tokens": 1,
        "skip_special_tokens": True,
        "include_stop_str_in_output": True,
        "max_tokens": limit,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "logprobs": 0,
        "stop": None,
    }
    body = {"sampling_params": sampling, "model": model, "token_ids": prompt}
    headers = {"X-Session-ID": "trajectory-1"}
    answer = json.loads(await post(f"{url}/inference/v1/generate", body, headers, spaced=True))
    choice = answer["choices"][0]
    logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    return Rollout(choice["token_ids"], logprobs, choice["finish_reason"])


async def tokenize(url: str, model: str, text: str) -> list[int]:
    body = {"model": model, "prompt": text, "add_special_tokens": True}
    tokens: list[int] = json.loads(await post(f"{url}/tokenize", body, spaced=True)).get("tokens", [])
    return tokens


async def detokenize(url: str, model: str, tokens: list[int]) -> str:
    body = {"model": model, "tokens": tokens}
    text: str = json.loads(await post(f"{url}/detokenize", body, spaced=True)).get("prompt", "")
    return text


async def render(url: str, model: str, question: str) -> list[int]:
    body = {"model": model, "messages": [{"role": "user", "content": question}]}
    headers = {"X-Session-ID": "trajectory-1"}
    answer = json.loads(await post(f"{url}/v1/chat/completions/render", body, headers, spaced=True))
    tokens: list[int] = answer["token_ids"]
    return tokens


async def finish(url: str) -> None:
    await post(f"{url}/finish_session?session_id=trajectory-1", {}, spaced=True)
