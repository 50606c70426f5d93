"""Requests that nobody waits for any longer: the manager is told, until it heard.

Owns which are still to be told, the newest `MAX_REMEMBERED` of them.
"""

import asyncio

from actors.rollout.gateway.newest import Newest
from actors.rollout.single_messages import Cancel
from supervisor import AskFailed, Context, Done

MANAGER = "rollout/manager"
MAX_REMEMBERED = 4096
CANCEL_S = 10.0
"""For the manager to take the news; then it is told again."""
RETRY_S = 0.2


class Cancelling:
    """See the module; `run` it."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._ids = Newest(MAX_REMEMBERED)
        self._wake = asyncio.Event()

    def add(self, id: str) -> None:
        """Nobody waits for this one any more."""
        self._ids.add(id)
        self._wake.set()

    def later(self, id: str) -> None:
        """The same of one that is over: it may be told with the next, or at the next `look`."""
        self._ids.add(id)

    def look(self) -> None:
        """Tell what may be told later: many are forgotten at the price of one."""
        if len(self._ids):
            self._wake.set()

    async def run(self) -> None:
        """Tell, for ever."""
        while True:
            await self._ctx.idle(self._wake)
            self._wake.clear()
            ids = self._ids.take()
            try:
                await self._ctx.ask(MANAGER, Cancel(ids=ids), deadline_s=CANCEL_S, expect=Done)
            except AskFailed as problem:
                self._ctx.log.warning("%d requests are not cancelled yet: %s", len(ids), problem)
                self._ids.add(*ids)
                self._wake.set()
                await asyncio.sleep(RETRY_S)
