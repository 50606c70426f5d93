"""HTTP on the simulated network: aiohttp's server above simulated connections."""

import asyncio
import random

from aiohttp import web

from gleaner.sim.http_client import BrokenAnswer, HttpCall, post
from gleaner.sim.http_listening import HIGH_BYTES, HttpListening
from gleaner.sim.loop import SimLoop
from gleaner.sim.models.vocabulary import SimVocabulary, word
from gleaner.sim.network import SimNet
from gleaner.sim.process_loop import ProcessLoop
from gleaner.transport.sockets import CannotListen

AIOHTTP_BYTES = 2**16
"""After so much, aiohttp asks its transport whether the reader keeps up."""


class Served:
    """A server with an echo and an endless stream, and a client beside it."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.net = SimNet(self.loop, random.Random(1), self.loop.trace)
        address = self.net.add_host("server")
        self.net.add_host("client")
        self.endpoint = f"tcp://{address}:8000"
        self.process = self.loop.spawn("server", "server")
        self.written = 0
        self.closed = False
        self.runner: web.AppRunner | None = None
        self.process.create_task(self.serve(self.process))
        self.loop.run(1.0)

    async def serve(self, process: ProcessLoop) -> None:
        app = web.Application()
        app.router.add_post("/echo", self.echo)
        app.router.add_post("/stream", self.stream)
        listening = HttpListening(self.net, self.net.station(process, "server", "server"), lambda: 86400.0)
        listening.prepare(app)
        self.runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await self.runner.setup()
        assert await listening.listen(self.runner, "0.0.0.0", 8000) == 8000

    async def echo(self, request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 100)
                self.written += 100
                await asyncio.sleep(0.01)
        finally:
            self.closed = True

    def call(self, path: str, body: bytes = b"") -> "Calling":
        return Calling(self, path, body)


class Calling:
    """A call, and what came of it."""

    def __init__(self, served: Served, path: str, body: bytes) -> None:
        self.status = 0
        self.http: HttpCall | None = None
        self.got = b""
        self.problem: OSError | None = None
        process = served.loop.spawn("client", "client")
        process.create_task(self.run(served, process, path, body))

    async def run(self, served: Served, process: ProcessLoop, path: str, body: bytes) -> None:
        station = served.net.station(process, "client", "client")
        try:
            self.http = await post(served.net, station, served.endpoint, path, {}, body)
            self.status = await self.http.head()
            async for piece in self.http.pieces():
                self.got += piece
                if path == "/stream" and len(self.got) > 300:
                    await asyncio.sleep(1000.0)  # it reads no more
        except OSError as problem:
            self.problem = problem


def test_call_has_its_answer_and_the_simulated_date() -> None:
    served = Served()
    calling = served.call("/echo", b"abc" * 1000)
    served.loop.run(5.0)
    assert (calling.status, calling.got, calling.problem) == (200, b"abc" * 1000, None)
    assert calling.http is not None
    assert calling.http.headers["date"] == "Fri, 02 Jan 1970 00:00:00 GMT"
    assert served.loop.findings == []


def test_reader_that_stops_holds_up_its_stream() -> None:
    served = Served()
    served.call("/stream")
    served.loop.run(50.0)
    written = served.written
    served.loop.run(100.0)
    assert 300 < written == served.written < AIOHTTP_BYTES + 4 * HIGH_BYTES
    assert not served.closed


def test_client_that_hangs_up_ends_its_handler() -> None:
    served = Served()
    calling = served.call("/stream")
    served.loop.run(3.0)
    assert calling.http is not None
    calling.http.close()
    served.loop.run(4.0)
    assert served.closed
    assert served.loop.findings == []


def test_killed_server_breaks_its_answers() -> None:
    served = Served()
    calling = served.call("/stream")
    served.loop.run(1.02)
    served.process.kill()
    served.loop.run(2000.0)
    assert isinstance(calling.problem, BrokenAnswer | ConnectionResetError)
    refused = served.call("/echo")
    served.loop.run(2010.0)
    assert isinstance(refused.problem, ConnectionRefusedError)


def test_closed_server_frees_its_port() -> None:
    served = Served()
    problems: list[Exception] = []

    async def again() -> None:
        try:
            await served.serve(served.process)
        except CannotListen as problem:
            problems.append(problem)
        assert served.runner is not None

    first = served.runner
    assert first is not None
    served.process.create_task(again())
    served.loop.run(2.0)
    assert len(problems) == 1
    served.process.create_task(first.cleanup())
    served.loop.run(3.0)
    served.process.create_task(again())
    served.loop.run(4.0)
    assert len(problems) == 1


def test_words_are_tokens() -> None:
    words = SimVocabulary()
    text = words.decode([300, 15])
    assert text == word(300) + word(15) == " 12c f"
    assert words.encode_text(text) == [300, 15]
    assert words.encode_text("hello 12c") == [5, 300]
    assert words.chat([{"role": "user", "content": " 1 2"}, {"role": "user", "content": "3"}]) == " 1 2 3"
