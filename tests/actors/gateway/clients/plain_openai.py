"""A plain client of OpenAI's API: the `openai` package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.actors.gateway.clients.rollout import Rollout

if TYPE_CHECKING:
    from openai import AsyncOpenAI


def client_of(url: str) -> AsyncOpenAI:
    from openai import AsyncOpenAI  # a second: not in every worker of the tests

    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


async def rollout(url: str, model: str, prompt: list[int], limit: int) -> Rollout:
    """Completions of tokens, streamed, with log-probs."""
    tokens: list[int] = []
    logprobs: list[float] = []
    text, reason, version = "", "", None
    async with client_of(url) as client:
        stream = await client.completions.create(
            model=model,
            prompt=prompt,
            max_tokens=limit,
            logprobs=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"return_token_ids": True},
        )
        async for chunk in stream:
            if not chunk.choices:
                assert chunk.usage is not None
                assert chunk.usage.completion_tokens == len(tokens)
                continue
            choice = chunk.choices[0]
            assert not reason, "only the usage follows the end"
            tokens += choice.token_ids  # type: ignore[attr-defined]
            text += choice.text
            if choice.logprobs is not None:
                logprobs += [each for each in choice.logprobs.token_logprobs or [] if each is not None]
            if choice.finish_reason is not None:
                reason, version = choice.finish_reason, chunk.weight_version  # type: ignore[attr-defined]
    return Rollout(tokens, logprobs, reason, text, version)


async def chat(url: str, model: str, question: str, limit: int) -> Rollout:
    """A conversation, streamed, with log-probs; its token ids are unknown, so their count replaces them."""
    text, reason, roles = "", "", []
    logprobs: list[float] = []
    async with client_of(url) as client:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            max_completion_tokens=limit,
            logprobs=True,
            stream=True,
        )
        async for chunk in stream:
            choice = chunk.choices[0]
            if choice.delta.role is not None:
                roles.append(choice.delta.role)
            text += choice.delta.content or ""
            if choice.logprobs is not None:
                logprobs += [each.logprob for each in choice.logprobs.content or []]
            reason = choice.finish_reason or reason
    assert roles == ["assistant"]
    return Rollout([0] * len(logprobs), logprobs, reason, text)


async def abandon(url: str, model: str, prompt: list[int], limit: int, chunks: int = 2) -> None:
    """Begin a stream and close it after some chunks."""
    async with client_of(url) as client:
        stream = await client.completions.create(model=model, prompt=prompt, max_tokens=limit, stream=True)
        seen = 0
        async for _ in stream:
            seen += 1
            if seen == chunks:
                break
        await stream.close()
    assert seen == chunks
