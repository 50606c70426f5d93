"""ActorSystem: the actors of one process, and the parts that carry messages.

Owns the cells. Sending is in `outbound`, receiving in `inbound`, names and leases in `names.client`, the
death of other actors in `watch.watches`; `supervision` restarts actors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from gleaner.supervisor.actor import Actor
from gleaner.supervisor.address import ANY_INCARNATION, Address
from gleaner.supervisor.cell import Cell, CellSpec
from gleaner.supervisor.dead_letters import DeadLetters
from gleaner.supervisor.delivery import Exit
from gleaner.supervisor.errors import (
    ActorError,
    Unreachable,
)
from gleaner.supervisor.inbound import Inbound
from gleaner.supervisor.inspection.report import Inspection
from gleaner.supervisor.inspection.tap import Tap
from gleaner.supervisor.journal.port import JournalStore
from gleaner.supervisor.limits import Limits
from gleaner.supervisor.machine import Child, OnExit, RealMachine
from gleaner.supervisor.message import Message, kind_of
from gleaner.supervisor.names.client import Names
from gleaner.supervisor.outbound import Outbound
from gleaner.supervisor.process import HEARTBEAT_VARIABLE, ProcessSpec
from gleaner.supervisor.system_messages import ActorState, SystemState
from gleaner.supervisor.system_ports import ProcessIdentity, SystemPorts
from gleaner.supervisor.tracing import Tracer
from gleaner.supervisor.waits import Waits
from gleaner.supervisor.watch.actor_links import ActorLinks
from gleaner.supervisor.watch.health import Parent
from gleaner.supervisor.watch.heartbeats import HealthChecks, HeartbeatSender
from gleaner.supervisor.watch.turn_clock import TurnClock
from gleaner.supervisor.watch.watches import Watches
from gleaner.transport.links import Links
from gleaner.transport.wire import Peer, Route

R = TypeVar("R", bound=Message)
log = logging.getLogger("supervisor")


class ActorSystem:
    """All actors of one process.

    Args:
        identity: of this process.
        ports: its sockets, journals and machine; the system closes wire and journals.
        registry: the process that holds the registry, or those that may, in order of preference; None when
            it is this one or there is none.
        seed: of every `ctx.rng`.
        limits: of mailboxes, deadlines and intervals.
    """

    def __init__(
        self,
        identity: ProcessIdentity,
        ports: SystemPorts,
        *,
        registry: Peer | Sequence[Peer] | None = None,
        seed: int = 0,
        limits: Limits | None = None,
    ) -> None:
        self.node = identity.node
        self.process = identity.process
        self.wire = ports.wire
        self.incarnations = identity.incarnations
        self.links = Links(self.wire, life=self.incarnations.mint())
        self.endpoint = self.wire.local.endpoint
        self.network = ports.network
        self.seed = seed
        self.limits = limits or Limits()
        self.machine = ports.machine or RealMachine()
        self.dead_letters = DeadLetters()
        self.tap: Tap | None = None  # set while a reader watches messages
        self.tracer: Tracer | None = None  # set if this process traces
        self.state_sources: list[Callable[[], list[ActorState]]] = []
        self._journals = ports.journals
        self._cells: dict[str, Cell] = {}
        self._on_exit: dict[str, Callable[[Exit], None]] = {}
        self._owned: dict[str, dict[str, None]] = {}  # the living children of an owner, oldest first
        self.life = self.incarnations.mint()  # of this process
        self.turn_clock = TurnClock(self.machine.paused_s)
        self.waits = Waits(self.turn_clock.now)
        self.inspection = Inspection(self)
        self.watches = Watches(self)
        self.health = HealthChecks(self)
        self._heart = HeartbeatSender(self)
        self.linking = ActorLinks(self)
        self.names = Names(self, registry)
        self.outbound = Outbound(self)
        self.inbound = Inbound(self)
        self._tasks: list[asyncio.Task[None]] = []
        self._finishing: dict[asyncio.Task[None], None] = {}  # a set has no order
        self._closed = False

    def live_by(self, limits: Limits) -> None:
        """Use these limits from now on; promises made under the old ones are kept."""
        self.limits = limits
        self.watches.retime()

    async def force_out_journals(self) -> None:
        """Force every later commit of this process's journals out to the disk. Raises JournalError."""
        await self._journals.force_out()

    def finish(self, work: Coroutine[object, object, None]) -> None:
        """Run what an ended actor left to close; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._finishing[task] = None
        task.add_done_callback(self._finishing.pop)

    def start(self) -> None:
        """Begin to receive; call once, on the running loop."""
        self.links.listen(self.inbound.on_envelope, self.inbound.on_link)
        self.turn_clock.start()
        self.inspection.start()
        self._heart.start()
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self.names.keep_registered(), name="leases"))

    async def close(self) -> None:
        """Stop every actor, newest first, then the sockets and the journal."""
        if self._closed:
            return
        self._closed = True
        for name in reversed(list(self._cells)):
            cell = self._cells.get(name)
            if cell is not None:
                cell.keep = False
                await cell.stop(self.limits.stop_s)
        self.inspection.close()
        self.turn_clock.close()
        self.watches.close()
        self.health.close()
        self._heart.close()
        self.waits.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._finishing, return_exceptions=True)
        await self.links.close()
        await self._journals.close()

    # -- actors of this process --

    def spawn(
        self,
        name: str,
        factory: Callable[[], Actor],
        on_exit: Callable[[Exit], None] | None = None,
        journals: JournalStore | None = None,
        *,
        register: bool = True,
        keep: bool = False,
        after: Cell | None = None,
    ) -> Cell:
        """Start an actor under `name` with a new incarnation; `on_exit` is called once when it ends.
        `journals`: the store of its streams, instead of the process's own. `register`: whether other
        processes find it by its name. `keep`: when it ends an heir takes over the waiting messages of its
        mailbox and accepts messages, until `adopt` lets it begin or it is ended without `keep`. `after`: the
        life whose heir it is."""
        if name in self._cells:
            raise ActorError(f"{self.node}/{self.process}: the name {name!r} is taken")
        address = Address(
            name=name,
            endpoint=self.endpoint,
            public_key=self.wire.local.public_key,
            incarnation=self.incarnations.mint(),
        )
        store = journals or self._journals
        cell = Cell(self, CellSpec(address, factory, store), self._ended, keep=keep, after=after)
        self._cells[name] = cell
        if on_exit is not None:
            self._on_exit[name] = on_exit
        self.names.spawned(name, address.incarnation, register=register)
        return cell

    def start_process(self, spec: ProcessSpec, on_exit: OnExit) -> Child:
        """Start a child process, and check its health if `spec` has a check. Raises OSError."""
        if spec.health is not None:
            parent = Parent(self.wire.local, spec.health.beat_s)
            spec = replace(spec, env={**spec.env, HEARTBEAT_VARIABLE: str(parent)})
        child = self.machine.start(spec, on_exit)
        if spec.health is not None:
            self.health.add(child, spec.health)
        return child

    def adopt(self, heir: Cell, on_exit: Callable[[Exit], None]) -> None:
        """Let an heir begin; `on_exit` is called once when it ends."""
        self._on_exit[heir.address.name] = on_exit
        heir.begin()

    def _ended(self, cell: Cell, exit_: Exit) -> None:
        name = cell.address.name
        self._cells.pop(name, None)
        self.names.ended(name, exit_.incarnation)
        self.linking.forget(name, exit_.incarnation)
        if cell.keep:
            cell.mailbox.keep_only(lambda delivery: isinstance(delivery.message, Message))
            cell.heir = self.spawn(name, cell.factory, journals=cell.ctx.journals, keep=True, after=cell)
            self.inbound.inherit(cell, cell.heir)
        self.inspection.ended(cell, exit_.problem)
        for child in self._owned.pop(name, {}):
            if child in self._cells:
                self._cells[child].crash(Unreachable(f"its owner {name} has ended"))
        self.watches.local_ended(name, exit_.incarnation, exit_.cause)
        on_exit = self._on_exit.pop(name, None)
        if on_exit is not None:
            on_exit(exit_)

    def spawn_owned(
        self, owner: Cell, name: str, factory: Callable[[], object], *, register: bool
    ) -> Address:
        """See `Context.spawn`."""

        def ended(_: Exit) -> None:
            self._owned.get(owner.address.name, {}).pop(name, None)

        cell = self.spawn(name, cast("Callable[[], Actor]", factory), ended, register=register)
        self._owned.setdefault(owner.address.name, {})[name] = None
        self.watches.add(cell.address, owner)
        return cell.address

    def cell(self, name: str) -> Cell | None:
        """The living actor `name` of this process."""
        return self._cells.get(name)

    def cells(self) -> list[Cell]:
        """Every living actor of this process."""
        return list(self._cells.values())

    def owned(self) -> Mapping[str, Mapping[str, None]]:
        """The actors that each actor has spawned for itself."""
        return self._owned

    # -- sending --

    async def tell(self, to: Address | str, message: Message, *, source: Cell | None = None) -> None:
        """See `Context.tell`."""
        await self.outbound.tell(to, message, source=source)

    async def ask(
        self,
        to: Address | str,
        message: Message,
        *,
        deadline_s: float,
        expect: type[R],
        key: str = "",
        source: Cell | None = None,
    ) -> R:
        """See `Context.ask`."""
        return await self.outbound.ask(
            to, message, deadline_s=deadline_s, expect=expect, key=key, source=source
        )

    async def resolve(self, name: str, deadline_s: float) -> Address:
        """See `Context.resolve`."""
        return await self.names.resolve(name, deadline_s)

    async def unregister(self, names: dict[str, int]) -> None:
        """Give names up before their lease ends (an ordered stop, a process seen dead)."""
        await self.names.unregister(names)

    def send_system(self, to: Peer | Route, message: Message) -> None:
        """A `tell` to the system of another process."""
        self.outbound.system_message(to, message)

    def peer_dead(self, peer: Peer) -> None:
        """No message will arrive from this process any more: asks to it fail, names are looked up anew."""
        self.outbound.peer_gone(peer, admitted=True)
        self.names.forget_peer(peer)

    def watch(self, address: Address, watcher: Cell) -> None:
        """See `Context.watch`."""
        self.watches.add(address, watcher)

    def local(self, to: Address) -> Cell | None:
        """The living actor of this process that `to` means."""
        if to.endpoint != self.endpoint:
            return None
        cell = self._cells.get(to.name)
        if cell is None or to.incarnation not in (ANY_INCARNATION, cell.address.incarnation):
            return None
        return cell

    def dead_letter(self, reason: str, to: str, message: Message, source: str = "") -> None:
        """An undeliverable message: counted by reason, and sampled."""
        self.dead_letters.add(reason, to, kind_of(message), source)
        log.debug("dead letter (%s): %s to %s", reason, kind_of(message), to)

    # -- introspection --

    def state(self) -> SystemState:
        """State of this process, for inspection."""
        return self.inspection.state()
