"""Half-open client connections: they end after a limit and do not affect other clients."""

import asyncio
import itertools
import socket
from collections.abc import AsyncGenerator

import pytest
from aiohttp import web

from gleaner.actors.gateway import calls
from gleaner.actors.gateway.ask import End, Piece
from gleaner.actors.gateway.calls import Call, Route
from gleaner.actors.gateway.calls import json as answer
from gleaner.actors.gateway.connections import Unread
from gleaner.actors.gateway.control.wire import AbortBody, Life
from gleaner.actors.gateway.server import events
from gleaner.configs.schema import Gateway
from tests.actors.gateway.gateway_world import serving

WITHIN_S = 60.0
IDLE_S = 0.3


async def make(call: Call) -> web.StreamResponse:
    source = call.desk.requests.stream(call.ask(call.id("made"), [1], 8))

    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            async for item in source:
                yield b"data: " + b"x" * 65536 + b"\n\n" if isinstance(item, Piece) else b""
        finally:
            await source.aclose()

    return await events(call, chunks())


async def read(call: Call) -> web.StreamResponse:
    await call.body(AbortBody)
    return answer(Life())


async def long(call: Call) -> web.StreamResponse:
    return web.Response(body=bytes(16 << 20))


ROUTES = (
    Route("POST", "/make", make, "Make tokens.", kind="data"),
    Route("POST", "/read", read, "Read.", AbortBody, answer=Life),
    Route("GET", "/long", long, "A long answer."),
)


def address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /rea", b"POST /read HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: "],
    ids=["nothing", "half-a-line", "half-a-head"],
)
async def test_client_without_a_whole_request_is_cut_off(sent: bytes) -> None:
    async with serving(ROUTES, idle_s=IDLE_S) as world:
        reader, writer = await asyncio.open_connection(*address(world.url))
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), WITHIN_S) == b""
        writer.close()


async def test_trickling_head_does_not_restart_the_limit() -> None:
    async with serving(ROUTES, idle_s=IDLE_S) as world:
        reader, writer = await asyncio.open_connection(*address(world.url))
        writer.write(b"POST /read HTTP/1.1\r\nX-Long: ")
        ended = asyncio.ensure_future(reader.read())
        async with asyncio.timeout(WITHIN_S):
            for _ in itertools.count():
                done, _ = await asyncio.wait((ended,), timeout=IDLE_S / 10)
                if done:
                    break
                writer.write(b"x")
        assert ended.exception() is not None or ended.result() == b""
        writer.close()


async def test_trickling_body_gives_400_and_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "BODY_S", 0.3)
    async with serving(ROUTES, idle_s=IDLE_S) as world:
        reader, writer = await asyncio.open_connection(*address(world.url))
        writer.write(b"POST /read HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{")
        async with asyncio.timeout(WITHIN_S):
            assert b" 400 " in await reader.readline()
            await reader.read()
        writer.close()


async def test_client_not_reading_its_stream_is_cut_off() -> None:
    script = [*[Piece([1], [0.0], 0)] * 1000, End("stop")]
    async with serving(ROUTES, script, unread_s=0.4, settings=Gateway(heartbeat_s=0.1)) as world:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(address(world.url))
            client.sendall(b"POST /make HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n")
            async with asyncio.timeout(WITHIN_S):
                while world.requests.left != ["made"]:
                    await asyncio.sleep(0.02)
        async with world.client.post(world.url + "/read", json={}) as response:
            assert response.status == 200, "other clients are served"


async def test_unread_answer_ends_its_connection_after_close() -> None:
    async with serving(ROUTES, unread_s=0.4) as world:
        for more in (b"", b"Connection: close\r\n"):
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect(address(world.url))
                client.sendall(b"GET /long HTTP/1.1\r\nHost: 127.0.0.1\r\n" + more + b"\r\n")
                async with asyncio.timeout(WITHIN_S):
                    while world.server.connections == 0:
                        await asyncio.sleep(0.02)
                    while world.server.connections:
                        await asyncio.sleep(0.02)


def test_slow_reader_is_kept_and_stalled_reader_cut_off() -> None:
    unread = Unread[str](10.0)
    assert unread.look({"slow": 100, "stuck": 100, "idle": 0}, 0.0) == []
    assert unread.look({"slow": 99, "stuck": 100, "idle": 0}, 9.0) == []
    assert unread.look({"slow": 99, "stuck": 100, "idle": 0}, 10.0) == ["stuck"]
    assert unread.look({"slow": 99, "idle": 5}, 18.9) == [], "ended connections are forgotten"
    assert unread.look({"slow": 99, "stuck": 100, "idle": 5}, 19.0) == ["slow"]
