"""TestSystem: an actor system in one process for tests.

It has a loopback wire, a temporary journal and short times.
"""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from gleaner.supervisor.actor import Actor
from gleaner.supervisor.address import Address, Incarnations
from gleaner.supervisor.journal.sqlite import SqliteJournal
from gleaner.supervisor.limits import Limits
from gleaner.supervisor.message import Message
from gleaner.supervisor.names.client import REGISTRY
from gleaner.supervisor.names.registry import Registry
from gleaner.supervisor.network import Network
from gleaner.supervisor.system import ActorSystem
from gleaner.supervisor.system_ports import ProcessIdentity, SystemPorts
from gleaner.transport.loopback import LoopbackNetwork
from gleaner.transport.wire import Peer

R = TypeVar("R", bound=Message)

TEST_LIMITS = Limits(
    mailbox=64, beat_s=0.05, silent_s=0.5, resend_s=0.1, lease_s=0.6, stop_s=1.0, credit_s=1.0
)


class TestSystem:
    """`async with TestSystem(tmp_path) as system`: spawn, kill and send messages to actors by name.

    With `join=other` it is a second process of `other`'s cluster, reached over the loopback wire.
    """

    __test__ = False

    def __init__(self, directory: Path, *, node: str = "test", join: "TestSystem | None" = None) -> None:
        self.network: LoopbackNetwork = join.network if join is not None else LoopbackNetwork()
        self.directory = directory
        self.node = node
        self._wire = self.network.wire(node)
        registry: Peer | None = join.system.wire.local if join is not None else None
        self.system: ActorSystem = ActorSystem(
            ProcessIdentity(node, "test", Incarnations(lambda: 0)),
            SystemPorts(
                wire=self._wire,
                journals=SqliteJournal(directory / f"{node}.sqlite", commit_s=0.0),
                network=Network("127.0.0.1", None),
            ),
            registry=registry,
            limits=TEST_LIMITS,
        )
        self._joined = join is not None

    async def __aenter__(self) -> "TestSystem":
        self.system.start()
        if not self._joined:
            self.spawn(REGISTRY, lambda: Registry(lambda: TEST_LIMITS.lease_s))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.system.close()

    def spawn(self, name: str, factory: Callable[[], Actor]) -> Address:
        """Start an actor."""
        return self.system.spawn(name, factory).address

    async def ask(self, to: str | Address, message: Message, expect: type[R], deadline_s: float = 5.0) -> R:
        """Ask from outside any actor."""
        return await self.system.ask(to, message, deadline_s=deadline_s, expect=expect)

    async def tell(self, to: str | Address, message: Message) -> None:
        """Send a `tell` from outside any actor."""
        await self.system.tell(to, message)

    def kill(self, name: str) -> None:
        """End an actor as a crash would, without `on_stop`."""
        cell = self.system.cell(name)
        assert cell is not None, f"no actor {name!r} lives here"
        cell.crash(RuntimeError("killed by the test"))
