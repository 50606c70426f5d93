"""Cancellation: reports requests without a waiting client to the manager.

A report is repeated until the manager answers it. Owns the ids still to be reported, the newest
`MAX_REMEMBERED` of them."""

import asyncio

from gleaner.actors.gateway.recent_names import RecentNames
from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.requests import Cancel
from gleaner.supervisor import AskFailed, Context, Done

MAX_REMEMBERED = 4096
CANCEL_S = 10.0
"""Seconds for the manager to accept a report; then it is sent again."""
RETRY_S = 0.2


class Cancellation:
    """See the module; `run` it."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._ids = RecentNames(MAX_REMEMBERED)
        self._wake = asyncio.Event()

    def add(self, id: str) -> None:
        """Cancel this request: no client waits for it any more."""
        self._ids.add(id)
        self._wake.set()

    def later(self, id: str) -> None:
        """Cancel a request that is over: reported with the next one, or at the next `look`."""
        self._ids.add(id)

    def look(self) -> None:
        """Report ids that `later` added: many cost no more than one."""
        if len(self._ids):
            self._wake.set()

    async def run(self) -> None:
        """Report, forever."""
        while True:
            await self._ctx.idle(self._wake)
            self._wake.clear()
            ids = self._ids.take()
            try:
                await self._ctx.ask(MANAGER, Cancel(ids=ids), deadline_s=CANCEL_S, expect=Done)
            except AskFailed as problem:
                self._ctx.log.warning("requests not cancelled yet: count=%d: %s", len(ids), problem)
                self._ids.add(*ids)
                self._wake.set()
                await asyncio.sleep(RETRY_S)
