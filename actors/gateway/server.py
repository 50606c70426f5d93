"""HttpServer of the gateway: routes, limits, errors, event streams.

Owns the aiohttp application and its listening socket. The routes of each wire are in modules of their own and
are joined in `routes`. Adapter.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from gleaner.actors.gateway.access import OPEN, Access
from gleaner.actors.gateway.ask import Busy
from gleaner.actors.gateway.calls import Call, HandlerContext, Operation, Route
from gleaner.actors.gateway.connections import IDLE_S, LINGER_S, UNREAD_S, UnreadWatch
from gleaner.actors.gateway.metrics import Figures
from gleaner.actors.gateway.middlewares import counting, methods
from gleaner.actors.gateway.problems import TOLD, body_of, problem_of, refusal
from gleaner.configs.schema import Gateway as Settings

SSE_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
ALIVE = b": alive\n\n"
DONE = b"data: [DONE]\n\n"
STOP_S = 3.0
CALLS = 4
"""Concurrent HTTP calls, as a multiple of `gateway.max_concurrent`: some wait for their body, some only
query."""
BACKLOG = 1024

log = logging.getLogger("rollout/gateway")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def events(
    call: Call, chunks: AsyncGenerator[bytes, None], *, ends: bytes = DONE
) -> web.StreamResponse:
    """Answer with server-sent events: each of `chunks` is whole ("data: ...\\n\\n"), `ends` follows the last.

    An error before the first chunk is an answer with its status; later ones are an event. After `heartbeat_s`
    without a chunk: a comment. A slow client delays `chunks`. When the client disconnects, `chunks` is
    closed.
    """
    beat_s = call.desk.settings.heartbeat_s
    first = asyncio.ensure_future(anext(chunks, b""))
    try:
        await asyncio.wait((first,), timeout=beat_s)
        if first.done() and (error := first.exception()) is not None:
            raise error
        response = web.StreamResponse(headers=SSE_HEADERS)
        await response.prepare(call.request)
        stream = _Stream(response, beat_s)
        beating = asyncio.ensure_future(stream.beat())
        try:
            await stream.write(await first)
            async for chunk in chunks:
                await stream.write(chunk)
            await stream.write(ends)
        except ConnectionError:  # the client disconnected: `chunks` is closed below
            return response
        except Exception as error:
            if not isinstance(error, TOLD):
                log.exception("request failed: %s %s", call.request.method, call.request.path)
            with contextlib.suppress(ConnectionError):
                await stream.write(b"data: " + body_of(problem_of(error)) + b"\n\n" + ends)
        finally:
            beating.cancel()
        with contextlib.suppress(ConnectionError):
            await response.write_eof()
        return response
    finally:
        if not first.done():
            first.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await first
        await chunks.aclose()


class _Stream:
    """A response with two writers: the handler and the heartbeat."""

    def __init__(self, response: web.StreamResponse, beat_s: float) -> None:
        self._response, self._beat_s = response, beat_s
        self._loop = asyncio.get_running_loop()
        self._said_s = self._loop.time()
        self._busy = False

    async def write(self, chunk: bytes) -> None:
        """Waits while the client reads slowly. Raises ConnectionError once it is gone."""
        if not chunk:
            return
        self._busy = True
        await self._response.write(chunk)
        self._busy = False
        self._said_s = self._loop.time()

    async def beat(self) -> None:
        """Write a comment after each silence, until cancelled or the client is gone."""
        with contextlib.suppress(ConnectionError):
            while True:
                left_s = self._said_s + self._beat_s - self._loop.time()
                if left_s > 0:
                    await asyncio.sleep(left_s)
                elif self._busy:  # the client does not read what it has
                    await asyncio.sleep(self._beat_s)
                else:
                    self._said_s = self._loop.time()
                    await self._response.write(ALIVE)


def application(desk: HandlerContext, routes: Sequence[Route], access: Access) -> web.Application:
    """All routes behind keys and limits."""
    handlers = [(_handler(desk, route), route) for route in routes]
    return guarded(handlers, Guard(desk.settings, access, desk.figures))


@dataclass(frozen=True, slots=True)
class Guard:
    """What is in front of the handlers: limits, keys, figures, and the answers of calls that failed. told:
    errors that a client receives as they are."""

    settings: Settings
    access: Access
    figures: Figures
    refusal: Callable[[Exception], web.Response] = refusal
    told: tuple[type[Exception], ...] = TOLD


def guarded(handlers: Sequence[tuple[Handler, Operation]], front: Guard) -> web.Application:
    """An application of these handlers, each for its route."""
    settings, access, refusal = front.settings, front.access, front.refusal
    most = CALLS * settings.max_concurrent
    kinds = {handler: route.kind for handler, route in handlers}
    calls = 0

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal calls
        if calls >= most:
            return refusal(Busy(f"{calls} calls at once; the limit is {most}"))
        calls += 1
        try:
            access.check(request.headers, kinds.get(request.match_info.handler, "control"))
            return await handler(request)
        except front.told as error:
            return refusal(error)
        except Exception as error:
            log.exception("request failed: %s %s", request.method, request.path)
            return refusal(error)
        finally:
            calls -= 1

    middlewares = [counting(front.figures), methods, guard]
    app = web.Application(middlewares=middlewares, client_max_size=settings.max_body_bytes)
    for handler, route in handlers:
        for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
            app.router.add_route(method, route.path, handler)
    return app


def _handler(desk: HandlerContext, route: Route) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await route.does(Call(desk, request))

    return handle


class Listening(Protocol):
    """Where the server takes its connections from: TCP, or the simulated network."""

    def prepare(self, app: web.Application) -> None:
        """Called once with the application, before it starts."""

    async def listen(self, runner: web.AppRunner, host: str, port: int) -> int:
        """Accept connections there until the runner is cleaned up; returns the port. Raises OSError."""


class TcpListening:
    """Sockets of this machine."""

    def prepare(self, app: web.Application) -> None:
        """See `Listening`: there is nothing to prepare."""

    async def listen(self, runner: web.AppRunner, host: str, port: int) -> int:
        """See `Listening`."""
        await web.TCPSite(runner, host, port, backlog=BACKLOG, reuse_address=True).start()
        bound: int = runner.addresses[0][1]
        return bound


class WebServer:
    """Listens from `start` to `close`. listening: where. idle_s, unread_s: see `connections`."""

    def __init__(
        self,
        app: web.Application,
        *,
        listening: Listening | None = None,
        idle_s: float = IDLE_S,
        unread_s: float = UNREAD_S,
    ) -> None:
        self._listening = listening or TcpListening()
        self._listening.prepare(app)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=STOP_S,
            keepalive_timeout=idle_s,
            lingering_time=min(LINGER_S, idle_s),
        )
        self._watch = UnreadWatch(self._runner, unread_s)
        self.url = ""

    @property
    def connections(self) -> int:
        """Number of open connections."""
        server = self._runner.server
        return 0 if server is None else len(server.connections)

    async def start(self, host: str, port: int) -> str:
        """The address, as a URL. Raises OSError if the server cannot listen there."""
        await self._runner.setup()
        bound = await self._listening.listen(self._runner, host, port)
        self._watch.start()
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{bound}"
        return self.url

    async def close(self) -> None:
        """Stop answering; streams end."""
        self._watch.close()
        await self._runner.cleanup()


class HttpServer(WebServer):
    """The gateway's. The arguments behind `access` are those of `WebServer`."""

    def __init__(
        self,
        desk: HandlerContext,
        routes: Sequence[Route],
        access: Access = OPEN,
        *,
        listening: Listening | None = None,
        idle_s: float = IDLE_S,
        unread_s: float = UNREAD_S,
    ) -> None:
        app = application(desk, routes, access)
        super().__init__(app, listening=listening, idle_s=idle_s, unread_s=unread_s)
