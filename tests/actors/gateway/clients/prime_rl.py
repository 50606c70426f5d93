"""prime-rl: `generate` of its own package `renderers`, on the openai package's transport.

The package raises `MalformedGenerateResponseError` for evidence that a trainer cannot train on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tests.actors.gateway.clients.rollout import Rollout

if TYPE_CHECKING:
    from renderers.base import ParsedResponse, Renderer

HEADERS = {"X-Session-ID": "rollout-7", "X-data-parallel-rank": "0"}


class Plain:
    """A renderer for prompts that are tokens already: no end tokens of its own, no text, no tools."""

    supports_tools = False

    def get_stop_token_ids(self) -> list[int]:
        return []

    def parse_response(self, token_ids: list[int], **_: object) -> ParsedResponse:
        from renderers.base import ParsedResponse

        return ParsedResponse(content="")


async def rollout(
    url: str, model: str, prompt: list[int], limit: int, longest: int | None = 1 << 20
) -> Rollout:
    """longest: limit of the prompt; None: the limit that the server reports, which the package remembers."""
    from openai import AsyncOpenAI  # seconds: not in every worker of the tests
    from renderers.client import generate

    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="EMPTY", max_retries=0) as client:
        answer = await generate(
            client=client,
            renderer=cast("Renderer", Plain()),
            messages=[],
            model=model,
            prompt_ids=prompt,
            sampling_params={"temperature": 1.0, "top_p": 1.0, "max_tokens": limit},
            cache_salt="step-3",
            priority=0,
            extra_headers=HEADERS,
            max_prompt_len=longest,
        )
    assert answer["request_id"]
    return Rollout(answer["completion_ids"], answer["completion_logprobs"], answer["finish_reason"])
