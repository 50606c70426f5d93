"""`ControlRoutes`: control routes of the server (abort, pause, weights).

Adapter: aiohttp.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from gleaner.actors.engine.builtin_server.active_request import aborted
from gleaner.actors.engine.builtin_server.batch_loop import BatchLoop, RequestsRunning
from gleaner.actors.engine.builtin_server.bodies import body_of, json
from gleaner.actors.engine.builtin_server.request_parser import BadRequest
from gleaner.actors.engine.builtin_server.weights import read_image
from gleaner.actors.engine.builtin_server.wire import (
    AbortBody,
    ContinueBody,
    ControlReply,
    PauseBody,
    UpdateBody,
    Updated,
    VersionBody,
    VersionNamed,
)
from gleaner.actors.model.flat_image import BadImage
from gleaner.actors.model.qwen3 import BadCheckpoint, Qwen3Config

T = TypeVar("T")

FORMATS = frozenset({None, "auto", "safetensors"})
FLUSH_S = 600.0
"""Longest wait of `/flush_cache`, for any `timeout` in the request."""


class ControlRoutes:
    """Control routes. model_path: the source of the weights."""

    def __init__(self, config: Qwen3Config, batch_loop: BatchLoop, model_path: str) -> None:
        self._config, self._batch_loop = config, batch_loop
        self.model_path = model_path
        self._doing: set[asyncio.Task[object]] = set()

    async def abort(self, request: web.Request) -> web.Response:
        """`/abort_request`: these end now, with their tokens."""
        body = await body_of(request, AbortBody)
        finish = aborted(body.abort_message or "it was aborted")
        if body.abort_all:
            self._batch_loop.end_all(finish)
        elif not body.rid:
            raise BadRequest("rid, abort_all: expected one of them")
        else:
            for one in self._batch_loop.by_id(body.rid):
                self._batch_loop.end(one, finish)
        return web.Response()

    async def pause(self, request: web.Request) -> web.Response:
        """`/pause_generation`."""
        body = await body_of(request, PauseBody)
        await self._whole(self._batch_loop.pause(leave_slots=body.mode == "retract"))
        if body.mode == "abort":
            self._batch_loop.end_all(aborted("generation was paused"))
        return json(ControlReply("Generation paused successfully."))

    async def resume(self, request: web.Request) -> web.Response:
        """`/continue_generation`."""
        await body_of(request, ContinueBody)
        self._batch_loop.resume()
        return json(ControlReply("Generation continued successfully."))

    async def update(self, request: web.Request) -> web.Response:
        """`/update_weights_from_disk`."""
        body = await body_of(request, UpdateBody)
        if body.load_format not in FORMATS:
            raise BadRequest(f"load_format: expected auto or safetensors, got {body.load_format!r}")
        return json(*await self._whole(self._updated(body)))

    async def _updated(self, body: UpdateBody) -> tuple[Updated, int]:
        try:
            image = await asyncio.to_thread(read_image, Path(body.model_path), self._config)
            paused = await self._batch_loop.change(
                image, body.weight_version, end_all=body.abort_all_requests
            )
        except (BadCheckpoint, BadImage, RequestsRunning) as problem:
            return Updated(False, str(problem)), 400
        self.model_path = body.model_path
        named = f" Weight version updated to {body.weight_version}." if body.weight_version else ""
        return Updated(True, f"Succeeded to update model weights.{named}", paused), 200

    async def rename(self, request: web.Request) -> web.Response:
        """`/update_weight_version`."""
        body = await body_of(request, VersionBody)
        if body.abort_all_requests:
            self._batch_loop.end_all(aborted("its server ended all requests for another version"))
        await self._whole(self._batch_loop.rename(body.new_version))
        return json(VersionNamed(True, f"Weight version updated to {body.new_version}", body.new_version))

    async def flush(self, request: web.Request) -> web.Response:
        """Nothing is kept between requests, so there is nothing to do; busy servers refuse, as SGLang's."""
        given = request.query.get("timeout", "0")
        try:
            limit_s = min(max(float(given), 0.0), FLUSH_S)
        except ValueError:
            raise BadRequest(f"timeout: expected seconds, got {given!r}") from None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._batch_loop.open:
                    await self._batch_loop.turned()
        if self._batch_loop.open:
            raise BadRequest(f"the cache is not flushed: {self._batch_loop.open} requests have not ended")
        return web.Response(text="Cache flushed.\n")

    async def _whole(self, work: Coroutine[object, object, T]) -> T:
        """Run to the end even if the client disconnects: the outcome of half a change would be unknown."""
        task = asyncio.ensure_future(work)
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)
        return await asyncio.shield(task)
