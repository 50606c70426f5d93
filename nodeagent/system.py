"""Actor system of one process of a node: opened on its site, closed in order.

Owns the order: sockets, journals, then the actor system on both.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gleaner.nodeagent.host import Bounds, ProcessLocation
from gleaner.nodeagent.host_services import HostServices, RealHostServices
from gleaner.supervisor import ActorSystem, Incarnations, ProcessIdentity, SystemPorts


@asynccontextmanager
async def open_system(
    location: ProcessLocation, bounds: Bounds | None = None, services: HostServices | None = None
) -> AsyncIterator[ActorSystem]:
    """The actor system of this process, receiving; closed in order at the end.

    Args:
        location: where it sits. bounds: its limits; None: those that hold until a job is known.
        services: what it runs on; None: the machine that this process runs on.

    Raises BadKeys, RefusedToListen, CannotListen, JournalError.
    """
    bounds, services = bounds or Bounds(), services or RealHostServices()
    incarnations = Incarnations(services.wall_ms)
    sockets = services.open_sockets(location, incarnations.mint())
    try:
        journals = services.open_journals(location, bounds.commit_s)
        if bounds.force_out:
            await journals.force_out()
        incarnations.at_least(await journals.newest_incarnation())  # even if this host's clock is behind
    except BaseException:
        sockets.close()
        await sockets.wire.close()
        raise
    system = ActorSystem(
        ProcessIdentity(location.node, location.process, incarnations),
        SystemPorts(wire=sockets.wire, journals=journals, network=sockets.network, machine=services.machine),
        registry=location.heads,
        seed=bounds.seed,
        limits=bounds.limits,
    )
    system.inspection.vitals.machine = services.figures
    system.start()
    services.opened(system)
    try:
        yield system
    finally:
        sockets.close()
        await system.close()
