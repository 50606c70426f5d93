"""`InFlightRequests`: requests that stay in a server while its weights change.

The host has every token that the server made of them under the old weights. Owns the order of the steps: the
server pauses and reports the number of tokens that it has made of each request. Then streams are read until
they have delivered so many. Later tokens of a stream are of the newer weights, however long a token was on
its way; no clock is used. Requests whose tokens do not arrive in time are not kept. Loads nothing, and ends
no request.

Bounds: `HOLD_S` for the server, `SETTLE_S` for the streams; beyond either, requests are requeued.
"""

import asyncio
import logging
from collections.abc import Iterable

from gleaner.actors.engine.servers.port import ServerDied, ServerRefused, ServerWire
from gleaner.actors.engine.servers.row_queue import Stream

HOLD_S = 10.0  # for the current step, and the token counts
SETTLE_S = 5.0  # for tokens that are made already
LOOK_S = 0.005  # between two looks at the streams

log = logging.getLogger("nodeagent.engine")


class InFlightRequests:
    """Kept requests of one server."""

    def __init__(self, wire: ServerWire) -> None:
        self._wire = wire
        self.on = False
        """The server is paused, and `end` is due."""

    async def begin(self, streams: Iterable[Stream]) -> set[int]:
        """The tickets of these that may go on under other weights, because all their tokens have been read.
        Without any the server is not paused. Raises `ServerDied`."""
        # The experts of tokens arrive with the end of a stream, for one attempt.
        asked = {stream.ask.rid: stream for stream in streams if stream.experts is None}
        if not asked:
            return set()
        self.on = True
        try:
            async with asyncio.timeout(HOLD_S):
                made = await self._wire.hold(list(asked))
        except (ServerRefused, TimeoutError) as problem:
            log.warning("requests requeued, the server does not hold them: %d: %r", len(asked), problem)
            made = {}
        held = [(asked[rid], count) for rid, count in made.items() if rid in asked]
        await self._settle(held)
        kept = {stream.ticket for stream, count in held if stream.came == count}
        if not kept:
            await self.end()
        return kept

    async def _settle(self, held: list[tuple[Stream, int]]) -> None:
        """Read until each stream has delivered its tokens, or the time is over."""
        try:
            async with asyncio.timeout(SETTLE_S):
                while any(stream.came < count for stream, count in held):  # noqa: ASYNC110 - others read them
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            late = sum(stream.came < count for stream, count in held)
            log.warning("requests requeued, tokens are missing: %d", late)
        for stream, count in held:
            if stream.came > count:
                raise ServerDied(
                    f"the server reports {count} tokens of {stream.ask.rid}, and {stream.came} arrived"
                )

    async def end(self) -> None:
        """Resume the server; does nothing if it runs. Raises `ServerDied`."""
        if not self.on:
            return
        try:
            await self._wire.go_on()
        except ServerRefused as refused:
            raise ServerDied(f"the server does not go on: {refused}") from refused
        self.on = False
