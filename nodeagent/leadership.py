"""Lease of the head as a context manager: acquire, keep, release at the end."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from gleaner.nodeagent.files import STANDBY, AgentFile
from gleaner.nodeagent.host import LEASE, ProcessLocation
from gleaner.nodeagent.host_services import HostServices
from gleaner.nodeagent.shutdown import Shutdown
from gleaner.supervisor.journal.store_choice import need_client

log = logging.getLogger("nodeagent")


@asynccontextmanager
async def leadership(
    location: ProcessLocation, *, standby: bool, lease_s: float, stop: Shutdown, services: HostServices
) -> AsyncIterator[ProcessLocation | None]:
    """The seat under the lease of the head, if there is one; None where `stop` was set before this process
    got it."""
    if not location.database:
        yield location
        return
    need_client(location.database)
    from gleaner.nodeagent.head_lease import LeaseKeeper, end_at_once, wait_for_lease
    from gleaner.supervisor.journal.postgres_lease import PostgresLease

    def waiting(why: str) -> None:
        log.info("standing by: %s", why)
        services.say(f"nodeagent {location.node}: standing by: {why}")
        standby = AgentFile(
            node=location.node, role=STANDBY, endpoint="", public_key="", pid=services.machine.pid
        )
        services.publish_agent(location.state_dir, standby)

    holder = f"{location.node} at {location.listen} (pid {services.machine.pid})"
    lease = PostgresLease(location.database, LEASE, holder, lease_s)
    got = await wait_for_lease(lease, stop, standby=standby, waiting=waiting)
    if got is None:
        services.withdraw_agent(location.state_dir)
        yield None
        return
    term, since_s = got
    log.info("%s is the head, under term %d", location.node, term.term)
    keeper = LeaseKeeper(lease, term, since_s, lambda reason: end_at_once(reason, stop.clean_up))
    try:
        yield replace(location, term=term.term)
    finally:
        await keeper.release()
