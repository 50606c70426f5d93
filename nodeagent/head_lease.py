"""LeaseKeeper: the head's lease, awaited by a standby and renewed by the head.

Owns the times. The holder renews at a third of the lease. The holder measures the lease by its own monotonic
clock, from before it sent the last renewal. If it could not renew within the lease, it ends its process at
once, without an ordered stop: another head may be active by then. Its children die with it.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable

from gleaner.nodeagent.exit_codes import IN_USE, LOST, CannotRun
from gleaner.supervisor.errors import JournalAway, JournalError
from gleaner.supervisor.journal.postgres_layout import LeaseTerm
from gleaner.supervisor.journal.postgres_lease import PostgresLease

MARGIN = 0.1  # of the lease: the process ends before the database can give it to another
LOOKS = 4  # of a standby at the lease, in the time of one

log = logging.getLogger("nodeagent")


async def wait_for_lease(
    lease: PostgresLease, stop: asyncio.Event, *, standby: bool, waiting: Callable[[str], None]
) -> tuple[LeaseTerm, float] | None:
    """The term under which this process is the head, and since when (the loop's time); None where `stop` was
    set first.

    A standby waits without limit, also for the database; `waiting` is called once for each reason. Any other
    process waits only as long as a lease of its own last life may last. Raises CannotRun (IN_USE),
    JournalError.
    """
    loop = asyncio.get_running_loop()
    patience_s = loop.time() + lease.lease_s * 1.5
    last_reason = ""
    while not stop.is_set():
        try:
            since_s = loop.time()
            term = await asyncio.to_thread(lease.acquire)
            if term is not None:
                return term, since_s
            held = await asyncio.to_thread(lease.look)
            why = f"the lease is held by {held.holder} (term {held.term})" if held is not None else "nobody"
        except JournalAway as problem:
            if not standby:
                raise
            why = str(problem)
        if not standby and loop.time() > patience_s:
            raise CannotRun(IN_USE, f"{why}: start this one with --standby, or stop that one first")
        if why != last_reason:
            last_reason = why
            waiting(why)
        try:
            async with asyncio.timeout(lease.lease_s / LOOKS):
                await stop.wait()
        except TimeoutError:
            continue
    return None


class LeaseKeeper:
    """Keeps a lease that was acquired at the loop's time `since_s`; `lost` ends the process."""

    def __init__(
        self,
        lease: PostgresLease,
        term: LeaseTerm,
        since_s: float,
        lost: Callable[[str], None],
    ) -> None:
        self._lease, self._term, self._lost = lease, term, lost
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._granted(since_s)
        self._task = self._loop.create_task(self._keep(), name="head lease")

    async def release(self) -> None:
        """An ordered end: a waiting standby may take over at once."""
        self._task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        try:
            async with asyncio.timeout(self._lease.lease_s):
                await asyncio.to_thread(self._lease.release, self._term)
        except (JournalError, TimeoutError) as problem:
            log.warning("could not release the lease, it will expire: %s", problem)
        await asyncio.to_thread(self._lease.close)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._lease.lease_s / 3)
            sent_s = self._loop.time()
            try:
                if not await asyncio.to_thread(self._lease.renew, self._term):
                    held = await asyncio.to_thread(self._lease.look)
                    self._lost(
                        f"{held.holder if held is not None else 'somebody'} has taken the head's lease"
                    )
                    return
            except JournalError as problem:
                log.warning("could not renew the head's lease: %s", problem)
            else:
                self._granted(sent_s)

    def _granted(self, since_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        until_s = since_s + self._lease.lease_s * (1 - MARGIN)
        self._timer = self._loop.call_at(
            until_s, self._lost, f"the head's lease of {self._lease.lease_s:g} s was not renewed in time"
        )


def end_at_once(reason: str, clean_up: Callable[[], None]) -> None:
    """No ordered stop: what this process would still do, another one does already."""
    log.critical("the head ends at once: %s", reason)
    clean_up()
    logging.shutdown()
    print(f"nodeagent: error: {reason}", file=sys.stderr, flush=True)
    os._exit(LOST)
