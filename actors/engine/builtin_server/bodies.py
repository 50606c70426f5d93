"""Reading of request bodies and writing of replies and errors. Adapter: aiohttp."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec
from aiohttp import web

from gleaner.actors.engine.builtin_server.batch_loop import Full
from gleaner.actors.engine.builtin_server.request_parser import BadRequest
from gleaner.actors.engine.builtin_server.status_schema import Problem, ProblemBody

B = TypeVar("B", bound=msgspec.Struct)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BODY_S = 60.0
"""Longest time for a client to send its body."""
KINDS = {
    400: "BadRequestError",
    401: "UnauthorizedError",
    404: "NotFoundError",
    503: "ServiceUnavailableError",
}

log = logging.getLogger("engine/server")


async def body_of(request: web.Request, kind: type[B]) -> B:
    """The body as this struct; an empty one is {}. Raises BadRequest with the name of what is wrong."""
    try:
        async with asyncio.timeout(BODY_S):
            raw = await request.read()
    except TimeoutError:
        raise BadRequest(f"the body did not come within {BODY_S:g} s") from None
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise BadRequest(f"{request.path}: {problem}") from None


def json(answer: msgspec.Struct | Sequence[msgspec.Struct], status: int = 200) -> web.Response:
    """An answer with a JSON body."""
    return web.Response(body=msgspec.json.encode(answer), status=status, content_type="application/json")


def problem_body(status: int, message: str) -> ProblemBody:
    """The JSON of an error."""
    return ProblemBody(Problem(message, KINDS.get(status, "InternalServerError"), status))


def problem(status: int, message: str) -> web.Response:
    """An error reply; an error that may pass soon has a retry time."""
    answer = json(problem_body(status, message), status)
    if status == 503:
        answer.headers["Retry-After"] = "1"
    return answer


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every error into JSON with a reason; a defect is logged, and the reply has its kind."""
    try:
        return await handler(request)
    except BadRequest as bad:
        return problem(400, str(bad))
    except Full as full:
        return problem(503, str(full))
    except web.HTTPException as known:
        why = known.text if known.status == 413 else known.reason  # the text of 413 has the limit
        return problem(known.status, f"{request.method} {request.path}: {why}")
    except ConnectionError:  # the client is gone
        raise
    except Exception as defect:
        log.exception("%s %s", request.method, request.path)
        return problem(500, f"{type(defect).__name__}; the log of this server has it")
