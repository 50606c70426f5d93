"""`Server`: SGLang's and OpenAI's routes for the builtin engine, and their access control.

Owns the aiohttp application and nothing of the engine. Adapter. `docs/engines.md` describes each route.
"""

import asyncio
import contextlib
import hmac
from dataclasses import dataclass

from aiohttp import web

from gleaner.actors.engine.builtin_server.active_request import aborted
from gleaner.actors.engine.builtin_server.answers import Answers
from gleaner.actors.engine.builtin_server.batch_loop import BatchLoop
from gleaner.actors.engine.builtin_server.bodies import Handler, errors
from gleaner.actors.engine.builtin_server.chat_routes import ChatRoutes
from gleaner.actors.engine.builtin_server.control_routes import ControlRoutes
from gleaner.actors.engine.builtin_server.generate_routes import GenerateRoutes
from gleaner.actors.engine.builtin_server.metrics import Figures
from gleaner.actors.engine.builtin_server.request_parser import Engine
from gleaner.actors.engine.builtin_server.status_routes import StatusRoutes
from gleaner.actors.engine.builtin_server.status_schema import ServerInfo
from gleaner.actors.model.qwen3 import Qwen3Config

MAX_BODY_BYTES = 64 * 2**20
OPEN = frozenset({"/health"})
"""Routes that need no key."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The contents of the server. api_key: None gives access to every client that reaches the port."""

    config: Qwen3Config
    engine: Engine
    info: ServerInfo
    api_key: str | None = None


class Server:
    """The routes over one `BatchLoop`, which the caller drives."""

    def __init__(self, serving: ServedModel, batch_loop: BatchLoop, answers: Answers) -> None:
        self._batch_loop = batch_loop
        self._key = serving.api_key
        figures = Figures(serving.info.served_model_name)
        self._generating = GenerateRoutes(serving.engine, batch_loop, answers, figures)
        self._controlling = ControlRoutes(serving.config, batch_loop, serving.info.model_path)
        self._chatting = ChatRoutes(serving.info.served_model_name, serving.engine, self._generating.whole)
        self._status_routes = StatusRoutes(
            serving.info, serving.engine, batch_loop, self._generating, self._controlling, figures
        )

    def application(self) -> web.Application:
        """The routes."""
        status_routes, controlling = self._status_routes, self._controlling
        application = web.Application(middlewares=[errors, self._admit], client_max_size=MAX_BODY_BYTES)
        for path, handler in (
            ("/health", status_routes.health),
            ("/health_generate", status_routes.probe),
            ("/model_info", status_routes.model_info),
            ("/get_model_info", status_routes.model_info),
            ("/server_info", status_routes.server_info),
            ("/get_server_info", status_routes.server_info),
            ("/v1/loads", status_routes.loads),
            ("/get_load", status_routes.old_loads),
            ("/metrics", status_routes.metrics),
            ("/flush_cache", controlling.flush),
            ("/v1/models", self._chatting.models),
        ):
            application.router.add_get(path, handler)
        for path, handler in (
            ("/flush_cache", controlling.flush),
            ("/abort_request", controlling.abort),
            ("/pause_generation", controlling.pause),
            ("/continue_generation", controlling.resume),
            ("/update_weights_from_disk", controlling.update),
            ("/update_weight_version", controlling.rename),
        ):
            application.router.add_post(path, handler)
        application.router.add_post("/v1/chat/completions", self._chatting.chat)
        application.router.add_post("/generate", self._generating.generate)
        return application

    async def drained(self, within_s: float) -> None:
        """Accept no new requests; running ones may end within this time, then they end with their tokens."""
        self._generating.stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._batch_loop.open and not self._batch_loop.paused:
                    await self._batch_loop.turned()
        self._batch_loop.end_all(aborted("its server was stopped"))

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if (
            self._key is not None
            and request.path not in OPEN
            and not hmac.compare_digest(given.encode(), self._key.encode())
        ):
            raise web.HTTPUnauthorized(reason="this server wants its key: Authorization: Bearer KEY")
        return await handler(request)
