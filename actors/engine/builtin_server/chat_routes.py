"""`ChatRoutes`: `/v1/chat/completions` and `/v1/models` of the builtin engine's server. Adapter: aiohttp."""

import time
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from gleaner.actors.engine.builtin_server.bodies import body_of, json, problem
from gleaner.actors.engine.builtin_server.chat_wire import (
    ChatAnswer,
    ChatBody,
    ChatChoice,
    ChatMessage,
    ModelEntry,
    ModelList,
    Usage,
)
from gleaner.actors.engine.builtin_server.request_parser import BadRequest, Engine
from gleaner.actors.engine.builtin_server.wire import GenerateBody, Generated, SamplingParams
from gleaner.actors.reward.prompts import BadConversation

Generate = Callable[[GenerateBody], Awaitable[list[Generated]]]


class ChatRoutes:
    """The routes. model: the name by which clients ask for it. generate: `GenerateRoutes.whole`."""

    def __init__(self, model: str, engine: Engine, generate: Generate) -> None:
        self._model, self._engine, self._generate = model, engine, generate

    async def models(self, _: web.Request) -> web.Response:
        """The one model."""
        return json(ModelList([ModelEntry(self._model, self._engine.max_tokens)]))

    async def chat(self, request: web.Request) -> web.Response:
        """Answer a conversation."""
        body = await body_of(request, ChatBody)
        if body.model != self._model:
            raise web.HTTPNotFound(reason=f"it serves {self._model!r}, not {body.model!r}")
        (found,) = await self._generate(self._asked(body))
        meta, finish = found.meta_info, found.meta_info.finish_reason
        if finish is None or finish.type == "abort":
            status = 503 if finish is None or finish.status_code is None else finish.status_code
            return problem(status, (finish.message if finish else None) or "it was ended")
        usage = Usage(meta.prompt_tokens, meta.completion_tokens, meta.prompt_tokens + meta.completion_tokens)
        choice = ChatChoice(ChatMessage("assistant", found.text), finish.type)
        return json(ChatAnswer(meta.id, self._model, int(time.time()), [choice], usage))

    def _asked(self, body: ChatBody) -> GenerateBody:
        prompts = self._engine.prompts
        try:
            text = prompts.chat([msgspec.structs.asdict(one) for one in body.messages])
        except BadConversation as refusal:
            raise BadRequest(f"messages: {refusal}") from refusal
        limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        params = SamplingParams(
            max_new_tokens=limit,
            temperature=body.temperature,
            top_p=body.top_p,
            stop=body.stop,
            sampling_seed=body.seed,
        )
        return GenerateBody(input_ids=list(prompts.encode_text(text)), sampling_params=params)
