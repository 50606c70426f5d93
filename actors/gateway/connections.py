"""UnreadWatch: ends connections that their clients have left half open.

A client that sends no request, or a part of its head: `IDLE_S`, by aiohttp's own timer, which does not
restart with every byte. One that sends a part of a body: `calls.BODY_S`, then `LINGER_S`. One that does not
read its answer: `UNREAD_S`, here, since neither aiohttp nor TCP has such a limit. A peer that acknowledges
and reads nothing would keep its connection, its request and its place among the calls. Adapter: aiohttp's
server.
"""

import asyncio
import logging
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from aiohttp import web

IDLE_S = 75.0
"""Seconds for the whole head of the first or the next request: above the idle limits of usual proxies (60
s)."""
LINGER_S = 5.0
"""Seconds for the rest of a body after an answer that did not wait for it."""
UNREAD_S = 120.0
"""Seconds without one byte sent, while some wait."""
LOOKS = 8
"""Checks within `UNREAD_S`."""

Key = TypeVar("Key", bound=Hashable)

log = logging.getLogger("rollout/gateway")


class Unread(Generic[Key]):
    """Connections that have sent nothing for `limit_s` although they had something to send. Pure."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: dict[Key, tuple[int, float]] = {}

    def look(self, waiting: Mapping[Key, int], now_s: float) -> list[Key]:
        """Connections to end. waiting: bytes of every open connection that are not sent yet."""
        before, self._since = self._since, {}
        for key, unsent in waiting.items():
            known = before.get(key)
            if unsent:
                self._since[key] = known if known is not None and known[0] == unsent else (unsent, now_s)
        return [key for key, (_, since_s) in self._since.items() if now_s - since_s >= self._limit_s]


class UnreadWatch:
    """Checks the connections of a server, from `start` to `close`."""

    def __init__(self, runner: web.AppRunner, limit_s: float = UNREAD_S) -> None:
        self._runner, self._limit_s = runner, limit_s
        self._transports: dict[web.RequestHandler, asyncio.Transport] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def close(self) -> None:
        """Stop checking."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        unread = Unread[web.RequestHandler](self._limit_s)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._limit_s / LOOKS)
            server = self._runner.server
            open_ = [] if server is None else server.connections
            # A handler that closes forgets its transport, which stays open until all is sent.
            known = {one: one.transport or self._transports.get(one) for one in open_}
            self._transports = {one: found for one, found in known.items() if found is not None}
            waiting = {one: found.get_write_buffer_size() for one, found in self._transports.items()}
            for handler in unread.look(waiting, loop.time()):
                log.info("connection closed: its client read nothing of its answer for %g s", self._limit_s)
                self._transports[handler].abort()
