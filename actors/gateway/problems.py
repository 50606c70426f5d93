"""Problem: an error as a client reads it, a status and a JSON body.

    {"error": {"type": "WeightVersionNotReady", "message": "...", "retryable": true, "code": 409, ...}}

The body is the same on every wire. Owns the table from errors to statuses. The names `WeightVersionNotReady`,
`EngineUnavailable` and their keys are Stitch's. Adapter: knows aiohttp.
"""

import math

import msgspec
from aiohttp import web

from gleaner.actors.gateway.access import Denied
from gleaner.actors.gateway.ask import AskError, BadAsk, Busy, NotReady
from gleaner.actors.gateway.engine_url import BadUrl
from gleaner.actors.gateway.fleet import (
    CannotLoad,
    Failed,
    FleetAway,
    FleetError,
    NotHere,
    OtherModel,
    UnknownWorker,
    VersionTaken,
)


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`error` of a body. code: the HTTP status. param: the field that is wrong. target_version, applied: the
    requested version that is not served, and the newest that is."""

    type: str
    message: str
    code: int
    retryable: bool
    param: str | None = None
    target_version: int | None = None
    applied: int | None = None


class ProblemBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The body of every error. type, message, target_version, applied: repeated here for a version that is
    not ready, since Stitch's clients read them here."""

    error: Problem
    type: str | None = None
    message: str | None = None
    target_version: int | None = None
    applied: int | None = None


def problem_of(error: Exception) -> Problem:
    """The problem of an error of a port, or of HTTP itself."""
    match error:
        case BadAsk():
            return Problem(
                type="BadRequest", message=str(error), code=400, retryable=False, param=error.field or None
            )
        case NotReady():
            return Problem(
                type="WeightVersionNotReady",
                message=str(error),
                retryable=error.retryable,
                code=409,
                target_version=error.target,
                applied=error.applied,
            )
        case Busy() | FleetAway():
            return Problem(type="EngineUnavailable", message=str(error), retryable=True, code=503)
        case NotHere():
            return Problem(type="NotHere", message=str(error), code=409, retryable=False)
        case OtherModel():
            return Problem(type="OtherModel", message=str(error), code=409, retryable=False)
        case BadUrl():
            return Problem(type="BadRequest", message=str(error), code=400, retryable=False, param="url")
        case CannotLoad():
            return Problem(type="CannotLoad", message=str(error), code=400, retryable=False)
        case VersionTaken():
            return Problem(type="VersionTaken", message=str(error), code=409, retryable=False)
        case UnknownWorker():
            return Problem(type="UnknownWorker", message=str(error), code=404, retryable=False)
        case Failed():
            return Problem(type="Failed", message=str(error), retryable=True, code=503)
        case Denied():
            name = {401: "Unauthorized", 403: "Forbidden"}.get(error.status, "BadRequest")
            return Problem(
                type=name,
                message=str(error),
                code=error.status,
                retryable=False,
                param=error.field or None,
            )
        case web.HTTPException():
            type_ = {401: "Unauthorized", 404: "NotFound", 405: "MethodNotAllowed", 413: "BodyTooLarge"}
            name = type_.get(error.status, "BadRequest")
            return Problem(type=name, message=error.text or error.reason, code=error.status, retryable=False)
        case _:
            text = f"{type(error).__name__}; the gateway's log has it"
            return Problem(type="InternalError", message=text, retryable=True, code=500)


def body_of(problem: Problem) -> bytes:
    """The JSON of a problem."""
    if problem.type != "WeightVersionNotReady":
        return msgspec.json.encode(ProblemBody(error=problem))
    return msgspec.json.encode(
        ProblemBody(
            error=problem,
            type=problem.type,
            message=problem.message,
            target_version=problem.target_version,
            applied=problem.applied,
        )
    )


def refusal(error: Exception) -> web.Response:
    """The answer of a call that failed."""
    problem = problem_of(error)
    after_s = error.retry_after_s if isinstance(error, AskError) else 1.0
    headers = {"Retry-After": str(math.ceil(after_s))} if problem.retryable else None
    return web.Response(
        body=body_of(problem), status=problem.code, headers=headers, content_type="application/json"
    )


TOLD = (AskError, FleetError, Denied, web.HTTPException)
"""Errors that a client receives as they are; all others are sent as `InternalError` and logged."""
