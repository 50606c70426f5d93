"""Actor system of one process of a node: opened on its site, closed in order.

Owns the order: sockets, journals, then the actor system on both.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gleaner.nodeagent.host import Bounds, Seat
from gleaner.nodeagent.site import RealSite, Site
from gleaner.supervisor import ActorSystem, Incarnations, ProcessIdentity, SystemPorts


@asynccontextmanager
async def open_system(
    seat: Seat, bounds: Bounds | None = None, site: Site | None = None
) -> AsyncIterator[ActorSystem]:
    """The actor system of this process, receiving; closed in order at the end.

    Args:
        seat: where it sits. bounds: its limits; None: those that hold until a job is known.
        site: what it runs on; None: the machine that this process runs on.

    Raises BadKeys, RefusedToListen, CannotListen, JournalError.
    """
    bounds, site = bounds or Bounds(), site or RealSite()
    incarnations = Incarnations(site.wall_ms)
    sockets = site.open_sockets(seat, incarnations.mint())
    try:
        journals = site.open_journals(seat, bounds.commit_s)
        incarnations.at_least(await journals.newest_incarnation())  # even if this host's clock is behind
    except BaseException:
        sockets.close()
        await sockets.wire.close()
        raise
    system = ActorSystem(
        ProcessIdentity(seat.node, seat.process, incarnations),
        SystemPorts(wire=sockets.wire, journals=journals, network=sockets.network, machine=site.machine),
        registry=seat.heads,
        seed=bounds.seed,
        limits=bounds.limits,
    )
    system.inspection.vitals.machine = site.figures
    system.start()
    site.opened(system)
    try:
        yield system
    finally:
        sockets.close()
        await system.close()
