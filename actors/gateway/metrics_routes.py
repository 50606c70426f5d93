"""`/metrics` of the gateway, in Prometheus' text format. Adapter."""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from gleaner.actors.gateway.calls import Call, Route
from gleaner.actors.gateway.fleet import FleetError


async def metrics(call: Call) -> web.StreamResponse:
    fleet = call.desk.fleet
    try:
        loads, versions = await fleet.loads(), await fleet.versions()
    except FleetError:  # the gateway's own figures are reported all the same
        body = call.desk.figures.text(None, None)
    else:
        body = call.desk.figures.text(loads, versions)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


ROUTES = (Route("GET", "/metrics", metrics, "Figures of the gateway, in Prometheus' text format."),)
