"""`MadeTokens`: vLLM route for the tokens made per request of a paused engine.

Owns one method of vLLM's engine core, where tokens are made, and one answer of the front end. The core makes
no token while it is paused (`/pause?mode=keep`), so the numbers are exact even with tokens still on their way
through the front end. Source: `vllm.v1.engine.core` of 0.32.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

PATH = "/gleaner/made_tokens"
METHOD = "gleaner_made_tokens"

Scope = MutableMapping[str, Any]
Call = Callable[..., Awaitable[None]]


def made_tokens(core: Any) -> dict[str, int] | None:
    """A method of `EngineCore`: the tokens of each unfinished request, by vLLM's own name; None if requests
    are not held."""
    from vllm.v1.core.sched.interface import PauseState

    if core.scheduler.pause_state != PauseState.PAUSED_ALL or core.has_work():
        return None
    requests = core.scheduler.requests.items()
    return {name: request.num_output_tokens for name, request in requests if not request.is_finished()}


def register() -> None:
    """Give the engine core its method, in each process."""
    from vllm.v1.engine.core import EngineCore

    setattr(EngineCore, METHOD, made_tokens)


class MadeTokens:
    """The route, as what vLLM takes by `--middleware`: `{"paused": true, "made": {"cmpl-x-0": 7}}`."""

    def __init__(self, app: Call) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Call, send: Call) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._app(scope, receive, send)
            return
        from starlette.responses import JSONResponse

        client = scope["app"].state.engine_client
        counts = await client.engine_core.call_utility_async(METHOD)
        known = client.output_processor.request_states
        made = {known[name].external_req_id: count for name, count in (counts or {}).items() if name in known}
        await JSONResponse({"paused": counts is not None, "made": made})(scope, receive, send)
