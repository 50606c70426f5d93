"""Redirects of a server: they are not followed to another server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gleaner.actors.engine.servers.http import HttpWire
from gleaner.actors.engine.servers.port import ServerRefused
from gleaner.actors.engine.servers.server_facts import NoServer, look


class Any(msgspec.Struct):
    pass


@asynccontextmanager
async def pointing(status: int) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that redirects everything to a second one, and the requests that the second one received."""
    got: list[str] = []

    async def take(request: web.Request) -> web.Response:
        got.append(f"{request.method} {request.path} {request.headers.get('Authorization')}")
        return web.json_response({"model_path": "/m"})

    behind = web.Application()
    behind.router.add_route("*", "/{path:.*}", take)
    async with TestServer(behind) as second:

        async def point(request: web.Request) -> web.Response:
            return web.Response(status=status, headers={"Location": str(second.make_url(request.path))})

        front = web.Application()
        front.router.add_route("*", "/{path:.*}", point)
        async with TestServer(front) as first:
            yield str(first.make_url("")).rstrip("/"), got


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_engine_calls_follow_no_redirect(status: int) -> None:
    async with pointing(status) as (url, got):
        wire = HttpWire(url, "secret")
        for work in (wire.get("/server_info", Any), wire.post("/generate", Any(), Any), wire.look("/health")):
            with pytest.raises(ServerRefused, match=f"HTTP {status}") as refused:
                await work
            assert not refused.value.never, "another engine may accept the request"
        with pytest.raises(ServerRefused, match=f"HTTP {status}"):
            async for _ in wire.events("/generate", Any()):
                pass
        await wire.close()
        with pytest.raises(NoServer, match=str(status)):
            await look(url, "secret")
    assert got == []
