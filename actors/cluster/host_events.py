"""`HostEvents`: what happened to hosts, reported to another actor once and in order.

Owns the events that it has not accepted yet. The actor may start later, or be restarting: an event that is
lost would be wrong in the history until the host's next one. The Scheduler reports to the controller, a node
agent to the Scheduler.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence

from gleaner.actors.cluster.membership import MAX_MEMBERS
from gleaner.actors.names import CONTROLLER
from gleaner.actors.protocol.cluster import NodeSeen
from gleaner.supervisor import AskFailed, Context, Done, Refused

ASK_DEADLINE_S = 10.0
TAKEN_LATE_S = 60.0  # an event that is not accepted for so long is logged
RETRY_S = 0.2
MAX_WAITING = 4 * MAX_MEMBERS


class HostEvents:
    """See the module docstring.

    Args:
        ctx: of the actor that reports them.
        to: name of the actor that they are reported to.
        most: events that wait; the oldest are dropped first.
    """

    def __init__(self, ctx: Context, to: str = CONTROLLER, most: int = MAX_WAITING) -> None:
        self._ctx, self._to = ctx, to
        self._waiting: deque[NodeSeen] = deque(maxlen=most)
        self._accepted = 0
        self._news = asyncio.Event()
        self._empty = asyncio.Event()

    def add(self, events: Sequence[NodeSeen]) -> None:
        """Report these after the earlier ones."""
        self._waiting.extend(events)
        self._empty.clear()
        self._news.set()

    def clear(self) -> None:
        """Report no more of those that wait: their job is over."""
        self._waiting.clear()

    async def reported(self, within_s: float) -> None:
        """Wait until all are accepted, but no longer than that."""
        wait = self._ctx.wait("events to be taken", on=self._to, deadline_s=within_s, go_on=True)
        with contextlib.suppress(TimeoutError):
            async with wait, asyncio.timeout(within_s):
                await self._empty.wait()

    async def run(self) -> None:
        """Report events for ever."""
        while True:
            while not self._waiting:
                self._empty.set()
                self._news.clear()
                await self._ctx.idle(self._news)
            event = self._waiting[0]
            async with self._ctx.wait(
                "an event to be taken", on=self._to, deadline_s=TAKEN_LATE_S, go_on=True
            ):
                await self._report(event)
            if self._waiting and self._waiting[0] is event:
                self._waiting.popleft()
            self._accepted += 1

    async def _report(self, event: NodeSeen) -> None:
        """Send until it is accepted, or its job is over."""
        key = f"{self._ctx.name}/{self._ctx.incarnation}/{self._accepted}"
        while self._waiting and self._waiting[0] is event:
            try:
                await self._ctx.ask(self._to, event, deadline_s=ASK_DEADLINE_S, expect=Done, key=key)
                return
            except Refused as refusal:
                self._ctx.log.warning("%s refused event: %s: %s", self._to, event, refusal)
                return
            except AskFailed:
                await asyncio.sleep(RETRY_S)
