"""Clouds: each is asked as documented; any other behaviour of a metadata service is a failed look."""

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web
from metadata_servers import AwsServer, AzureServer, GcpServer, Server

from gleaner.nodeagent.notices.aws import Aws
from gleaner.nodeagent.notices.azure import Azure
from gleaner.nodeagent.notices.cloud import Channel, Cloud, PollFailed
from gleaner.nodeagent.notices.cloud_detection import cloud_finder
from gleaner.nodeagent.notices.gcp import Gcp
from gleaner.nodeagent.notices.metadata import MAX_BYTES, Metadata
from gleaner.nodeagent.notices.policy import NOTHING, Finding

ACTION = "/latest/meta-data/spot/instance-action"
EVENTS = "/metadata/scheduledevents"
PREEMPTED = "/computeMetadata/v1/instance/preempted"


def channel(cloud: Cloud, name: str) -> Channel:
    return next(each for each in cloud.channels if each.name == name)


async def look(cloud: Cloud, name: str, *, at_once: bool = False) -> Finding:
    async with asyncio.timeout(60.0):
        return await channel(cloud, name).look(at_once)


# -- AWS --


async def test_aws_interruption_uses_its_clock_and_404_is_none() -> None:
    async with AwsServer() as server:
        server.stop_clock()
        server.clock_ahead_s = -7200.0  # this host's clock is wrong by two hours
        aws = Aws(Metadata(server.url))
        assert await look(aws, "instance-action") == NOTHING
        server.interrupt("terminate", 90.0)
        found = await look(aws, "instance-action")
        assert found.kind == "notice"
        assert found.why.startswith("terminate at 20")
        assert 85.0 < found.left_s < 95.0
        server.interrupt("hibernate", 90.0)
        assert (await look(aws, "instance-action")).left_s == 0.0, "hibernation begins with its notice"
        server.interrupt("terminate", 1e6)
        assert (await look(aws, "instance-action")).left_s == 120.0, "no notice of AWS is longer"
        server.take_back()
        assert await look(aws, "instance-action") == NOTHING
        await aws.close()


async def test_aws_token_is_shared_and_renewed() -> None:
    async with AwsServer() as server:
        aws = Aws(Metadata(server.url))
        await asyncio.gather(*(look(aws, name) for name in ("instance-action", "rebalance") * 3))
        assert server.asked["PUT /latest/api/token"] == 1
        server.tokens = {"another"}  # the service was restarted: 401
        assert await look(aws, "rebalance") == NOTHING
        assert server.asked["PUT /latest/api/token"] == 2
        server.ttl_s = 0
        server.tokens = {"another"}
        await look(aws, "rebalance")
        await look(aws, "rebalance")
        assert server.asked["PUT /latest/api/token"] == 4, "an expired token is renewed before it is refused"
        await aws.close()


async def test_aws_rebalance_recommendation_is_a_hint() -> None:
    async with AwsServer() as server:
        aws = Aws(Metadata(server.url))
        server.rebalance = True
        found = await look(aws, "rebalance")
        assert (found.kind, found.id) == ("hint", "2026-10-27T08:22:00Z")
        await aws.close()


# -- GCP --


async def test_gcp_change_is_awaited_and_reported_at_once() -> None:
    async with GcpServer() as server:
        gcp = Gcp(Metadata(server.url), wait_s=30.0)
        assert await look(gcp, "preempted") == NOTHING
        waiting = asyncio.create_task(look(gcp, "preempted"))
        while not server.waits:
            await asyncio.sleep(0.01)
        assert not waiting.done()
        await server.becomes("preempted", "TRUE")
        found = await waiting
        assert (found.kind, found.left_s) == ("notice", 30.0)
        await gcp.close()


async def test_gcp_maintenance_is_a_hint_or_a_notice() -> None:
    async with GcpServer() as server:
        gcp = Gcp(Metadata(server.url), wait_s=30.0)
        kinds = []
        for value in ("NONE", "MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE", "NONE"):
            await server.becomes("maintenance-event", value)
            kinds.append((await look(gcp, "maintenance-event", at_once=True)).kind)
        assert kinds == ["none", "hint", "notice", "none"]
        assert server.waits == 0, "a look at once does not wait"
        await gcp.close()


async def test_gcp_answers_the_same_after_a_wait_without_change() -> None:
    async with GcpServer() as server:
        gcp = Gcp(Metadata(server.url), wait_s=0.0)
        assert await look(gcp, "preempted") == NOTHING
        assert await look(gcp, "preempted") == NOTHING
        assert server.waits == 1
        await gcp.close()


async def test_server_without_the_google_header_is_not_google() -> None:
    async with GcpServer() as server:
        server.instead[PREEMPTED] = b"TRUE"  # a captive portal, a proxy
        gcp = Gcp(Metadata(server.url))
        with pytest.raises(PollFailed, match="is not the metadata server's"):
            await look(gcp, "preempted")
        await gcp.close()


# -- Azure --


async def test_azure_reports_the_first_event_of_this_vm() -> None:
    async with AzureServer() as server:
        server.stop_clock()
        azure = Azure(Metadata(server.url))
        assert await look(azure, "scheduled-events") == NOTHING
        server.schedule("Preempt", 30.0, id="other", resources=("spot_4",))
        server.schedule("Freeze", 30.0, id="freeze")
        assert await look(azure, "scheduled-events") == NOTHING
        server.schedule("Reboot", 900.0, id="later")
        server.schedule("Preempt", 30.0, id="mine", resources=("SPOT_3",))
        found = await look(azure, "scheduled-events")
        assert (found.kind, found.why, found.id) == ("notice", "Preempt", "mine")
        assert 27.0 < found.left_s < 31.0
        assert found.acknowledges
        await azure.close()


async def test_azure_started_event_is_now_and_cancelled_is_none() -> None:
    async with AzureServer() as server:
        azure = Azure(Metadata(server.url))
        event = server.schedule("Preempt", 30.0)
        event |= {"EventStatus": "Started", "NotBefore": ""}
        assert (await look(azure, "scheduled-events")).left_s == 0.0
        event["EventStatus"] = "Canceled"
        assert await look(azure, "scheduled-events") == NOTHING
        event["EventStatus"] = "Scheduled"
        assert (await look(azure, "scheduled-events")).kind == "notice"
        server.events.clear()
        assert await look(azure, "scheduled-events") == NOTHING
        await azure.close()


async def test_azure_gets_acknowledgements_for_this_vm_only() -> None:
    async with AzureServer() as server:
        azure = Azure(Metadata(server.url))
        server.schedule("Preempt", 30.0, id="shared", resources=("spot_3", "spot_4"))
        assert not (await look(azure, "scheduled-events")).acknowledges
        await azure.acknowledge("e-7")
        assert server.started == ["e-7"]
        server.instead[EVENTS] = web.Response(status=500)
        with pytest.raises(PollFailed, match="StartRequests: status 500"):
            await azure.acknowledge("e-7")
        await azure.close()


# -- detection --


@pytest.mark.parametrize(("server", "name"), [(AwsServer, "aws"), (GcpServer, "gcp"), (AzureServer, "azure")])
async def test_cloud_is_found_by_its_own_answer(server: Callable[[], Server], name: str) -> None:
    async with server() as service:
        find = cloud_finder("auto", service.url)
        assert find is not None
        cloud = await find()
        assert cloud is not None
        assert cloud.name == name
        await cloud.close()


async def test_no_answer_or_a_stranger_means_no_cloud() -> None:
    class Stranger(Server):
        def routes(self) -> list[web.RouteDef]:
            async def hello(request: web.Request) -> web.Response:
                return web.Response(text="<html>log in to this network</html>")

            return [web.route("*", "/{anything:.*}", hello)]

    async with Stranger() as server:
        find = cloud_finder("auto", server.url)
        assert find is not None
        assert await find() is None
    find = cloud_finder("auto", server.url)  # nothing listens there any more
    assert find is not None
    assert await find() is None
    assert cloud_finder("none") is None


# -- services that misbehave --

BROKEN: dict[str, web.StreamResponse | bytes] = {
    "500": web.Response(status=500),
    "503": web.Response(status=503, headers={"Retry-After": "1"}),
    "403": web.Response(status=403),
    "redirect": web.Response(status=302, headers={"Location": "http://169.254.169.254/elsewhere"}),
    "garbage": b"\xff\xfe\x00garbage",
    "empty": b"",
    "html": b"<html><body>log in</body></html>",
    "other json": b'{"action": ["terminate"], "time": 5, "Events": 1}',
    "a list": b"[]",
    "no time": b'{"action": "terminate", "time": "soon"}',
    "huge": b"x" * (MAX_BYTES + 1),
    "deep json": b"[" * 100_000,
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize(
    ("kind", "server", "name", "path"),
    [
        (Aws, AwsServer, "instance-action", ACTION),
        (Gcp, GcpServer, "preempted", PREEMPTED),
        (Azure, AzureServer, "scheduled-events", EVENTS),
    ],
)
async def test_invalid_answer_is_a_failed_look_and_next_works(
    kind: Callable[[Metadata], Cloud], server: Callable[[], Server], name: str, path: str, how: str
) -> None:
    async with server() as service:
        cloud = kind(Metadata(service.url))
        broken = BROKEN[how]
        service.instead[path] = (
            web.Response(status=broken.status, headers=broken.headers)
            if isinstance(broken, web.Response)
            else broken
        )
        with pytest.raises(PollFailed):
            await look(cloud, name)
        del service.instead[path]
        assert await look(cloud, name) == NOTHING
        await cloud.close()


async def test_silent_service_costs_only_its_deadline() -> None:
    async with AwsServer() as server:
        metadata = Metadata(server.url)
        server.slow_s["/latest/api/token"] = 30.0
        with pytest.raises(PollFailed, match="no answer within 0.2 s"):
            await Aws(metadata).token(0.2)
        await metadata.close()


async def test_trickling_answer_is_cut_at_deadline_or_size() -> None:
    class Trickling(Server):
        def routes(self) -> list[web.RouteDef]:
            async def drip(request: web.Request) -> web.StreamResponse:
                response = web.StreamResponse()
                await response.prepare(request)
                size, pause_s = (65536, 0.0) if request.path == "/flood" else (1, 0.02)
                while True:
                    await response.write(b"x" * size)
                    await asyncio.sleep(pause_s)

            return [web.get("/{anything}", drip)]

    async with Trickling() as server:
        metadata = Metadata(server.url)
        with pytest.raises(PollFailed, match=r"no answer within 0\.3 s"):
            await metadata.ask("GET", "/drip", headers={}, within_s=0.3)
        with pytest.raises(PollFailed, match="more than"):
            await metadata.ask("GET", "/flood", headers={}, within_s=60.0)
        await metadata.close()


async def test_port_without_http_is_a_failed_look() -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(rude, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        metadata = Metadata(f"http://127.0.0.1:{port}")
        with pytest.raises(PollFailed):
            await metadata.ask("GET", "/", headers={}, within_s=60.0)
        await metadata.close()
