"""vLLM routes: tokens in and out, its tokenizer, and SkyRL's few additions.

Owns the conversion from a body to requests and back. Does not own the structs (`wire`). Adapter.
"""

from functools import partial

from aiohttp import web

from gleaner.actors.gateway.ask import BadAsk, sub_id
from gleaner.actors.gateway.call_texts import (
    check_length,
    check_model,
    encode,
    encode_chat,
    reader,
    vocabulary,
)
from gleaner.actors.gateway.calls import Call, Route, json
from gleaner.actors.gateway.choices import follow
from gleaner.actors.gateway.expert_answers import NO_EXPERTS, NO_SHAPE, as_npy, as_object
from gleaner.actors.gateway.openai.requests import DEFAULT_TOKENS, ChatRequest
from gleaner.actors.gateway.openai.routes import SEEDS
from gleaner.actors.gateway.vllm.wire import (
    DetokenizeAnswer,
    DetokenizeRequest,
    GenerateAnswer,
    Generated,
    GenerateRequest,
    Ok,
    RenderAnswer,
    Session,
    TokenizeAnswer,
    TokenizeRequest,
)


async def generate(call: Call) -> web.StreamResponse:
    body = await call.body(GenerateRequest)
    check_model(call.desk, body.model)
    body.check()
    check_length(call.desk, len(body.token_ids), "token_ids")
    served = call.desk.served
    if served.routed_experts and not all(served.experts_shape):
        raise web.HTTPNotImplemented(text=NO_SHAPE)
    wanted, (id, named) = body.sampling_params, call.id(body.request_id)
    count, stops = wanted.n or 1, wanted.stops
    words = vocabulary(call.desk) if stops else None
    asks = [
        call.ask(
            (id if count == 1 else sub_id(id, index), named),
            body.token_ids,
            wanted.max_tokens,
            usual=DEFAULT_TOKENS,
            temperature=1.0 if wanted.temperature is None else wanted.temperature,
            seed=None if wanted.seed is None else (wanted.seed + index) % SEEDS,
            sampling=wanted.sampling(),
            gate=body.weight_version,
            session=body.session_id,
            experts=served.routed_experts,
            names=("token_ids", "sampling_params.max_tokens"),
        )
        for index in range(count)
    ]
    readers = [reader(words, stops, (), min_tokens=wanted.min_tokens or 0) for _ in asks]
    answer = Generated(
        id,
        body.token_ids,
        count,
        wanted.logprobs is not None,
        echo_ids=bool(body.return_token_ids),
        tell=partial(
            as_npy if body.routed_experts_format == "npy" else as_object,
            start=wanted.routed_experts_prompt_start or 0,
            shape=served.experts_shape,
        ),
    )
    updates = follow(call.desk.requests, asks, readers)
    try:
        async for one in updates:
            answer.take(one)
    finally:
        await updates.aclose()
    return json(answer.whole())


async def with_experts(call: Call) -> web.StreamResponse:
    """The route where SkyRL requests routed experts."""
    if not call.desk.served.routed_experts:
        await call.body(GenerateRequest)
        raise web.HTTPNotImplemented(text=NO_EXPERTS)
    return await generate(call)


async def tokenize(call: Call) -> web.StreamResponse:
    body = await call.body(TokenizeRequest)
    check_model(call.desk, body.model)
    words = vocabulary(call.desk)
    if (body.prompt is None) == (body.messages is None):
        raise BadAsk("expected either a prompt or messages", "prompt")
    if body.messages is None:
        tokens = await encode(call.desk, body.prompt or "", body.add_special_tokens is not False, "prompt")
    else:
        tokens = await encode_chat(
            call.desk,
            ChatRequest(
                messages=body.messages,
                add_generation_prompt=body.add_generation_prompt,
                add_special_tokens=body.add_special_tokens,
                chat_template_kwargs=body.chat_template_kwargs,
            ),
        )
    names = [words.tokenizer.id_to_token(token) or "" for token in tokens] if body.return_token_strs else None
    return json(
        TokenizeAnswer(
            count=len(tokens), max_model_len=call.desk.served.max_model_len, tokens=tokens, token_strs=names
        )
    )


async def detokenize(call: Call) -> web.StreamResponse:
    body = await call.body(DetokenizeRequest)
    check_model(call.desk, body.model)
    words, served = vocabulary(call.desk), call.desk.served
    if len(body.tokens) > served.max_model_len:
        raise BadAsk(f"expected at most {served.max_model_len} tokens, got {len(body.tokens)}", "tokens")
    return json(DetokenizeAnswer(prompt=words.tokenizer.decode(body.tokens, skip_special_tokens=False)))


async def render(call: Call) -> web.StreamResponse:
    body = await call.body(ChatRequest)
    check_model(call.desk, body.model)
    id, _ = call.id(body.request_id)
    tokens = await encode_chat(call.desk, body)
    return json(RenderAnswer(request_id=f"chatcmpl-{id}", model=call.desk.served.model, token_ids=tokens))


async def finish_session(call: Call) -> web.StreamResponse:
    """A session is a preference for one engine and holds nothing, so there is nothing to release."""
    call.query(Session)
    return json(Ok())


ROUTES = (
    Route(
        "POST", "/inference/v1/generate", generate, "Tokens in, tokens out (vLLM, prime-rl, SkyRL).",
        GenerateRequest, answer=GenerateAnswer, kind="data",
    ),
    Route(
        "POST", "/skyrl/v1/generate", with_experts, "The same with the experts of all tokens (SkyRL).",
        GenerateRequest, answer=GenerateAnswer, kind="data",
    ),
    Route(
        "POST", "/v1/chat/completions/render", render, "A conversation as prompt tokens (vLLM).",
        ChatRequest, answer=RenderAnswer,
    ),
    Route("POST", "/tokenize", tokenize, "Text as tokens (vLLM).", TokenizeRequest, answer=TokenizeAnswer),
    Route(
        "POST", "/detokenize", detokenize, "Tokens as text (vLLM).",
        DetokenizeRequest, answer=DetokenizeAnswer,
    ),
    Route(
        "POST", "/finish_session", finish_session, "A session is over (SkyRL).", query=Session, answer=Ok,
    ),
)  # fmt: skip
