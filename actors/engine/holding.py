"""Requests that stay in a server while its weights change: what it made of them before is here, to the token.

Owns the order of that: the server stands still and says how many tokens it has made of each request; then
streams are read until they have brought so many. All that a stream brings later is of the newer weights,
however long a token was on its way; no clock is looked at. What does not come in time is not kept. Loads
nothing, and ends no request.

Bounds: `HOLD_S` for the server, `SETTLE_S` for the streams; at either requests are handed over.
"""

import asyncio
import logging
from collections.abc import Iterable

from actors.engine.row_exchange import Stream
from actors.engine.server_wire import ServerDied, ServerRefused, ServerWire

HOLD_S = 10.0  # the step at hand, and the numbers
SETTLE_S = 5.0  # of tokens that are made already
LOOK_S = 0.005  # between two looks at what the streams have brought

log = logging.getLogger("nodeagent.engine")


class Holding:
    """Of one server."""

    def __init__(self, wire: ServerWire) -> None:
        self._wire = wire
        self.on = False
        """The server stands still, and `end` is due."""

    async def begin(self, streams: Iterable[Stream]) -> set[int]:
        """The tickets of these that may go on under other weights: all that was made of them has been read.
        Where there are none the server does not stand still. Raises `ServerDied`."""
        # Which experts a token went to is told with the end of a stream, for one attempt.
        asked = {stream.ask.rid: stream for stream in streams if stream.experts is None}
        if not asked:
            return set()
        self.on = True
        try:
            async with asyncio.timeout(HOLD_S):
                made = await self._wire.hold(list(asked))
        except (ServerRefused, TimeoutError) as problem:
            log.warning("%d requests are handed over, the server does not hold them: %r", len(asked), problem)
            made = {}
        held = [(asked[rid], count) for rid, count in made.items() if rid in asked]
        await self._settle(held)
        kept = {stream.ticket for stream, count in held if stream.came == count}
        if not kept:
            await self.end()
        return kept

    async def _settle(self, held: list[tuple[Stream, int]]) -> None:
        """Until each stream has brought what was made, or it takes too long."""
        try:
            async with asyncio.timeout(SETTLE_S):
                while any(stream.came < count for stream, count in held):  # noqa: ASYNC110 - others read them
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            late = sum(stream.came < count for stream, count in held)
            log.warning("%d requests are handed over: not all that was made of them has come", late)
        for stream, count in held:
            if stream.came > count:
                raise ServerDied(
                    f"the server says that it made {count} tokens of {stream.ask.rid}, and {stream.came} came"
                )

    async def end(self) -> None:
        """The server goes on; nothing where it does. Raises `ServerDied`."""
        if not self.on:
            return
        try:
            await self._wire.go_on()
        except ServerRefused as refused:
            raise ServerDied(f"the server does not go on: {refused}") from refused
        self.on = False
