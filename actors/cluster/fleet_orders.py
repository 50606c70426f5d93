"""`FleetOrders`: what the Scheduler orders of the Provider, each sent until it is accepted.

Owns the number of instances (N_prem) that the Provider was not sent yet.
"""

import asyncio
from collections.abc import Awaitable, Callable

from gleaner.actors.names import PROVIDER
from gleaner.actors.protocol.cluster import JobSpec, SetFleet, StartFleet, StopFleet
from gleaner.supervisor import AskFailed, Context, Done, Refused

ASK_DEADLINE_S = 10.0
TAKEN_LATE_S = 60.0  # an order that is not accepted for so long is logged
RETRY_S = 0.2


class FleetOrders:
    """See the module docstring.

    Args:
        ctx: of the Scheduler.
        refused: awaited with the reason when the Provider refuses an order: the job cannot go on.
    """

    def __init__(self, ctx: Context, refused: Callable[[str], Awaitable[None]]) -> None:
        self._ctx, self._refused = ctx, refused
        self._wished: int | None = None  # N_prem that the Provider was not sent yet
        self._wish_sender = asyncio.Lock()  # one at a time: an older number must not arrive after a newer one

    async def start(self, job: JobSpec) -> None:
        """Ask once for hosts of a new job. Raises AskFailed: refused, or no answer."""
        await self._ctx.ask(PROVIDER, StartFleet(job=job), deadline_s=ASK_DEADLINE_S, expect=Done)

    def resume(self, job: JobSpec, n_prem: int | None) -> None:
        """Order what a restarted Scheduler knows, None for no number. The number is first: the Provider may
        have missed the newest one, and rents hosts once it has a job."""
        self._ctx.background(self._resume(job, n_prem), "fleet")

    def wish(self, n_prem: int) -> None:
        """Send N_prem until the Provider has recorded it; a newer one replaces it."""
        self._wished = n_prem
        if not self._wish_sender.locked():
            self._ctx.background(self._send_wish(), "wish")

    def stop(self) -> None:
        """Give all hosts back."""
        self._ctx.background(self._insist(StopFleet()), "fleet")

    async def _resume(self, job: JobSpec, n_prem: int | None) -> None:
        if n_prem is not None:
            self._wished = n_prem
            await self._send_wish()
        await self._insist(StartFleet(job=job))

    async def _send_wish(self) -> None:
        async with self._wish_sender:
            while self._wished is not None:
                n_prem, self._wished = self._wished, None
                await self._insist(SetFleet(n_prem=n_prem))

    async def _insist(self, message: StartFleet | SetFleet | StopFleet) -> None:
        """Send until the Provider has accepted it; it may be restarting."""
        async with self._ctx.wait("an order to be taken", on=PROVIDER, deadline_s=TAKEN_LATE_S, go_on=True):
            while True:
                try:
                    await self._ctx.ask(PROVIDER, message, deadline_s=ASK_DEADLINE_S, expect=Done)
                    return
                except Refused as refusal:
                    await self._refused(str(refusal))
                    return
                except AskFailed as problem:
                    self._ctx.log.warning("provider request failed: %s", problem)
                    await asyncio.sleep(RETRY_S)
