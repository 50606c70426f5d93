"""Middlewares of every call: call counts, and the methods of a path.

Adapter: knows aiohttp.
"""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from gleaner.actors.gateway.metrics import Figures

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

GONE = 499
"""The status, in figures alone, of a call whose client disconnected before its answer was whole."""


def counting(figures: Figures) -> Middleware:
    """Counts calls in `figures`."""

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        now = asyncio.get_running_loop().time
        began_s, status = now(), GONE
        figures.opened()
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            resource = request.match_info.route.resource
            path = "" if resource is None else resource.canonical
            method = request.method if path else ""
            figures.closed(method, path, status, now() - began_s)

    return count


@web.middleware
async def methods(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer OPTIONS with the methods of a path, without a key; name them also in the refusal of any other
    method."""
    wrong = request.match_info.http_exception
    if not isinstance(wrong, web.HTTPMethodNotAllowed):
        return await handler(request)
    allow = {"Allow": ", ".join(sorted({*wrong.allowed_methods, "OPTIONS"}))}
    if request.method == "OPTIONS":
        return web.Response(status=204, headers=allow)
    response = await handler(request)
    response.headers.update(allow)
    return response
