"""The gateway's HTTP server: keys, limits, errors with a reason, and streams that are never silent."""

import asyncio
import json
from collections.abc import AsyncGenerator

import msgspec
from aiohttp import web

from gleaner.actors.gateway.access import Access
from gleaner.actors.gateway.ask import BadAsk, Busy, End, NotReady, Piece
from gleaner.actors.gateway.calls import Call, Route
from gleaner.actors.gateway.calls import json as answer
from gleaner.actors.gateway.server import events
from gleaner.configs.schema import Gateway
from tests.actors.gateway.gateway_world import pieces, serving


class Body(msgspec.Struct, forbid_unknown_fields=True):
    stream: bool = False
    rid: str = ""
    count: int = 4


class Outcome(msgspec.Struct):
    tokens: list[int]
    status: str


async def make(call: Call) -> web.StreamResponse:
    body = await call.body(Body)
    ask = call.ask(call.id(body.rid), [1, 2], body.count)
    source = call.desk.requests.stream(ask)

    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            async for item in source:
                if isinstance(item, Piece):
                    yield f"data: {list(item.tokens)}\n\n".encode()
        finally:
            await source.aclose()

    if body.stream:
        return await events(call, chunks())
    outcome = Outcome([], "")
    try:
        async for item in source:
            if isinstance(item, End):
                outcome.status = item.status
            else:
                outcome.tokens += item.tokens
    finally:
        await source.aclose()
    return answer(outcome)


async def fails(call: Call) -> web.StreamResponse:
    raise RuntimeError("a secret of the inside")


async def lives(call: Call) -> web.StreamResponse:
    return web.Response()


ROUTES = (
    Route("POST", "/make", make, "Make tokens.", Body, answer=Outcome, kind="data"),
    Route("GET", "/fails", fails, "Fail."),
    Route("GET", "/lives", lives, "Live.", kind="open"),
)


async def test_error_is_json_with_reason_and_retryable_flag() -> None:
    async with serving(ROUTES) as world:

        async def error_of(
            method: str, path: str, **body: object
        ) -> tuple[int, dict[str, object], str | None]:
            async with world.client.request(method, world.url + path, json=body or None) as response:
                return response.status, (await response.json())["error"], response.headers.get("Retry-After")

        status, error, after = await error_of("POST", "/make", count="four")
        assert (status, error["param"], error["retryable"], after) == (400, "count", False, None)
        status, error, _ = await error_of("POST", "/make", colour="red")
        assert (status, error["param"]) == (400, "colour")
        status, error, _ = await error_of("POST", "/nowhere")
        assert (status, error["type"]) == (404, "NotFound")
        status, error, _ = await error_of("GET", "/make")
        assert (status, error["type"]) == (405, "MethodNotAllowed")
        status, error, after = await error_of("GET", "/fails")
        assert (status, error["type"], error["retryable"], after) == (500, "InternalError", True, "1")
        assert "secret" not in str(error)
        world.requests.script = [Busy("no room", 2.5)]
        status, error, after = await error_of("POST", "/make", count=4)
        assert (status, error["type"], error["message"], after) == (503, "EngineUnavailable", "no room", "3")
        world.requests.script = [NotReady(7, True, 5, True)]
        async with world.client.post(world.url + "/make", json={}) as response:
            body = await response.json()
        assert response.status == 409
        assert (body["type"], body["target_version"], body["applied"]) == ("WeightVersionNotReady", 7, 5)
        assert body["error"]["type"] == "WeightVersionNotReady"
        assert body["error"]["retryable"] is True


async def test_oversized_body_gives_413_and_bad_json_400() -> None:
    async with serving(ROUTES, settings=Gateway(max_body_bytes=1024)) as world:
        async with world.client.post(world.url + "/make", data=b" " * 1500) as response:
            assert response.status == 413
            error = (await response.json())["error"]
            assert (error["type"], "1024" in error["message"]) == ("BodyTooLarge", True)
        async with world.client.post(world.url + "/make", data=b"{") as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == "body"
    assert not world.requests.asked


async def test_only_liveness_is_open_without_the_key() -> None:
    async with serving(ROUTES, pieces([1], []), access=Access(keys=["alpha", "beta"])) as world:

        async def status(path: str, **headers: str) -> int:
            method = "GET" if path == "/lives" else "POST"
            async with world.client.request(method, world.url + path, headers=headers, json={}) as response:
                return response.status

        assert await status("/lives") == 200
        assert await status("/make") == 401
        assert await status("/nowhere") == 401
        assert await status("/make", Authorization="Bearer alph") == 401
        assert await status("/make", Authorization="Basic alpha") == 401
        assert not world.requests.asked
        assert await status("/make", Authorization="Bearer beta") == 200
        assert await status("/make", **{"X-API-Key": "alpha"}) == 200


async def test_error_is_a_status_first_and_an_event_later() -> None:
    async with serving(ROUTES, [BadAsk("no such token", "input_ids")]) as world:
        async with world.client.post(world.url + "/make", json={"stream": True}) as response:
            assert response.status == 400
        world.requests.script = [Piece([1], [0.0], 0), Busy("gone")]
        async with world.client.post(world.url + "/make", json={"stream": True}) as response:
            assert response.status == 200
            lines = [line for line in (await response.text()).split("\n\n") if line]
    assert lines[0] == "data: [1]"
    assert json.loads(lines[1].removeprefix("data: "))["error"]["retryable"] is True
    assert lines[2:] == ["data: [DONE]"]


async def test_silent_stream_sends_alive_comments() -> None:
    script = [0.35, Piece([1], [0.0], 0), 0.35, Piece([2], [0.0], 0), End("stop")]
    async with serving(ROUTES, script, settings=Gateway(heartbeat_s=0.1)) as world:
        async with world.client.post(world.url + "/make", json={"stream": True}) as response:
            lines = [line for line in (await response.text()).split("\n\n") if line]
    first, second = lines.index("data: [1]"), lines.index("data: [2]")
    assert first >= 1
    assert second - first >= 2
    assert set(lines) == {": alive", "data: [1]", "data: [2]", "data: [DONE]"}


async def test_leaving_client_leaves_its_request() -> None:
    async with serving(ROUTES, [Piece([1], [0.0], 0), 600.0], settings=Gateway(heartbeat_s=0.1)) as world:
        async with world.client.post(world.url + "/make", json={"stream": True, "rid": "s"}) as response:
            await response.content.readuntil(b"\n\n")
            response.close()
        asking = asyncio.create_task(world.client.post(world.url + "/make", json={"rid": "n"}))
        async with asyncio.timeout(60):
            while [asked.id for asked in world.requests.asked] != ["s", "n"]:
                await asyncio.sleep(0.02)
        asking.cancel()
        async with asyncio.timeout(60):
            while sorted(world.requests.left) != ["n", "s"]:
                await asyncio.sleep(0.02)


async def test_request_name_comes_from_body_or_header() -> None:
    async with serving(ROUTES, pieces([1], [])) as world:
        for headers, body in (({}, {"rid": "a"}), ({"X-Request-ID": "a"}, {}), ({}, {}), ({}, {})):
            async with world.client.post(world.url + "/make", json=body, headers=headers) as response:
                assert response.status == 200
        async with world.client.post(world.url + "/make", json={"rid": "a/b"}) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (400, "rid")
        headers = {"X-Session-ID": "s1", "X-Request-Deadline-S": "5"}
        async with world.client.post(world.url + "/make", json={}, headers=headers) as response:
            assert response.status == 200
    first, second, third, fourth, last = world.requests.asked
    assert first == second
    assert (first.id, first.named, third.named) == ("a", True, False)
    assert third.id != fourth.id
    assert third.seed != fourth.seed
    assert (last.session, last.deadline_s) == ("s1", 5.0)
