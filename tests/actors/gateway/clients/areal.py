"""AReaL: its vLLM backend (completions of token ids) and its SGLang backend, through aiohttp."""

import json

from tests.actors.gateway.clients.rollout import Rollout, post


async def rollout(url: str, model: str, prompt: list[int], limit: int) -> Rollout:
    """The vLLM flavour, which names no model."""
    body = {
        "top_p": 1.0,
        "top_k": 100000000,
        "max_tokens": limit,
        "temperature": 1.0,
        "stop_token_ids": [],
        "return_tokens_as_token_ids": True,
        "logprobs": 0,
        "stream": False,
        "prompt": prompt,
    }
    choice = json.loads(await post(f"{url}/v1/completions", body, spaced=True))["choices"][0]
    return _read(choice)


async def chat(url: str, model: str, question: str, limit: int) -> Rollout:
    """The vLLM flavour of conversations."""
    body = {
        "top_p": 1.0,
        "top_k": 100000000,
        "max_tokens": limit,
        "temperature": 1.0,
        "stop_token_ids": [],
        "return_tokens_as_token_ids": True,
        "logprobs": True,
        "stream": False,
        "messages": [{"role": "user", "content": question}],
    }
    choice = json.loads(await post(f"{url}/v1/chat/completions", body, spaced=True))["choices"][0]
    return _read(choice)


def _read(choice: dict[str, object]) -> Rollout:
    logprobs = choice["logprobs"]
    assert isinstance(logprobs, dict)
    if "tokens" in logprobs:
        tokens = [int(token.split(":")[1]) for token in logprobs["tokens"]]
        numbers = logprobs["token_logprobs"]
    else:
        tokens = [int(entry["token"].split(":")[1]) for entry in logprobs["content"]]
        numbers = [entry["logprob"] for entry in logprobs["content"]]
    return Rollout(tokens, numbers, str(choice["finish_reason"]))


async def rollout_sglang(url: str, model: str, prompt: list[int], limit: int) -> Rollout:
    """The SGLang flavour; without `rid`."""
    body = {
        "input_ids": prompt,
        "image_data": None,
        "sampling_params": {
            "top_p": 1.0,
            "top_k": 100000000,
            "max_new_tokens": limit,
            "temperature": 1.0,
            "stop_token_ids": [],
            "ignore_eos": False,
            "skip_special_tokens": True,
            "frequency_penalty": 0.0,
        },
        "return_logprob": True,
        "stream": False,
    }
    meta = json.loads(await post(f"{url}/generate", body, spaced=True))["meta_info"]
    reason = meta["finish_reason"]
    if reason["type"] == "abort" and reason.get("message", "").startswith("Abort before prefill"):
        return Rollout([], [], "abort")
    rows = meta["output_token_logprobs"]  # a KeyError here has ended runs
    assert meta["completion_tokens"] == len(rows)
    assert meta["prompt_tokens"] == len(prompt)
    return Rollout([row[1] for row in rows], [row[0] for row in rows], reason["type"])


async def update_from_disk(url: str, path: str, vllm: bool) -> None:
    """Pause, load and resume in one flavour; each call must be a 200 with JSON."""
    pause, load, go_on = (
        ("areal_pause_generation", "areal_update_weights", "areal_continue_generation")
        if vllm
        else ("pause_generation", "update_weights_from_disk", "continue_generation")
    )
    body = {"model_path": path} if vllm else {"model_path": path, "abort_all_requests": True}
    for route, sent in ((pause, {}), (load, body), (go_on, {})):
        json.loads(await post(f"{url}/{route}", sent, spaced=True))
