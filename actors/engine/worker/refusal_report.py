"""`RefusalReporter`: the tickets that an engine refused, sent to the manager until it has taken them back.

Owns the refusals that no manager has confirmed. The manager counts a refused ticket as held by this instance
until this report arrives, also after a new registration: no row of it ever follows. So a report that is lost
with a manager is sent to the next one. It never blocks: engines decode on while the manager is away.
"""

import asyncio

from gleaner.actors.engine.worker.port import Refusal
from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.instances import CannotTake
from gleaner.supervisor import AskFailed, Context, Done

REPORT_DEADLINE_S = 5.0
REPORT_LATE_S = 30.0  # a longer wait is logged, each time again; nothing is given up
RETRY_S = 0.2


class RefusalReporter:
    """Sends the refusals of one worker."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._version: int | None = None

    def ended(self, refusals: list[Refusal], version: int | None) -> None:
        """A turn ended with these refusals; its engine serves `version` now."""
        self._version = version
        for refusal in refusals:
            self._ctx.background(self._report(refusal), "refusal")

    async def _report(self, refusal: Refusal) -> None:
        """Ask until the manager has confirmed it. Each time with the version that is served by then: the
        manager sends nothing more to an instance that has newer weights than it announced."""
        async with self._ctx.wait("a requeue", on=MANAGER, deadline_s=REPORT_LATE_S, go_on=True):
            while True:
                message = CannotTake(
                    instance=self._ctx.name,
                    incarnation=self._ctx.incarnation,
                    tickets=refusal.tickets,
                    why=refusal.why,
                    version=self._version,
                    never=refusal.never,
                )
                try:
                    await self._ctx.ask(MANAGER, message, deadline_s=REPORT_DEADLINE_S, expect=Done)
                    return
                except AskFailed as problem:
                    self._ctx.log.info("could not report refused requests: %s", problem)
                    await asyncio.sleep(RETRY_S)
