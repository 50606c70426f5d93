"""Errors of the reward service as a client reads them: the gateway's form of a problem. Adapter."""

import math

import msgspec
from aiohttp import web

from gleaner.actors.gateway.ask import AskError, Busy
from gleaner.actors.gateway.problems import TOLD, Problem, ProblemBody, problem_of
from gleaner.actors.reward_service.asking import Outage, QueueFull, TooLong, UnknownResult

ERRORS = {
    "400": "The request is wrong; `error.param` names the field.",
    "401": "An API key is wanted.",
    "403": "Without keys: `Host` or `Origin` is a stranger's.",
    "404": "No such thing here.",
    "413": "The body, a response or a problem is too long.",
    "429": "So many items wait, or batches are open, that no more are taken; ask again after `Retry-After` "
    "seconds.",
    "503": "There is no score, and the response is not the reason; ask again after `Retry-After` seconds.",
    "default": "Any other error, in the same form.",
}

REFUSED = TOLD
"""Errors that a client receives as they are."""


def refusal(error: Exception) -> web.Response:
    """The answer of a call that failed."""
    problem = _problem(error)
    after_s = error.retry_after_s if isinstance(error, AskError) else 1.0
    headers = {"Retry-After": str(math.ceil(after_s))} if problem.retryable else None
    body = msgspec.json.encode(ProblemBody(error=problem))
    return web.Response(body=body, status=problem.code, headers=headers, content_type="application/json")


def _problem(error: Exception) -> Problem:
    match error:
        case Outage():
            return Problem(type="NoVerdict", message=str(error), code=503, retryable=True)
        case QueueFull() | Busy():
            return Problem(type="QueueFull", message=str(error), code=429, retryable=True)
        case TooLong():
            return Problem(
                type="BodyTooLarge", message=str(error), code=413, retryable=False, param=error.field
            )
        case UnknownResult():
            return Problem(type="NotFound", message=str(error), code=404, retryable=False)
    return problem_of(error)
