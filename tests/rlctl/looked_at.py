"""A small cluster to inspect: two processes in a thread, over real sockets.

`head` has the registry and a supervised actor that failed. `spot-1` has an actor that is stuck and one that
waits for it. A third process is registered and never answers.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

from gleaner.supervisor import (
    Actor,
    ActorSystem,
    Done,
    Incarnations,
    Lane,
    Message,
    ProcessIdentity,
    Registry,
    SqliteJournal,
    Supervisor,
    SystemPorts,
    child,
    handles,
    one_for_one,
)
from gleaner.supervisor.network import Network
from gleaner.supervisor.system_messages import ClaimNames, LeaseGranted, ListNames, Names
from gleaner.transport.mesh import ZmqWire
from gleaner.transport.wire import Peer

T = TypeVar("T")
LEASE_S = 600.0


class Ping(Message, frozen=True):
    text: str = ""


class GoStuck(Message, frozen=True):
    """Handled for ever."""


class Fall(Message, frozen=True):
    """Ends the actor that gets it."""


class Server(Actor):
    """Answers, falls, or is stuck, as requested."""

    @handles(Ping)
    async def ping(self, message: Ping) -> None:
        return None

    @handles(Fall, lane=Lane.SYSTEM)
    async def fall(self, message: Fall) -> None:
        raise ValueError("it fell") from OSError("no ground")

    @handles(GoStuck)
    async def stuck(self, message: GoStuck) -> None:
        await asyncio.Event().wait()

    def summary(self) -> dict[str, str | int | float]:
        return {"served": 7, "mood": "good"}


class Asker(Actor):
    """Asks the stuck actor."""

    @handles(Ping)
    async def ping(self, message: Ping) -> None:
        await self.ctx.ask("stuck", Ping(text="are you there"), deadline_s=300.0, expect=Done)


class LookedAt:
    """Started with `with`; `endpoint` is the head's."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = ""
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._systems: list[ActorSystem] = []
        self._tree: Supervisor | None = None

    def __enter__(self) -> "LookedAt":
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60.0)
        self._loop.close()

    @property
    def head(self) -> ActorSystem:
        """The head's process."""
        return self._systems[0]

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Run on the cluster's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60.0)

    def call_later(self, delay_s: float, work: Callable[[], object]) -> None:
        """Call on the cluster's loop, a little later."""
        self._loop.call_soon_threadsafe(self._loop.call_later, delay_s, work)

    def tell(self, name: str, message: Message) -> None:
        """Send a message to an actor of the head's process."""
        self.head.outbound.tell(name, message)

    def _system(self, node: str, process: str, registry: Peer | None) -> ActorSystem:
        system = ActorSystem(
            ProcessIdentity(node, process, Incarnations(lambda: 0)),
            SystemPorts(
                wire=ZmqWire(f"{node}/{process}", len(self._systems) + 1),
                journals=SqliteJournal(self._folder / f"{node}.sqlite"),
                network=Network("127.0.0.1", None),
            ),
            registry=registry,
        )
        system.start()
        self._systems.append(system)
        return system

    async def _start(self) -> None:
        restarted = asyncio.Event()
        head = self._system("head", "agent", None)
        self.endpoint = head.endpoint
        spot = self._system("spot-1", "engine", head.wire.local)
        head.spawn("registry", lambda: Registry(lambda: LEASE_S))
        self._tree = Supervisor(
            head,
            one_for_one(child("falls", Server), name="head/actors"),
            on_failure=lambda problem: None,
            on_restart=lambda _: restarted.set(),
        )
        await self._tree.start()
        gone = head.spawn("gone", Server)
        for name, kind in (("stuck", Server), ("asker", Asker)):
            spot.spawn(name, kind)
        await gone.stop(1.0)
        await spot.tell(gone.address, Ping(text="too late"))
        await spot.tell("stuck", GoStuck())
        await spot.tell("asker", Ping())
        await head.tell("falls", Fall())
        await restarted.wait()
        silent = ClaimNames(endpoint="tcp://127.0.0.1:1", names={"spot-2/agent": 1}, life=9, first=True)
        await head.ask("registry", silent, deadline_s=60.0, expect=LeaseGranted)
        async with asyncio.timeout(60.0):
            while len(spot.waits.snapshot()) == 0 or not head.dead_letters.counts:
                await asyncio.sleep(0.01)
            while "asker" not in await _registered(head):
                await asyncio.sleep(0.01)

    async def _stop(self) -> None:
        if self._tree is not None:
            await self._tree.stop()
        for system in reversed(self._systems):
            await system.close()


async def _registered(head: ActorSystem) -> list[str]:
    names = await head.ask("registry", ListNames(), deadline_s=60.0, expect=Names)
    return [address.name for address in names.addresses]
