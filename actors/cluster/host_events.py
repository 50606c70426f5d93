"""`HostEvents`: what happened to hosts, reported to the controller once and in order.

Owns the events that the controller has not accepted yet. The controller may start later, or be restarting.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from gleaner.actors.cluster.membership import MAX_MEMBERS
from gleaner.actors.names import CONTROLLER
from gleaner.actors.protocol.cluster import NodeSeen
from gleaner.supervisor import AskFailed, Context, Done, Refused

ASK_DEADLINE_S = 10.0
TAKEN_LATE_S = 60.0  # an event that is not accepted for so long is logged
RETRY_S = 0.2
MAX_WAITING = 4 * MAX_MEMBERS  # the oldest are dropped first


class HostEvents:
    """See the module docstring. `ctx`: of the actor that reports them."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._waiting: deque[NodeSeen] = deque(maxlen=MAX_WAITING)
        self._accepted = 0
        self._news = asyncio.Event()

    def add(self, events: Sequence[NodeSeen]) -> None:
        """Report these after the earlier ones."""
        self._waiting.extend(events)
        self._news.set()

    def clear(self) -> None:
        """Report no more of those that wait: their job is over."""
        self._waiting.clear()

    async def run(self) -> None:
        """Report events for ever."""
        while True:
            while not self._waiting:
                self._news.clear()
                await self._ctx.idle(self._news)
            event = self._waiting[0]
            async with self._ctx.wait(
                "an event to be taken", on=CONTROLLER, deadline_s=TAKEN_LATE_S, go_on=True
            ):
                await self._report(event)
            if self._waiting and self._waiting[0] is event:
                self._waiting.popleft()
            self._accepted += 1

    async def _report(self, event: NodeSeen) -> None:
        """Send until the controller has accepted it, or its job is over."""
        key = f"{self._ctx.name}/{self._ctx.incarnation}/{self._accepted}"
        while self._waiting and self._waiting[0] is event:
            try:
                await self._ctx.ask(CONTROLLER, event, deadline_s=ASK_DEADLINE_S, expect=Done, key=key)
                return
            except Refused as refusal:
                self._ctx.log.warning("controller refused event: %s: %s", event, refusal)
                return
            except AskFailed:
                await asyncio.sleep(RETRY_S)
