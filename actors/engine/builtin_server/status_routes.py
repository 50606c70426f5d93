"""`StatusRoutes`: status routes of the server (health, model, load, figures).

Adapter: aiohttp.
"""

import asyncio
import time
from datetime import UTC, datetime
from typing import Literal

import msgspec
from aiohttp import web

from gleaner.actors.engine.builtin_server.active_request import aborted
from gleaner.actors.engine.builtin_server.batch_loop import BatchLoop, Full
from gleaner.actors.engine.builtin_server.bodies import json
from gleaner.actors.engine.builtin_server.control_routes import ControlRoutes
from gleaner.actors.engine.builtin_server.generate_routes import GenerateRoutes
from gleaner.actors.engine.builtin_server.metrics import Figures
from gleaner.actors.engine.builtin_server.request_parser import Engine, asked_of
from gleaner.actors.engine.builtin_server.status_schema import Load, Loads, ModelInfo, OldLoad, ServerInfo
from gleaner.actors.engine.builtin_server.wire import GenerateBody, SamplingParams

PROBE_S = 20.0
"""`/health_generate` waits so long for a token."""
RATE_S = 1.0
"""Shortest period of a rate."""


class Rate:
    """Tokens a second since the last request for it, at least `RATE_S` ago."""

    def __init__(self, batch_loop: BatchLoop) -> None:
        self._batch_loop = batch_loop
        self._at_s, self._tokens, self._rate = time.monotonic(), 0, 0.0

    def now(self) -> float:
        """The rate."""
        at_s, tokens = time.monotonic(), self._batch_loop.tokens
        if at_s - self._at_s >= RATE_S:
            self._rate = (tokens - self._tokens) / (at_s - self._at_s)
            self._at_s, self._tokens = at_s, tokens
        return self._rate


class StatusRoutes:
    """Status routes. `info`: status, path and version are filled in for each request."""

    def __init__(
        self,
        info: ServerInfo,
        engine: Engine,
        batch_loop: BatchLoop,
        generating: GenerateRoutes,
        controlling: ControlRoutes,
        figures: Figures,
    ) -> None:
        self._info, self._engine, self._batch_loop = info, engine, batch_loop
        self._generating, self._controlling, self._figures = generating, controlling, figures
        self._rate = Rate(batch_loop)

    async def health(self, _: web.Request) -> web.Response:
        """`/health`: the server answers, and accepts requests."""
        return web.Response(status=503 if self._generating.stopping else 200)

    async def probe(self, _: web.Request) -> web.Response:
        """`/health_generate`: a token is made, by any running request, else by one of its own. While paused,
        none is made.
        """
        batch_loop = self._batch_loop
        if self._generating.stopping or batch_loop.paused:
            why = "this server is stopping" if self._generating.stopping else "generation is paused"
            raise Full(f"{why}: no token is made")
        params = SamplingParams(max_new_tokens=1, temperature=0.0)
        (asked,), _batch = asked_of(GenerateBody(input_ids=[0], sampling_params=params), self._engine)
        own = None if batch_loop.open else batch_loop.start(asked)
        try:
            async with asyncio.timeout(PROBE_S):
                await batch_loop.progress()
        except TimeoutError:
            raise Full(f"no token was made for {PROBE_S:g} s") from None
        finally:
            if own is not None:
                batch_loop.end(own, aborted("the probe is over"))
        return web.Response()

    async def model_info(self, _: web.Request) -> web.Response:
        """`/model_info`."""
        path, info = self._controlling.model_path, self._info
        version, vocabulary = self._batch_loop.version, self._engine.vocabulary
        return json(ModelInfo(path, info.tokenizer_path, version, vocabulary))

    async def server_info(self, _: web.Request) -> web.Response:
        """`/server_info`: with the model that it was started with, as SGLang 0.5.23; `/model_info` has the
        newest."""
        status: Literal["ready", "paused", "stopping"] = "paused" if self._batch_loop.paused else "ready"
        info = msgspec.structs.replace(
            self._info,
            weight_version=self._batch_loop.version,
            status="stopping" if self._generating.stopping else status,
        )
        return json(info)

    async def loads(self, _: web.Request) -> web.Response:
        """`/v1/loads`."""
        info = self._info
        return json(Loads(datetime.now(UTC).isoformat(), info.version, info.device, 1, [self._load()]))

    async def old_loads(self, _: web.Request) -> web.Response:
        """`/get_load`, the form of older releases."""
        load = self._load()
        waiting, running = load.num_waiting_reqs, load.num_running_reqs
        return json([OldLoad(0, waiting + running, waiting, load.num_total_tokens)])

    async def metrics(self, _: web.Request) -> web.Response:
        """`/metrics`."""
        page = self._figures.text(self._load())
        return web.Response(body=page, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    def _load(self) -> Load:
        batch_loop, info = self._batch_loop, self._info
        inside, everything = batch_loop.context_tokens()
        usage = inside / info.max_total_num_tokens
        return Load(
            dp_rank=0,
            num_running_reqs=batch_loop.executing,
            num_waiting_reqs=batch_loop.waiting,
            num_used_tokens=inside,
            num_total_tokens=everything,
            max_total_num_tokens=info.max_total_num_tokens,
            token_usage=usage,
            gen_throughput=self._rate.now(),
            cache_hit_rate=0.0,
            utilization=batch_loop.executing / info.max_running_requests,
            max_running_requests=info.max_running_requests,
        )
