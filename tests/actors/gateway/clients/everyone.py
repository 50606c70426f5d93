"""All clients with a rollout of one prompt of tokens, by name."""

from collections.abc import Awaitable, Callable

from tests.actors.gateway.clients import (
    areal,
    miles,
    plain_openai,
    prime_rl,
    roll,
    skyrl,
    slime,
    trl,
    trl_package,
)
from tests.actors.gateway.clients.rollout import Rollout

Client = Callable[[str, str, list[int], int], Awaitable[Rollout]]
"""(base URL, model, prompt, max new tokens) to a rollout."""

OF_OPENAI: dict[str, Client] = {
    "areal-vllm": areal.rollout,
    "openai": plain_openai.rollout,
    "prime-rl": prime_rl.rollout,
    "skyrl": skyrl.rollout,
    "trl": trl_package.rollout,
    "trl-async": trl.rollout,
}
"""Clients of OpenAI's and vLLM's routes."""

OF_SGLANG: dict[str, Client] = {
    "areal-sglang": areal.rollout_sglang,
    "miles": miles.rollout,
    "roll": roll.rollout,
    "slime": slime.rollout,
    "slime-streamed": slime.streamed,
}
"""Clients of SGLang's routes."""

ALL = {**OF_OPENAI, **OF_SGLANG}
