"""TRL routes: generation calls of the `trl vllm-serve` client (TRL up to 1.10).

Owns their structs: `/generate/` and `/chat/` (with the slash) take many prompts and answer in columns.
Weights are not sent this way: TRL sends them over NCCL, and this gateway is no rank of such a group. Adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from gleaner.actors.gateway.ask import BadAsk, sub_id
from gleaner.actors.gateway.call_texts import check_length, encode, encode_chat, reader, vocabulary
from gleaner.actors.gateway.calls import Call, Route, VersionGate, json
from gleaner.actors.gateway.choices import Last, follow, sound
from gleaner.actors.gateway.openai.requests import (
    DEFAULT_TOKENS,
    MOST_CHOICES,
    ChatRequest,
    Message,
    Scalar,
    Seed,
    Token,
)
from gleaner.actors.gateway.openai.routes import SEEDS
from gleaner.actors.gateway.vllm.wire import Ok, SamplingParams


class More(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`generation_kwargs`: vLLM's sampling parameters that have no field of their own."""

    seed: Seed | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Token] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None


class Batch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of both calls. logprobs: 0 returns the sampled tokens', null none; more are not offered."""

    n: Annotated[int, Meta(ge=1, le=128)] = 1
    repetition_penalty: float = 1.0
    temperature: Annotated[float, Meta(ge=0)] = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    max_tokens: Annotated[int | UnsetType, Meta(description="Left out: 16.")] = UNSET
    logprobs: Annotated[int, Meta(ge=0, le=0)] | None = 0
    structured_outputs_regex: None = None
    generation_kwargs: More = msgspec.field(default_factory=More)
    weight_version: VersionGate | None = None

    def params(self) -> SamplingParams:
        more = self.generation_kwargs
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=more.frequency_penalty,
            presence_penalty=more.presence_penalty,
            seed=more.seed,
            stop=more.stop,
            stop_token_ids=more.stop_token_ids,
            ignore_eos=more.ignore_eos,
            min_tokens=more.min_tokens,
            max_tokens=self.max_tokens,
        )


class GenerateBatch(Batch, kw_only=True, forbid_unknown_fields=True):
    """Body of `/generate/`. prompts: texts, or lists of tokens. images: null for each prompt, if any."""

    prompts: list[str | list[Token]]
    images: list[None] | None = None


class ChatBatch(Batch, kw_only=True, forbid_unknown_fields=True):
    """Body of `/chat/`."""

    messages: list[Annotated[list[Message], Meta(min_length=1)]]
    chat_template_kwargs: dict[str, Scalar] | None = None
    tools: Annotated[list[str], Meta(max_length=0)] | None = None


class Columns(msgspec.Struct, kw_only=True):
    """prompt_ids: of each prompt; the others: of each of its n responses, prompt by prompt. logprobs,
    logprob_token_ids: of each token a list of one, the sampled token's."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    logprobs: list[list[list[float]]] | None
    logprob_token_ids: list[list[list[int]]] | None


async def generate(call: Call) -> web.StreamResponse:
    body = await call.body(GenerateBatch)
    prompts: list[list[int]] = []
    for prompt in body.prompts:
        prompts.append(
            await encode(call.desk, prompt, True, "prompts") if isinstance(prompt, str) else prompt
        )
        check_length(call.desk, len(prompts[-1]), "prompts")
    return json(await _columns(call, body, prompts))


async def chat(call: Call) -> web.StreamResponse:
    body = await call.body(ChatBatch)
    prompts = [
        await encode_chat(
            call.desk, ChatRequest(messages=turns, chat_template_kwargs=body.chat_template_kwargs)
        )
        for turns in body.messages
    ]
    return json(await _columns(call, body, prompts))


async def health(call: Call) -> web.StreamResponse:
    return json(Ok())


async def _columns(call: Call, body: Batch, prompts: Sequence[Sequence[int]]) -> Columns:
    total = len(prompts) * body.n
    if not 1 <= total <= MOST_CHOICES:
        raise BadAsk(f"{len(prompts)} prompts with {body.n} responses each; 1 to {MOST_CHOICES}", "prompts")
    params, (id, named) = body.params(), call.id()
    words = vocabulary(call.desk) if params.stops else None
    asks = [
        call.ask(
            (sub_id(id, index), named),
            prompts[index // body.n],
            body.max_tokens,
            usual=DEFAULT_TOKENS,
            temperature=body.temperature,
            seed=None if params.seed is None else (params.seed + index % body.n) % SEEDS,
            sampling=params.sampling(),
            gate=body.weight_version,
            names=("prompts", "max_tokens"),
        )
        for index in range(total)
    ]
    readers = [reader(words, params.stops, (), min_tokens=params.min_tokens or 0) for _ in asks]
    tokens: list[list[int]] = [[] for _ in asks]
    logprobs: list[list[float]] = [[] for _ in asks]
    updates = follow(call.desk.requests, asks, readers)
    try:
        async for one in updates:
            if not isinstance(one, Last):
                tokens[one.index] += one.tokens
                logprobs[one.index] += one.logprobs if body.logprobs is None else sound(one.logprobs)
    finally:
        await updates.aclose()
    wanted = body.logprobs is not None
    return Columns(
        prompt_ids=[list(prompt) for prompt in prompts],
        completion_ids=tokens,
        logprobs=[[[one] for one in row] for row in logprobs] if wanted else None,
        logprob_token_ids=[[[one] for one in row] for row in tokens] if wanted else None,
    )


ROUTES = (
    Route(
        "POST", "/generate/", generate, "Many prompts at once (TRL).",
        GenerateBatch, answer=Columns, kind="data",
    ),
    Route(
        "POST", "/chat/", chat, "Many conversations at once (TRL).",
        ChatBatch, answer=Columns, kind="data",
    ),
    Route("GET", "/health/", health, "Whether it answers (TRL).", answer=Ok, kind="open"),
)  # fmt: skip
