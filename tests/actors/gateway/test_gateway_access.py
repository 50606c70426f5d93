"""Access to the gateway: the control key, hosts and origins without keys, headers with invalid bytes."""

import asyncio
import json

import pytest
from aiohttp import web

from gleaner.actors.gateway.access import Access
from gleaner.actors.gateway.calls import Call, Route
from gleaner.actors.gateway.calls import json as answer
from gleaner.actors.gateway.control.routes import ROUTES
from gleaner.actors.gateway.control.wire import Life
from gleaner.configs.schema import Gateway
from tests.actors.gateway.gateway_world import World, serving

CHANGES = {
    ("POST", "/workers"),
    ("POST", "/add_worker"),
    ("DELETE", "/workers/{worker:.+}"),
    ("POST", "/remove_worker"),
    ("POST", "/abort_request"),
    ("POST", "/pause_generation"),
    ("POST", "/pause"),
    ("POST", "/areal_pause_generation"),
    ("POST", "/continue_generation"),
    ("POST", "/resume"),
    ("POST", "/areal_continue_generation"),
    ("GET", "/flush_cache"),
    ("POST", "/flush_cache"),
    ("POST", "/update_weights_from_disk"),
    ("POST", "/areal_update_weights"),
    ("POST", "/pull_weights"),
    ("POST", "/update_weights"),
    ("POST", "/fetch_weights"),
}


async def make(call: Call) -> web.StreamResponse:
    call.session()
    call.id()
    return answer(Life())


MAKE = Route("POST", "/make", make, "Make tokens.", answer=Life, kind="data")


async def raw(world: World, request: bytes) -> tuple[int, dict[str, object]]:
    """Status and JSON of the answer to raw bytes that no client library would send."""
    host, _, port = world.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    async with asyncio.timeout(60):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
    writer.close()
    return int(head.split()[1]), json.loads(body)


def test_state_changing_routes_are_marked() -> None:
    marked = {(route.method, route.path) for route in ROUTES if route.kind == "change"}
    assert marked == CHANGES


async def test_data_key_opens_no_state_changing_route() -> None:
    access = Access(keys=("data",), control_keys=("control",))
    async with serving((*ROUTES, MAKE), access=access) as world:

        async def status(method: str, path: str, key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            async with world.client.request(method, world.url + path, headers=headers, json={}) as response:
                if response.status == 403:
                    assert "control key" in (await response.json())["error"]["message"]
                return response.status

        for method, path in sorted(CHANGES):
            path = path.replace("{worker:.+}", "w1")
            assert await status(method, path, "data") == 403, path
            assert await status(method, path, "other") == 401, path
            assert await status(method, path, "") == 401, path
        assert (world.fleet.paused, world.fleet.updates, world.fleet.known) == ([], [], {})
        assert await status("POST", "/pause", "control") == 200
        assert world.fleet.paused == ["abort"]
        assert await status("GET", "/workers", "data") == 200, "a read needs no control key"
        assert await status("POST", "/make", "data") == 200
        assert await status("POST", "/make", "control") == 200, "a control key opens all calls"


async def test_single_kind_of_key_opens_both_kinds_of_routes() -> None:
    async with serving((*ROUTES, MAKE), access=Access(keys=("data",))) as world:
        headers = {"Authorization": "Bearer data"}
        async with world.client.post(world.url + "/pause", headers=headers, json={}) as response:
            assert response.status == 200
    async with serving((*ROUTES, MAKE), access=Access(control_keys=("control",))) as world:
        async with world.client.post(world.url + "/make", json={}) as response:
            assert response.status == 200, "without data keys the data routes are open"
        async with world.client.post(world.url + "/pause", json={}) as response:
            assert response.status == 401


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:{port}", True),
        ("[::1]:{port}", True),
        ("10.1.2.3", True),
        ("localhost:{port}", True),
        ("LOCALHOST", True),
        ("head-0.cluster:{port}", True),
        ("evil.example:{port}", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
async def test_foreign_host_name_is_refused_without_keys(host: str, allowed: bool) -> None:
    access = Access(hosts=("head-0.cluster",))
    async with serving((*ROUTES, MAKE), access=access) as world:
        name = host.format(port=world.url.rpartition(":")[2])
        for method, path in (("POST", "/make"), ("POST", "/pause"), ("GET", "/workers")):
            request = f"{method} {path} HTTP/1.1\r\nHost: {name}\r\nContent-Length: 0\r\n\r\n"
            status, body = await raw(world, request.encode())
            assert status == (200 if allowed else 403), (path, body)
            if not allowed:
                assert "gateway.hosts" in body["error"]["message"]  # type: ignore[index]
    assert world.fleet.paused == (["abort"] if allowed else [])


async def test_foreign_origin_changes_nothing_without_keys() -> None:
    async with serving((*ROUTES, MAKE)) as world:

        async def status(origin: str, path: str) -> int:
            headers = {"Origin": origin, "Content-Type": "text/plain"}  # a form of a page: no preflight
            async with world.client.post(world.url + path, headers=headers, data=b"{}") as response:
                assert "Access-Control-Allow-Origin" not in response.headers
                return response.status

        for origin in ("http://evil.example", "null", "http://127.0.0.1:1", world.url + "0"):
            assert await status(origin, "/make") == 403, origin
            assert await status(origin, "/pause") == 403, origin
        assert world.fleet.paused == []
        assert await status(world.url, "/pause") == 200
        async with world.client.get(world.url + "/liveness", headers={"Origin": "http://evil"}) as response:
            assert response.status == 200, "probes need no key"


async def test_names_and_origins_are_ignored_with_keys() -> None:
    async with serving((*ROUTES, MAKE), access=Access(keys=("data",))) as world:
        headers = {"Authorization": "Bearer data", "Origin": "http://ui.example", "Host": "gateway.example"}
        async with world.client.post(world.url + "/make", headers=headers, json={}) as response:
            assert response.status == 200


@pytest.mark.parametrize("header", ["Authorization", "X-API-Key", "X-Request-ID", "X-Session-ID", "X-Other"])
@pytest.mark.parametrize("keys", [(), ("data",)])
async def test_header_of_invalid_bytes_gives_400_with_its_name(
    header: str, keys: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving((*ROUTES, MAKE), access=Access(keys=keys)) as world:
        request = (
            b"POST /make HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n%s: Bearer \xff\xfe\r\n\r\n"
        )
        status, body = await raw(world, request % header.encode())
    assert status == 400
    assert body["error"]["param"] == header  # type: ignore[index]
    assert not [record for record in caplog.records if record.exc_info]


async def test_key_with_non_ascii_letters_is_compared() -> None:
    async with serving((*ROUTES, MAKE), access=Access(keys=("ключ",))) as world:
        for key, expected in (("ключ", 200), ("замок", 401)):
            request = (
                f"POST /make HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nAuthorization: Bearer {key}\r\n\r\n"
            )
            assert (await raw(world, request.encode()))[0] == expected


async def test_call_limit_no_longer_counts_refused_calls() -> None:
    async with serving(
        (*ROUTES, MAKE), access=Access(keys=("data",)), settings=Gateway(max_concurrent=1)
    ) as world:
        for _ in range(10):
            async with world.client.post(world.url + "/make", json={}) as response:
                assert response.status == 401
        headers = {"Authorization": "Bearer data"}
        async with world.client.post(world.url + "/make", headers=headers, json={}) as response:
            assert response.status == 200
