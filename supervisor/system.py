"""The actor system of one process: finds actors, carries messages between them and over the wire.

Owns the cells of this process, name resolution with leases, and delivery: tell at most once, ask with a
deadline, re-sent under one key. Supervision (who restarts what) is `supervision.py`; death of others is
`watching.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TypeVar, cast

from supervisor.actor import Actor, Terminated
from supervisor.address import ANY_INCARNATION, Address, Incarnations
from supervisor.asks import Outcome, PendingAsks, ServedAsks
from supervisor.cell import Cell, Delivery, Exit
from supervisor.errors import (
    ActorError,
    AskFailed,
    AskTimeout,
    Crashed,
    Fenced,
    Overloaded,
    Refused,
    Unreachable,
)
from supervisor.journal import Journal, JournalStore
from supervisor.limits import Limits
from supervisor.mailbox import Lane
from supervisor.message import Message, decode_body, encode_body, kind_of
from supervisor.network import Network
from supervisor.system_messages import (
    SYSTEM,
    ActorState,
    Beat,
    Ended,
    Failure,
    Found,
    Inspect,
    Lookup,
    ClaimNames,
    LeaseGranted,
    SystemState,
    Unregister,
    Watch,
)
from supervisor.watching import Watches
from transport.envelope import Envelope, Mode, decode, encode
from transport.wire import Link, Peer, Route, Sent, Wire

R = TypeVar("R", bound=Message)
log = logging.getLogger("supervisor")

_FAILURES: dict[str, type[AskFailed]] = {
    cls.__name__: cls for cls in (AskTimeout, Unreachable, Overloaded, Refused, Crashed)
}
_MAX_RESEND_S = 5.0
_RETRY_S = 0.05
_MAX_RETRY_S = 0.5
REGISTRY = "registry"


class ActorSystem:
    """All actors of one process.

    Args:
        node: name of the host; process: name of this process on it.
        wire: how to reach other processes.
        journals: where the actors of this process keep their streams.
        network: opens data sockets.
        registry: the process that holds the registry; None when it is this one or there is none.
        seed: of every `ctx.rng`.
    """

    def __init__(
        self,
        *,
        node: str,
        process: str,
        wire: Wire,
        journals: JournalStore,
        network: Network,
        incarnations: Incarnations,
        registry: Peer | None = None,
        seed: int = 0,
        limits: Limits | None = None,
    ) -> None:
        self.node = node
        self.process = process
        self.wire = wire
        self.network = network
        self.incarnations = incarnations
        self.seed = seed
        self.limits = limits or Limits()
        self.dead_letters: Counter[str] = Counter()
        self.state_sources: list[Callable[[], list[ActorState]]] = []
        self._journals = journals
        self._registry = registry
        self._cells: dict[str, Cell] = {}
        self._owned: dict[str, list[str]] = {}
        self._pending = PendingAsks()
        self._served = ServedAsks()
        self._resolved: dict[str, Address] = {}
        self._asks = 0
        self._watches = Watches(self)
        self._names_changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._finishing: set[asyncio.Task[None]] = set()
        self._closed = False

    def finish(self, work: Coroutine[object, object, None]) -> None:
        """Run what an ended actor left to close; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    def start(self) -> None:
        """Begin to receive; call once, on the running loop."""
        self.wire.listen(self._on_frames, self._on_link)
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._watches.run(), name="watches"))
        self._tasks.append(loop.create_task(self._keep_registered(), name="leases"))

    async def close(self) -> None:
        """Stop every actor, newest first, then the sockets and the journal."""
        if self._closed:
            return
        self._closed = True
        for name in reversed(list(self._cells)):
            cell = self._cells.get(name)
            if cell is not None:
                await cell.stop(self.limits.stop_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._finishing, return_exceptions=True)
        await self.wire.close()
        await self._journals.close()

    # -- actors of this process --

    def spawn(
        self, name: str, factory: Callable[[], Actor], on_exit: Callable[[Exit], None] | None = None
    ) -> Cell:
        """Start an actor under `name` with a new incarnation; `on_exit` is called once when it ends."""
        if name in self._cells:
            raise ActorError(f"{self.node}/{self.process}: the name {name!r} is taken")
        incarnation = self.incarnations.mint()
        address = Address(
            name=name,
            endpoint=self.wire.local.endpoint,
            public_key=self.wire.local.public_key,
            incarnation=incarnation,
        )

        def ended(exit_: Exit) -> None:
            self._cells.pop(name, None)
            for child in self._owned.pop(name, []):
                if child in self._cells:
                    self._cells[child].crash(Unreachable(f"its owner {name} has ended"))
            self._watches.local_ended(name, incarnation, exit_.cause)
            if on_exit is not None:
                on_exit(exit_)

        cell = Cell(self, address, factory, self.journal(name, incarnation), ended)
        self._cells[name] = cell
        self._names_changed.set()
        return cell

    def journal(self, stream: str, incarnation: int) -> Journal:
        """A stream in this process's store."""
        return Journal(self._journals, stream, incarnation)

    def spawn_owned(self, owner: Cell, name: str, factory: Callable[[], object]) -> Address:
        """See `Context.spawn`."""

        def ended(exit_: Exit) -> None:
            owner.deliver(
                Delivery(Terminated(name=name, incarnation=exit_.incarnation, cause=exit_.cause)), Lane.SYSTEM
            )

        cell = self.spawn(name, cast("Callable[[], Actor]", factory), ended)
        self._owned.setdefault(owner.address.name, []).append(name)
        return cell.address

    def cell(self, name: str) -> Cell | None:
        """The living actor `name` of this process."""
        return self._cells.get(name)

    # -- sending --

    async def tell(self, to: Address | str, message: Message, *, source: Cell | None = None) -> None:
        """See `Context.tell`."""
        if isinstance(to, str):
            name = to
            try:
                to = await self.resolve(name, self.limits.resend_s)
            except AskTimeout:
                self._dead_letter("tell: nobody holds the name", name, message)
                return
        local = self._local(to)
        if local is not None:
            lane = self._lane(local, message)
            if lane is None:
                self._dead_letter("tell: not handled", to.name, message)
            elif local is source:
                local.deliver(Delivery(message), lane)  # waiting for oneself would be for ever
            else:
                await local.mailbox.put(lane, Delivery(message))
            return
        if to.endpoint == self.wire.local.endpoint:
            self._dead_letter("tell: ended", to.name, message)
            return
        frame = self._frame(to, message, Mode.TELL, source=source)
        if self.wire.send(to.peer, [frame]) is not Sent.OK:
            self._dead_letter("tell: link full or gone", to.name, message)

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
        now = asyncio.get_running_loop().time
        deadline = now() + deadline_s
        if source is not None and source.deadline is not None:
            deadline = min(deadline, source.deadline)
        if not key:
            self._asks += 1
            key = f"{self.node}/{self.process}/{self._asks}"
        pause = _RETRY_S
        while True:
            left = deadline - now()
            address: Address | None = None
            try:
                address = await self.resolve(to, left) if isinstance(to, str) else to
                reply = await self._ask_once(address, message, deadline, key, source)
            except Unreachable:
                if isinstance(to, Address):
                    raise
                self._resolved.pop(to, None)
                if deadline - now() <= 0:
                    raise AskTimeout(
                        f"{kind_of(message)} to {to}: unreachable for {deadline_s:.1f} s"
                    ) from None
                await asyncio.sleep(min(pause, max(deadline - now(), 0.0)))
                pause = min(pause * 1.5, _MAX_RETRY_S)
                continue
            if not isinstance(reply, expect):
                raise Crashed(f"{address} answered {kind_of(reply)}, expected {expect.__name__}")
            return reply

    async def _ask_once(
        self, to: Address, message: Message, deadline: float, key: str, source: Cell | None
    ) -> Message:
        loop = asyncio.get_running_loop()
        local = self._local(to)
        corr, future = self._pending.new(to.peer)
        try:
            if local is not None:
                self._admit(
                    local,
                    message,
                    key,
                    deadline,
                    lambda outcome: _ignore(self._pending.resolve(corr, outcome)),
                )
            elif to.endpoint == self.wire.local.endpoint:
                raise Unreachable(f"{to} is not alive")
            resend = self.limits.resend_s
            while True:
                left = deadline - loop.time()
                if left <= 0:
                    raise AskTimeout(f"{kind_of(message)} to {to}: no reply by its deadline")
                if local is None:
                    frame = self._frame(
                        to, message, Mode.ASK, source=source, corr=corr, key=key, deadline_left_s=left
                    )
                    self.wire.send(to.peer, [frame])
                await asyncio.wait([future], timeout=left if local is not None else min(resend, left))
                if future.done():
                    return future.result()
                resend = min(resend * 2, _MAX_RESEND_S)
        finally:
            self._pending.forget(corr)

    async def resolve(self, name: str, deadline_s: float) -> Address:
        """See `Context.resolve`."""
        local = self._cells.get(name)
        if local is not None:
            return local.address
        cached = self._resolved.get(name)
        if cached is not None:
            return cached
        registry = self._registry_address()
        now = asyncio.get_running_loop().time
        deadline = now() + deadline_s
        pause = _RETRY_S
        while True:
            left = deadline - now()
            if registry is None or left <= 0:
                raise AskTimeout(
                    f"nobody holds the name {name!r}" + ("" if registry else " and there is no registry")
                )
            try:
                found = await self.ask(registry, Lookup(name=name), deadline_s=left, expect=Found)
            except Unreachable:
                found = Found(address=None)
            if found.address is not None:
                self._resolved[name] = found.address
                return found.address
            await asyncio.sleep(min(pause, max(deadline - now(), 0.0)))
            pause = min(pause * 1.5, _MAX_RETRY_S)

    def watch(self, address: Address, watcher: Cell) -> None:
        """See `Context.watch`."""
        self._watches.add(address, watcher)

    def send_system(self, to: Peer | Route, message: Message) -> None:
        """A tell to the system of another process."""
        envelope = Envelope(kind=kind_of(message), lane=Lane.SYSTEM, dst=SYSTEM, body=encode_body(message))
        self.wire.send(to, [encode(envelope)])

    # -- receiving --

    def _on_frames(self, route: Route, frames: list[bytes]) -> None:
        if len(frames) != 1:
            self.wire.refuse(route, "wrong-parts", f"{len(frames)} parts, expected 1")
            return
        envelope = decode(frames[0])
        try:
            message = decode_body(envelope.kind, envelope.body)
        except ActorError as problem:
            self.wire.refuse(route, type(problem).__name__, str(problem))
            if envelope.mode is Mode.ASK:
                self._reply(route, envelope, Refused(str(problem)))
            return
        if envelope.mode in (Mode.REPLY, Mode.ERROR):
            outcome: Outcome = message
            if isinstance(message, Failure):
                outcome = _FAILURES.get(message.code, Crashed)(message.text)
            if not self._pending.resolve(envelope.corr, outcome):
                self.dead_letters["reply: late"] += 1
        elif envelope.dst == SYSTEM:
            self._system_message(route, envelope, message)
        else:
            self._deliver(route, envelope, message)

    def _deliver(self, route: Route, envelope: Envelope, message: Message) -> None:
        cell = self._cells.get(envelope.dst)
        stale = cell is not None and envelope.dst_inc not in (ANY_INCARNATION, cell.address.incarnation)
        if cell is None or stale:
            self._dead_letter("stale incarnation" if stale else "no such actor", envelope.dst, message)
            if envelope.mode is Mode.ASK:
                self._reply(
                    route, envelope, Unreachable(f"{envelope.dst}#{envelope.dst_inc} is not alive here")
                )
            return
        if envelope.mode is Mode.ASK:
            deadline = asyncio.get_running_loop().time() + envelope.deadline_left_ms / 1000
            self._admit(
                cell, message, envelope.key, deadline, lambda outcome: self._reply(route, envelope, outcome)
            )
            return
        lane = self._lane(cell, message)
        if lane is None or not cell.deliver(Delivery(message), lane):
            self._dead_letter("not handled" if lane is None else "mailbox full", envelope.dst, message)

    def _admit(
        self, cell: Cell, message: Message, key: str, deadline: float, reply: Callable[[Outcome], None]
    ) -> None:
        now = asyncio.get_running_loop().time()
        receiver = (cell.address.name, cell.address.incarnation)
        answer = self._served.admit(receiver, key, deadline, now, reply)
        if answer is None:
            return
        lane = self._lane(cell, message)
        if lane is None:
            answer(Refused(f"{cell.address} does not handle {kind_of(message)}"))
        else:
            cell.deliver(Delivery(message, deadline, answer), lane)

    def _system_message(self, route: Route, envelope: Envelope, message: Message) -> None:
        if isinstance(message, Watch):
            self.send_system(route, Beat(endpoint=self.wire.local.endpoint))
            self._watches.watched_by(message)
        elif isinstance(message, Beat):
            self._watches.heard(message.endpoint)
        elif isinstance(message, Ended):
            self._watches.remote_ended(message)
        elif isinstance(message, Inspect) and envelope.mode is Mode.ASK:
            self._reply(route, envelope, self.state())
        else:
            self.wire.refuse(route, "not-for-system", kind_of(message))

    def _on_link(self, peer: Peer, link: Link) -> None:
        if link is Link.DOWN:
            self._pending.fail_peer(peer, Unreachable(f"the process at {peer.endpoint} is gone"))
            for name in [name for name, address in self._resolved.items() if address.peer == peer]:
                del self._resolved[name]
            self._watches.link_down(peer.endpoint)

    # -- frames --

    def _frame(
        self,
        to: Address,
        message: Message,
        mode: Mode,
        *,
        source: Cell | None,
        corr: int = 0,
        key: str = "",
        deadline_left_s: float = 0.0,
    ) -> bytes:
        return encode(
            Envelope(
                kind=kind_of(message),
                mode=mode,
                src=source.address.name if source else SYSTEM,
                src_inc=source.address.incarnation if source else 0,
                dst=to.name,
                dst_inc=to.incarnation,
                corr=corr,
                key=key,
                deadline_left_ms=max(1, int(deadline_left_s * 1000)) if mode is Mode.ASK else 0,
                body=encode_body(message),
            )
        )

    def _reply(self, route: Route, ask: Envelope, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            outcome = Failure(code=type(outcome).__name__, text=str(outcome))
        envelope = Envelope(
            kind=kind_of(outcome),
            mode=Mode.ERROR if isinstance(outcome, Failure) else Mode.REPLY,
            src=ask.dst,
            dst=ask.src,
            dst_inc=ask.src_inc,
            corr=ask.corr,
            body=encode_body(outcome),
        )
        if self.wire.send(route, [encode(envelope)]) is not Sent.OK:
            self.dead_letters["reply: link full or gone"] += 1

    def _local(self, to: Address) -> Cell | None:
        if to.endpoint != self.wire.local.endpoint:
            return None
        cell = self._cells.get(to.name)
        if cell is None or to.incarnation not in (ANY_INCARNATION, cell.address.incarnation):
            return None
        return cell

    @staticmethod
    def _lane(cell: Cell, message: Message) -> Lane | None:
        actor = cell.actor
        if actor is None:  # still being built: whatever it is waits for it
            return Lane.USER
        found = type(actor).handler_of(type(message))
        return None if found is None else found[1]

    def _dead_letter(self, reason: str, to: str, message: Message) -> None:
        self.dead_letters[reason] += 1
        log.debug("dead letter (%s): %s to %s", reason, kind_of(message), to)

    # -- leases --

    def _registry_address(self) -> Address | None:
        local = self._cells.get(REGISTRY)
        if local is not None:
            return local.address
        if self._registry is None:
            return None
        return Address(name=REGISTRY, endpoint=self._registry.endpoint, public_key=self._registry.public_key)

    async def _keep_registered(self) -> None:
        """Renew the lease of every name at a third of its life, and at once when a name appears."""
        while True:
            period_s = self.limits.lease_s / 3
            registry = self._registry_address()
            self._names_changed.clear()
            if registry is not None and self._cells:
                names = {name: cell.address.incarnation for name, cell in self._cells.items()}
                local = self.wire.local
                claim = ClaimNames(endpoint=local.endpoint, public_key=local.public_key, names=names)
                try:
                    reply = await self.ask(registry, claim, deadline_s=period_s, expect=LeaseGranted)
                except AskFailed as problem:
                    log.debug("lease not renewed: %s", problem)
                    await asyncio.sleep(_RETRY_S)
                else:
                    self._yield_superseded(reply.superseded)
            try:
                await asyncio.wait_for(self._names_changed.wait(), period_s)
            except TimeoutError:
                continue

    def _yield_superseded(self, superseded: dict[str, int]) -> None:
        for name, holder in superseded.items():
            self.incarnations.at_least(holder)
            cell = self._cells.get(name)
            if cell is not None and cell.address.incarnation < holder:
                cell.crash(Fenced(f"{cell.address} was superseded by incarnation {holder}"))

    async def unregister(self, names: dict[str, int]) -> None:
        """Give names up before their lease ends (an ordered stop, a process seen dead)."""
        registry = self._registry_address()
        if registry is not None:
            await self.tell(registry, Unregister(names=names))

    # -- introspection --

    def state(self) -> SystemState:
        """What this process shows of itself."""
        actors = [
            ActorState(
                name=cell.address.name,
                incarnation=cell.address.incarnation,
                state="running" if cell.started.done() else "starting",
                mailbox=len(cell.mailbox),
                handled=cell.handled,
                dropped=cell.dropped,
                restarts=0,
                last_failure="",
                figures=cell.actor.summary() if cell.actor is not None else {},
            )
            for cell in self._cells.values()
        ]
        known = {actor.name: actor for source in self.state_sources for actor in source()}
        merged = [_with_history(actor, known.pop(actor.name, None)) for actor in actors]
        return SystemState(
            node=self.node,
            process=self.process,
            pid=os.getpid(),
            endpoint=self.wire.local.endpoint,
            actors=[*merged, *known.values()],
            refused=dict(self.wire.refused),
            dead_letters=dict(self.dead_letters),
        )


def _with_history(actor: ActorState, supervised: ActorState | None) -> ActorState:
    if supervised is None:
        return actor
    return ActorState(
        name=actor.name,
        incarnation=actor.incarnation,
        state=actor.state,
        mailbox=actor.mailbox,
        handled=actor.handled,
        dropped=actor.dropped,
        restarts=supervised.restarts,
        last_failure=supervised.last_failure,
        parent=supervised.parent,
        figures=actor.figures,
    )


def _ignore(_value: object) -> None:
    return None
