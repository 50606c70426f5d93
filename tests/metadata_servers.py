"""Metadata services of three clouds on this machine, after their documentation.

Each refuses what the real one refuses: a request without its header or its token gets nothing.
"""

import asyncio
import json
import time
from collections import Counter
from email.utils import formatdate
from types import TracebackType
from typing import Self

from aiohttp import web


class Server:
    """An aiohttp application at a free port of this machine. `instead`: the answers that replace others, by
    path."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.instead: dict[str, web.StreamResponse | bytes] = {}
        self.slow_s: dict[str, float] = {}
        self.clock_ahead_s = 0.0
        self._stopped_s: float | None = None
        self.url = ""
        self._runner: web.AppRunner | None = None

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._around])
        app.add_routes(self.routes())
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def now_s(self) -> float:
        return (time.time() if self._stopped_s is None else self._stopped_s) + self.clock_ahead_s

    def stop_clock(self) -> None:
        """Stop its clock, so that the duration of the test has no effect."""
        self._stopped_s = time.time()

    @web.middleware
    async def _around(self, request: web.Request, handler: object) -> web.StreamResponse:
        self.asked[f"{request.method} {request.path}"] += 1
        await asyncio.sleep(self.slow_s.get(request.path, 0.0))
        instead = self.instead.get(request.path)
        if isinstance(instead, bytes):
            response: web.StreamResponse = web.Response(body=instead)
        elif instead is not None:
            response = instead
        else:
            response = await handler(request)  # type: ignore[operator]
        response.headers["Date"] = formatdate(self.now_s(), usegmt=True)
        return response


class AwsServer(Server):
    """IMDSv2. `action`: (action, seconds from now), `rebalance`: whether it is recommended."""

    def __init__(self) -> None:
        super().__init__()
        self.action: tuple[str, float] | None = None
        self.rebalance = False
        self.tokens: set[str] = set()
        self.ttl_s = 21_600
        self._time = ""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.put("/latest/api/token", self._token),
            web.get("/latest/meta-data/spot/instance-action", self._action),
            web.get("/latest/meta-data/events/recommendations/rebalance", self._rebalance),
        ]

    def interrupt(self, action: str = "terminate", in_s: float = 120.0) -> None:
        self.action = (action, in_s)
        self._time = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.now_s() + in_s))

    def take_back(self) -> None:
        self.action = None

    async def _token(self, request: web.Request) -> web.Response:
        ttl = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if not ttl.isdecimal() or not 1 <= int(ttl) <= 21_600:
            return web.Response(status=400)
        token = f"AQAEA{len(self.tokens)}=="
        self.tokens = {token}
        return web.Response(text=token, headers={"X-aws-ec2-metadata-token-ttl-seconds": str(self.ttl_s)})

    def _admitted(self, request: web.Request) -> bool:
        return request.headers.get("X-aws-ec2-metadata-token") in self.tokens

    async def _action(self, request: web.Request) -> web.Response:
        if not self._admitted(request):
            return web.Response(status=401)
        if self.action is None:
            return web.Response(status=404)
        return web.json_response({"action": self.action[0], "time": self._time}, content_type="text/plain")

    async def _rebalance(self, request: web.Request) -> web.Response:
        if not self._admitted(request):
            return web.Response(status=401)
        if not self.rebalance:
            return web.Response(status=404)
        return web.json_response({"noticeTime": "2026-10-27T08:22:00Z"})


class GcpServer(Server):
    """The metadata server of Compute Engine: values with etags, requests that wait for a change."""

    def __init__(self) -> None:
        super().__init__()
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE", "id": "4711"}
        self.waits = 0
        self._changed = asyncio.Condition()

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/computeMetadata/v1/instance/{key}", self._value)]

    async def becomes(self, key: str, value: str) -> None:
        async with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def _etag(self, key: str) -> str:
        return f"{abs(hash((key, self.values[key]))):016x}"

    async def _value(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        if request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403)
        if key not in self.values:
            return web.Response(status=404)
        if request.query.get("wait_for_change") == "true" and "last_etag" in request.query:
            self.waits += 1
            limit_s = float(request.query.get("timeout_sec", "3600"))
            async with self._changed:
                try:
                    async with asyncio.timeout(limit_s):
                        await self._changed.wait_for(lambda: self._etag(key) != request.query["last_etag"])
                except TimeoutError:
                    pass
        return web.Response(
            text=self.values[key], headers={"Metadata-Flavor": "Google", "ETag": self._etag(key)}
        )


class AzureServer(Server):
    """The Azure metadata service: the VM's name, Scheduled Events, StartRequests."""

    def __init__(self, vm: str = "spot_3") -> None:
        super().__init__()
        self.vm = vm
        self.events: list[dict[str, object]] = []
        self.started: list[str] = []

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/metadata/instance/compute/name", self._name),
            web.get("/metadata/scheduledevents", self._events),
            web.post("/metadata/scheduledevents", self._start),
        ]

    def schedule(
        self, type_: str = "Preempt", in_s: float = 30.0, *, id: str = "e-1", resources: tuple[str, ...] = ()
    ) -> dict[str, object]:
        event: dict[str, object] = {
            "EventId": id,
            "EventType": type_,
            "ResourceType": "VirtualMachine",
            "Resources": list(resources or (self.vm,)),
            "EventStatus": "Scheduled",
            "NotBefore": formatdate(self.now_s() + in_s, usegmt=True),
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
        self.events.append(event)
        return event

    def _refuses(self, request: web.Request, version: str) -> bool:
        return request.headers.get("Metadata") != "true" or request.query.get("api-version") != version

    async def _name(self, request: web.Request) -> web.Response:
        if self._refuses(request, "2021-02-01") or request.query.get("format") != "text":
            return web.Response(status=400)
        return web.Response(text=self.vm)

    async def _events(self, request: web.Request) -> web.Response:
        if self._refuses(request, "2020-07-01"):
            return web.Response(status=400)
        return web.json_response({"DocumentIncarnation": len(self.events), "Events": self.events})

    async def _start(self, request: web.Request) -> web.Response:
        if self._refuses(request, "2020-07-01"):
            return web.Response(status=400)
        asked = json.loads(await request.text())
        self.started += [one["EventId"] for one in asked["StartRequests"]]
        return web.Response()
