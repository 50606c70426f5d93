"""What every call passes before its route: it is counted, and asked for the methods of a path it is answered.

Adapter: knows aiohttp.
"""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from actors.rollout.gateway.figures import Figures

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

GONE = 499
"""The status, in figures alone, of a call whose client went before its answer was whole."""


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
    """OPTIONS says what a path takes, without a key; a method that it does not take is told which ones it
    does."""
    wrong = request.match_info.http_exception
    if not isinstance(wrong, web.HTTPMethodNotAllowed):
        return await handler(request)
    allow = {"Allow": ", ".join(sorted({*wrong.allowed_methods, "OPTIONS"}))}
    if request.method == "OPTIONS":
        return web.Response(status=204, headers=allow)
    response = await handler(request)
    response.headers.update(allow)
    return response
