"""SGLang route `/generate` over HTTP, streaming and not, one prompt or a batch.

Owns the conversion from a body to requests and from their choices to an answer. Does not own the structs
(`wire`) or the control routes (`control.routes`). Adapter.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from gleaner.actors.gateway.ask import Ask, BadAsk, Busy, sub_id
from gleaner.actors.gateway.call_texts import encode, reader
from gleaner.actors.gateway.calls import Call, Route
from gleaner.actors.gateway.choices import Delta, Last, follow
from gleaner.actors.gateway.expert_answers import NO_EXPERTS
from gleaner.actors.gateway.server import events
from gleaner.actors.gateway.sglang.answers import Answer, AnswerContent, GenerateIs
from gleaner.actors.gateway.sglang.wire import (
    DEFAULT_NEW_TOKENS,
    GenerateBody,
    SamplingBody,
    check_served,
)
from gleaner.actors.gateway.text import Reader

MOST = 512
"""Limit of responses of one call."""
SEEDS = 1 << 31


@dataclass(frozen=True, slots=True)
class _Order:
    """The content of a body: the requests, the reader of each, and the form of each answer."""

    batch: bool
    asks: list[Ask] = field(default_factory=list)
    readers: list[Reader | None] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


async def generate(call: Call) -> web.StreamResponse:
    """`POST /generate`."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    body = await call.body(GenerateBody)
    order = await _order(call, body)
    updates = follow(call.desk.requests, order.asks, order.readers)
    if body.stream:
        return await events(call, _chunks(order, updates, lambda: loop.time() - began_s))
    wholes: list[bytes] = [b""] * len(order.asks)
    try:
        async for one in updates:
            answer = order.answers[one.index]
            if isinstance(one, Delta):
                answer.add(one)
            else:
                _end(answer, one)
                wholes[one.index] = answer.whole(loop.time() - began_s)
    finally:
        await updates.aclose()
    whole = b"[" + b",".join(wholes) + b"]" if order.batch else wholes[0]
    return web.Response(body=whole, content_type="application/json")


async def _chunks(
    order: _Order, updates: AsyncGenerator[Delta | Last, None], latency_s: Callable[[], float]
) -> AsyncGenerator[bytes, None]:
    try:
        async for one in updates:
            answer = order.answers[one.index]
            if isinstance(one, Last):
                _end(answer, one)
                yield b"data: " + answer.whole(latency_s()) + b"\n\n"
            elif answer.add(one):
                yield b"data: " + answer.part() + b"\n\n"
    finally:
        await updates.aclose()


def _end(answer: Answer, last: Last) -> None:
    if last.stop_reason == "deadline" and not answer.tokens:
        raise Busy("the request's deadline passed before its first token")
    answer.end(last)


async def _order(call: Call, body: GenerateBody) -> _Order:
    """Convert a body. Raises BadAsk."""
    check_served(body)
    if body.return_routed_experts and not call.desk.served.routed_experts:
        raise BadAsk(NO_EXPERTS, "return_routed_experts")
    prompts, batch = await _prompts(call, body)
    given = body.sampling_params or SamplingBody()
    settings = given if isinstance(given, list) else [given] * len(prompts)
    logprobs = body.return_logprob
    wanted = logprobs if isinstance(logprobs, list) else [bool(logprobs)] * len(prompts)
    for name, value in (("sampling_params", settings), ("return_logprob", wanted)):
        if len(value) != len(prompts):
            raise BadAsk(f"{len(value)} of them for {len(prompts)} prompts", name)
    total = sum(max(one.n, 1) for one in settings)
    if total > MOST or any(one.n < 1 for one in settings):
        raise BadAsk(f"expected 1 to {MOST} responses, got {total}", "sampling_params.n")
    order = _Order(batch or total > 1)
    names = _names(call, body.rid, total)
    for prompt, one, logprob in zip(prompts, settings, wanted, strict=True):
        for copy in range(one.n):
            _add(call, body, order, names[len(order.asks)], prompt, one, logprob, copy)
    return order


def _add(
    call: Call,
    body: GenerateBody,
    order: _Order,
    name: tuple[str, bool],
    prompt: Sequence[int],
    one: SamplingBody,
    logprobs: bool,
    copy: int,
) -> None:
    """Add a request with its reader and its answer; `copy` counts those of the same prompt."""
    check_served(one, "sampling_params.")
    words, sampling = call.desk.vocabulary, one.sampling()
    if body.return_text_in_logprobs and words is None:
        raise BadAsk("this gateway has no tokenizer", "return_text_in_logprobs")
    if not 0 <= body.routed_experts_start_len <= len(prompt):
        raise BadAsk(f"expected 0 to {len(prompt)}, the tokens of the prompt", "routed_experts_start_len")
    order.asks.append(
        call.ask(
            name,
            prompt,
            one.max_new_tokens,
            usual=DEFAULT_NEW_TOKENS,
            temperature=one.temperature,
            seed=None if one.sampling_seed is None else (one.sampling_seed + copy) % SEEDS,
            sampling=sampling,
            whole=not sampling.continues and not body.stream,
            gate=body.weight_version,
            session=body.session,
            experts=body.return_routed_experts,
        )
    )
    order.readers.append(
        reader(
            words,
            one.stops,
            one.stop_token_ids or (),
            skip_special=one.skip_special_tokens,
            keep_stop=one.no_stop_trim,
            min_tokens=one.min_new_tokens,
        )
    )
    order.answers.append(
        Answer(
            name[0],
            prompt,
            AnswerContent(
                logprobs=logprobs,
                texts=body.return_text_in_logprobs,
                echo=body.return_prompt_token_ids,
                index=len(order.answers) if order.batch else None,
                interval=one.stream_interval or 1,
                experts_from=body.routed_experts_start_len,
            ),
        )
    )


async def _prompts(call: Call, body: GenerateBody) -> tuple[list[list[int]], bool]:
    """The prompts in tokens, and whether there may be several."""
    if (body.text is None) == (body.input_ids is None):
        raise BadAsk("give either text or input_ids", "input_ids")
    if body.input_ids is None:
        texts = [body.text] if isinstance(body.text, str) else body.text or []
        prompts = [await encode(call.desk, text, True, "text") for text in texts]
        batch = not isinstance(body.text, str)
    else:
        rows = [row for row in body.input_ids if isinstance(row, list)]
        ids = [one for one in body.input_ids if isinstance(one, int)]
        if rows and ids:
            raise BadAsk("expected token ids, or lists of them", "input_ids")
        prompts, batch = rows or [ids], bool(rows)
    if not 1 <= len(prompts) <= MOST:
        raise BadAsk(f"expected 1 to {MOST} prompts, got {len(prompts)}", "input_ids")
    return prompts, batch


def _names(call: Call, rid: str | list[str] | None, total: int) -> list[tuple[str, bool]]:
    """The id of each request, and whether the client chose it."""
    if isinstance(rid, list):
        if len(rid) != total or len(set(rid)) != total:
            raise BadAsk(f"expected {total} ids, all different, got {len(rid)}", "rid")
        return [call.id(one) for one in rid]
    name, named = call.id(rid)
    return [(name if total == 1 else sub_id(name, index), named) for index in range(total)]


ROUTES = (
    Route(
        "POST",
        "/generate",
        generate,
        "Continue a prompt, or each of a batch, in SGLang's words.",
        body=GenerateBody,
        answer=GenerateIs,
        kind="data",
    ),
)
