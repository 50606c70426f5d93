"""ProcessIdentity and SystemPorts: what an ActorSystem is, and what it reaches the world with."""

from dataclasses import dataclass

from gleaner.supervisor.address import Incarnations
from gleaner.supervisor.journal.port import JournalStore
from gleaner.supervisor.machine import Machine
from gleaner.supervisor.network import Network
from gleaner.transport.wire import Wire


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identity of a process in its cluster.

    Args:
        node: name of the host.
        process: name of this process on it.
        incarnations: mints the numbers of its actors and of its own life.
    """

    node: str
    process: str
    incarnations: Incarnations


@dataclass(frozen=True, slots=True)
class SystemPorts:
    """The edges of an actor system: sockets, files and child processes.

    Args:
        wire: reaches other processes.
        journals: where the actors of this process keep their streams.
        network: opens data sockets.
        machine: starts child processes and threads; None: the one that this process runs on.
    """

    wire: Wire
    journals: JournalStore
    network: Network
    machine: Machine | None = None
