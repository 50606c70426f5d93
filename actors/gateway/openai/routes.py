"""OpenAI routes: completions, chat and models over HTTP, with vLLM's additions.

Owns the conversion from a body to requests and from their choices to an answer or a stream. Does not own the
structs (`requests`, `wire`). Adapter.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Literal

import msgspec
from aiohttp import web
from msgspec import UnsetType

from gleaner.actors.gateway.ask import Ask, BadAsk, sub_id
from gleaner.actors.gateway.call_texts import (
    check_length,
    check_model,
    encode,
    encode_chat,
    reader_of,
    tools_of,
    vocabulary,
)
from gleaner.actors.gateway.calls import Call, Route, json
from gleaner.actors.gateway.choices import Delta, Last, follow
from gleaner.actors.gateway.openai.answers import ChatAnswers, CompletionAnswers
from gleaner.actors.gateway.openai.fim import between
from gleaner.actors.gateway.openai.requests import (
    DEFAULT_TOKENS,
    MOST_CHOICES,
    ChatRequest,
    Common,
    CompletionRequest,
)
from gleaner.actors.gateway.openai.shape import Shape
from gleaner.actors.gateway.openai.wire import ChatChunk, ChatCompletion, Completion
from gleaner.actors.gateway.server import events

SEEDS = 2**31
"""Seeds are taken modulo this number, which every engine accepts."""


class ModelCard(msgspec.Struct, kw_only=True):
    """max_model_len: tokens of the longest prompt and response together."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "gleaner"
    root: str
    parent: None = None
    max_model_len: int


class Models(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


def asks_of(
    call: Call,
    body: Common,
    prompts: Sequence[Sequence[int]],
    limit: int | UnsetType | None,
    names: tuple[str, str],
) -> list[Ask]:
    """One request per choice, prompt by prompt. Each has its own id and its own seed, the same when the
    client asks again under the same id. Raises BadAsk."""
    total = len(prompts) * body.choices
    if total > MOST_CHOICES:
        raise BadAsk(f"{len(prompts)} prompts with {body.choices} choices each; at most {MOST_CHOICES}", "n")
    (id, named), sampling, asks = call.id(body.request_id), body.sampling(), []
    # With a grammar, an answer that is sent whole gives away no token before its end: it may be restarted.
    whole = not sampling.continues and not body.stream
    for index in range(total):
        asks.append(
            call.ask(
                (id if total == 1 else sub_id(id, index), named),
                prompts[index // body.choices],
                limit,
                usual=DEFAULT_TOKENS,
                temperature=1.0 if body.temperature is None else body.temperature,
                seed=None if body.seed is None else (body.seed + index % body.choices) % SEEDS,
                sampling=sampling,
                gate=body.weight_version,
                session=body.session_id,
                names=names,
                scores=body.scores,
                whole=whole,
            )
        )
    return asks


async def completions(call: Call) -> web.StreamResponse:
    body = await call.body(CompletionRequest)
    check_model(call.desk, body.model)
    prompts: list[list[int]] = []
    given: Sequence[str | list[int]] = body.prompts()
    for prompt in given:
        if body.suffix:
            prompt = between(vocabulary(call.desk), prompt, body.suffix)
        elif isinstance(prompt, str):
            prompt = await encode(call.desk, prompt, body.add_special_tokens is not False, "prompt")
        check_length(call.desk, len(prompt), "prompt")
        prompts.append(prompt)
    if not (body.return_token_ids or (body.return_tokens_as_token_ids and body.wants_logprobs)):
        vocabulary(call.desk)  # the answer is text
    asks = asks_of(call, body, prompts, body.max_tokens, ("prompt", "max_tokens"))
    readers = [reader_of(call.desk, body) for _ in asks]
    shape = _shape(call, body, body.wants_logprobs, asks, prompts, "cmpl")
    echo = [_text(shape, *pair) for pair in zip(given, prompts, strict=True)] if body.echo else None
    answers = CompletionAnswers(replace(shape, echo=echo))
    updates = follow(call.desk.requests, asks, readers)
    return await _answer(call, answers, updates, bool(body.stream))


async def begin_chat(
    call: Call, body: ChatRequest, kind: str = "chatcmpl"
) -> tuple[ChatAnswers, AsyncGenerator[Delta | Last, None]]:
    """The answers of a conversation, and their deltas; the caller closes these. kind: prefix of its id.
    Raises BadAsk."""
    check_model(call.desk, body.model)
    prompts = [await encode_chat(call.desk, body)]
    tools = tools_of(call.desk, body)
    asks = asks_of(call, body, prompts, body.limit, ("messages", "max_completion_tokens"))
    readers = [reader_of(call.desk, body, tools) for _ in asks]
    shape = _shape(call, body, body.wants_logprobs, asks, prompts, kind)
    return ChatAnswers(replace(shape, tools=tools)), follow(call.desk.requests, asks, readers)


async def chat(call: Call) -> web.StreamResponse:
    body = await call.body(ChatRequest)
    answers, updates = await begin_chat(call, body)
    return await _answer(call, answers, updates, bool(body.stream), answers.opening)


async def models(call: Call) -> web.StreamResponse:
    return json(Models(data=[_card(call)]))


async def model(call: Call) -> web.StreamResponse:
    check_model(call.desk, call.request.match_info["model"])
    return json(_card(call))


def event(chunk: msgspec.Struct) -> bytes:
    """A server-sent event."""
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


async def _answer(
    call: Call,
    answers: CompletionAnswers | ChatAnswers,
    updates: AsyncGenerator[Delta | Last, None],
    stream: bool,
    opening: Callable[[], ChatChunk] | None = None,
) -> web.StreamResponse:
    """The answer as events or as one body. opening: the event before the first one."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        opened = opening is None
        try:
            async for one in updates:
                if opening is not None and not opened:
                    opened = True
                    yield event(opening())
                if (chunk := answers.chunk(one)) is not None:
                    yield event(chunk)
            if answers.shape.usage:
                yield event(answers.usage_chunk())
        finally:
            await updates.aclose()

    if stream:
        return await events(call, chunks())
    await _take_all(answers, updates)
    return json(answers.whole())


async def _take_all(
    answers: CompletionAnswers | ChatAnswers, updates: AsyncGenerator[Delta | Last, None]
) -> None:
    try:
        async for one in updates:
            answers.take(one)
    finally:
        await updates.aclose()


def _shape(
    call: Call, body: Common, logprobs: bool, asks: Sequence[Ask], prompts: Sequence[Sequence[int]], kind: str
) -> Shape:
    id = asks[0].id if len(asks) == 1 else asks[0].id.rpartition(".")[0]
    options = body.stream_options
    return Shape(
        id=f"{kind}-{id}",
        created=int(call.desk.wall_s()),
        model=call.desk.served.model,
        prompts=prompts,
        n=body.choices,
        logprobs=logprobs,
        token_ids=bool(body.return_token_ids),
        ids_as_tokens=bool(body.return_tokens_as_token_ids),
        usage=bool(body.stream and options is not None and options.include_usage),
        vocabulary=call.desk.vocabulary,
        scores=body.scores,
        temperature=asks[0].temperature,
    )


def _text(shape: Shape, given: str | list[int], tokens: Sequence[int]) -> str:
    """The text of a prompt."""
    return given if isinstance(given, str) else "".join(shape.texts_of(tokens))


def _card(call: Call) -> ModelCard:
    served = call.desk.served
    return ModelCard(
        id=served.model,
        created=int(call.desk.wall_s()),
        root=served.model,
        max_model_len=served.max_model_len,
    )


ROUTES = (
    Route(
        "POST", "/v1/completions", completions, "Complete prompts (OpenAI).",
        CompletionRequest, answer=Completion, kind="data",
    ),
    Route(
        "POST", "/v1/chat/completions", chat, "Answer a conversation (OpenAI).",
        ChatRequest, answer=ChatCompletion, kind="data",
    ),
    Route("GET", "/v1/models", models, "The model that is served (OpenAI).", answer=Models),
    Route("GET", "/v1/models/{model}", model, "One model (OpenAI).", answer=ModelCard),
)  # fmt: skip
