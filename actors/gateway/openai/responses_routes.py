"""Route of OpenAI's `/v1/responses`: a conversation in, items out.

Stateless. Adapter.
"""

from collections.abc import AsyncGenerator

import msgspec
from aiohttp import web

from gleaner.actors.gateway.calls import Call, Route, json
from gleaner.actors.gateway.openai.responses_answers import ResponseAnswer
from gleaner.actors.gateway.openai.responses_requests import NOT_KEPT, ResponseRequest
from gleaner.actors.gateway.openai.responses_wire import Event, Response
from gleaner.actors.gateway.openai.routes import begin_chat
from gleaner.actors.gateway.server import events


async def respond(call: Call) -> web.StreamResponse:
    body = await call.body(ResponseRequest)
    answers, updates = await begin_chat(call, body.as_chat(), "resp")
    answer = ResponseAnswer(answers, body)

    async def chunks() -> AsyncGenerator[bytes, None]:
        opened = False
        try:
            async for one in updates:
                if not opened:
                    opened = True
                    for event in answer.opening():
                        yield _encoded(event)
                for event in answer.receive(one):
                    yield _encoded(event)
        finally:
            await updates.aclose()

    if body.stream:
        return await events(call, chunks(), ends=b"")
    try:
        async for one in updates:
            answers.take(one)
    finally:
        await updates.aclose()
    return json(answer.whole())


async def not_kept(call: Call) -> web.StreamResponse:
    raise web.HTTPNotFound(text=NOT_KEPT)


def _encoded(event: Event) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.type.encode(), msgspec.json.encode(event))


ROUTES = (
    Route(
        "POST", "/v1/responses", respond, "Answer a conversation with items (OpenAI).",
        ResponseRequest, answer=Response, kind="data",
    ),
    *(Route(method, "/v1/responses/{response}", not_kept, "Not served: responses are not kept.")
      for method in ("GET", "DELETE")),
    Route("POST", "/v1/responses/{response}/cancel", not_kept, "Not served: responses are not kept."),
)  # fmt: skip
