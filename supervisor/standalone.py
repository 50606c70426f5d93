"""Standalone actor system for own programs: loopback sockets, journal, registry.

The shortest way to a running tree; the journal is on disk. `nodeagent` starts a host of a cluster, with more
settings (keys, addresses, the head to join).
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gleaner.supervisor.address import Incarnations
from gleaner.supervisor.child_spec import TreeSpec
from gleaner.supervisor.errors import ActorError
from gleaner.supervisor.journal.sqlite import SqliteJournal
from gleaner.supervisor.limits import Limits
from gleaner.supervisor.names.client import REGISTRY
from gleaner.supervisor.names.registry import Registry
from gleaner.supervisor.network import Network
from gleaner.supervisor.supervision import Supervisor
from gleaner.supervisor.system import ActorSystem
from gleaner.supervisor.system_ports import ProcessIdentity, SystemPorts
from gleaner.transport.mesh import ZmqWire
from gleaner.transport.wire import Peer


@asynccontextmanager
async def open_system(
    name: str, state_dir: Path | str, *, join: Peer | None = None, limits: Limits | None = None
) -> AsyncIterator[ActorSystem]:
    """The actor system of this process, receiving; closed in order at the end.

    Args:
        name: of this process among those it talks to.
        state_dir: where its journal lives; made if missing.
        join: `system.wire.local` of the process that holds the registry; None: this one does.

    Raises: CannotListen, JournalError.
    """
    incarnations = Incarnations(lambda: time.time_ns() // 1_000_000)
    wire = ZmqWire(name, incarnations.mint())
    limits = limits or Limits()
    try:
        journals = SqliteJournal(Path(state_dir) / f"{name}.sqlite")
    except BaseException:
        await wire.close()
        raise
    system = ActorSystem(
        ProcessIdentity(name, "main", incarnations),
        SystemPorts(wire=wire, journals=journals, network=Network("127.0.0.1", None)),
        registry=join,
        limits=limits,
    )
    system.start()
    if join is None:
        system.spawn(REGISTRY, lambda: Registry(lambda: limits.lease_s))
    try:
        yield system
    finally:
        await system.close()


@asynccontextmanager
async def supervise(system: ActorSystem, tree: TreeSpec) -> AsyncIterator[Supervisor]:
    """Run `tree` inside the block; stop it in order at its end.

    Raises the error with which the root gave up (RestartIntensityReached, Hopeless), out of the block.
    """
    block = asyncio.current_task()
    failed: list[Exception] = []

    def give_up(problem: Exception) -> None:
        failed.append(problem)
        if block is not None:
            block.cancel()

    supervisor = Supervisor(system, tree, on_failure=give_up)
    await supervisor.start()
    try:
        yield supervisor
    except asyncio.CancelledError:
        if failed and block is not None:
            block.uncancel()
            raise failed[0] from None
        raise
    finally:
        await supervisor.stop()
    if failed:
        raise ActorError(str(failed[0])) from failed[0]
