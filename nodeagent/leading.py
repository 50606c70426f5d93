"""Lease of the head as a context manager: acquire, keep, release at the end."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from gleaner.nodeagent.files import STANDBY, AgentFile
from gleaner.nodeagent.host import LEASE, Seat
from gleaner.nodeagent.shutdown import Shutdown
from gleaner.nodeagent.site import Site
from gleaner.supervisor.journal.places import need_client

log = logging.getLogger("nodeagent")


@asynccontextmanager
async def leading(
    seat: Seat, *, standby: bool, lease_s: float, stop: Shutdown, site: Site
) -> AsyncIterator[Seat | None]:
    """The seat under the lease of the head, if there is one; None where `stop` was set before this process
    got it."""
    if not seat.database:
        yield seat
        return
    need_client(seat.database)
    from gleaner.nodeagent.head_lease import LeaseKeeper, end_at_once, wait_for_lease
    from gleaner.supervisor.journal.postgres_lease import PostgresLease

    def waiting(why: str) -> None:
        log.info("standing by: %s", why)
        site.say(f"nodeagent {seat.node}: standing by: {why}")
        standby = AgentFile(node=seat.node, role=STANDBY, endpoint="", public_key="", pid=site.machine.pid)
        site.publish_agent(seat.state_dir, standby)

    holder = f"{seat.node} at {seat.listen} (pid {site.machine.pid})"
    lease = PostgresLease(seat.database, LEASE, holder, lease_s)
    got = await wait_for_lease(lease, stop, standby=standby, waiting=waiting)
    if got is None:
        site.withdraw_agent(seat.state_dir)
        yield None
        return
    term, since_s = got
    log.info("%s is the head, under term %d", seat.node, term.term)
    keeper = LeaseKeeper(lease, term, since_s, lambda reason: end_at_once(reason, stop.clean_up))
    try:
        yield replace(seat, term=term.term)
    finally:
        await keeper.release()
