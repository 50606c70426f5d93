"""`GenerateRoutes`: route `/generate`, for one request or a batch.

At once or as a stream. Adapter: aiohttp.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from aiohttp import web

from gleaner.actors.engine.builtin_server.active_request import ActiveRequest, aborted
from gleaner.actors.engine.builtin_server.answers import Answers
from gleaner.actors.engine.builtin_server.batch_loop import BatchLoop, Full
from gleaner.actors.engine.builtin_server.bodies import body_of, json, problem, problem_body
from gleaner.actors.engine.builtin_server.metrics import Figures
from gleaner.actors.engine.builtin_server.request_parser import BadRequest, Engine, asked_of
from gleaner.actors.engine.builtin_server.wire import GenerateBody, Generated

REQUEST_S = 3600.0
"""A request ends after that with its tokens, as an abort; paused time counts."""
SSE = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}

log = logging.getLogger("engine/server")


class GenerateRoutes:
    """`/generate`. stopping: no new request is accepted."""

    def __init__(self, engine: Engine, batch_loop: BatchLoop, answers: Answers, figures: Figures) -> None:
        self._engine, self._batch_loop, self._answers = engine, batch_loop, answers
        self._figures = figures
        self.stopping = False

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Reply when all have ended, or stream their tokens; a closed client ends them."""
        body = await body_of(request, GenerateBody)
        with self._started(body) as (running, batch):
            if body.stream:
                return await self._stream(request, running, batch)
            answers = await self._whole(running)
            for one in running:
                if one.finish is not None and one.finish.status_code is not None:
                    return problem(one.finish.status_code, one.finish.message or "")
            return json(answers if batch else answers[0])

    async def whole(self, body: GenerateBody) -> list[Generated]:
        """The answers of a body, when all have ended; they end where the caller is cancelled."""
        with self._started(body) as (running, _):
            return await self._whole(running)

    async def _whole(self, running: list[ActiveRequest]) -> list[Generated]:
        await self._ends(running)
        return [self._answers.answer(one, self._batch_loop.version) for one in running]

    @contextmanager
    def _started(self, body: GenerateBody) -> Iterator[tuple[list[ActiveRequest], bool]]:
        """The requests of a body, which end with the block; whether they are a batch. Raises BadRequest,
        Full."""
        if self.stopping:
            raise Full("this server is stopping: ask another one")
        asked, batch = asked_of(body, self._engine)
        if taken := [each.rid for each in asked if self._batch_loop.by_id(each.rid)]:
            raise BadRequest(f"rid: {taken[0]!r} is in use, its request has not ended")
        running: list[ActiveRequest] = []
        try:
            for each in asked:  # one by one: those before a Full are to end
                running.append(self._batch_loop.start(each))
            yield running, batch
        finally:
            for one in running:  # the client is gone, so no further token is needed
                self._batch_loop.end(one, aborted("its client closed the connection"))
                self._figures.ended(one)

    async def _ends(self, running: list[ActiveRequest]) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                for one in running:
                    await one.ended.wait()
        except TimeoutError:
            for one in running:
                self._batch_loop.end(one, aborted(f"it did not end within {REQUEST_S:g} s"))

    async def _stream(
        self, request: web.Request, running: list[ActiveRequest], batch: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=SSE)
        await response.prepare(request)
        writing = asyncio.Lock()

        async def follow(one: ActiveRequest, index: int) -> None:
            while True:
                await one.changed.wait()
                one.changed.clear()
                if one.finish is not None and one.finish.status_code is not None:
                    problem = problem_body(one.finish.status_code, one.finish.message or "")
                    chunk = msgspec.json.encode(problem)
                else:
                    answer = self._answers.answer(one, self._batch_loop.version)
                    if batch:
                        answer.index = index
                    chunk = msgspec.json.encode(answer)
                ended = one.finish is not None
                async with writing:  # a slow reader gets fewer chunks: each has everything so far
                    await response.write(b"data: " + chunk + b"\n\n")
                if ended:
                    return

        limit = asyncio.get_running_loop().call_later(REQUEST_S, self._too_long, running)
        try:
            async with asyncio.TaskGroup() as group:
                for index, one in enumerate(running):
                    group.create_task(follow(one, index))
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
        except* ConnectionError:
            log.info("the client of %s closed the connection", running[0].asked.rid)
        finally:
            limit.cancel()
        return response

    def _too_long(self, running: list[ActiveRequest]) -> None:
        for one in running:
            self._batch_loop.end(one, aborted(f"it did not end within {REQUEST_S:g} s"))
