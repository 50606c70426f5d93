"""Outbound: the sending side of an actor system.

It implements `tell` (at most once) and `ask` (with a deadline, under one key). Owns the asks that have no
answer yet. `names.client` resolves names; `inbound` handles what arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, TypeVar

from gleaner.supervisor.address import Address
from gleaner.supervisor.cell import IN_HAND, Cell, lane_of
from gleaner.supervisor.delivery import Delivery
from gleaner.supervisor.errors import AskTimeout, Crashed, NotAdmitted, Suspended, Unreachable, WaitTimeout
from gleaner.supervisor.inspection.vitals import Recovery
from gleaner.supervisor.message import Message, encode_body, kind_of
from gleaner.supervisor.names.client import MAX_RETRY_S, RETRY_S
from gleaner.supervisor.pending_asks import Outcome, PendingAsk, PendingAsks
from gleaner.supervisor.system_messages import SYSTEM
from gleaner.supervisor.tracing import Tracer
from gleaner.transport.envelope import Lane, Mode, encode
from gleaner.transport.wire import Peer, Route, Sent

if TYPE_CHECKING:
    from gleaner.supervisor.system import ActorSystem

R = TypeVar("R", bound=Message)
MAX_RESEND_S = 5.0
FIRST_LOOK_S, MAX_LOOK_S = 0.05, 0.4
"""Pauses between two lookups of the name of a process that is gone; they grow. A restarted process is up
within a second or two, and then no caller should wait for the time of a re-send."""
SUSPENDED_RETRY_S = 0.5  # a receiver that takes nothing for now checks once a second whether it can
MAILBOX_LATE_S = 10.0  # a mailbox that is full for so long is an event, again each time: its actor is stuck
MAX_PEERS_CACHED = 4096
_NOT_ADMITTED = (
    "does not admit us: it needs keys, and our node.public in its trusted/ (`rlctl trust`), or "
    "we do not trust its key any longer"
)


class _Sent:
    """Awaitable of a `tell` that needs no waiting."""

    def __await__(self) -> Generator[None, None, None]:
        return iter(())  # type: ignore[return-value]


_SENT = _Sent()


class Outbound:
    """See the module; one an actor system."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._pending = PendingAsks()
        system.waits.sources.append(self._pending.waits)
        # Part of every key: a restarted process must not be answered by what its earlier life asked.
        self._key = f"{system.node}/{system.process}#{system.life}/"
        self._asks = 0
        self._times = system.inspection.vitals.asks
        self._recoveries = system.inspection.vitals.recoveries
        self._peers: dict[str, Peer] = {}
        self._gone: set[Peer] = set()  # processes whose last link ended: no `tell` waits for them

    def answered(self, corr: int, outcome: Outcome) -> bool:
        """An answer arrived; False when no caller waits for it any longer."""
        return self._pending.resolve(corr, outcome)

    def peer_gone(self, peer: Peer, *, admitted: bool) -> None:
        """No answer will arrive from this process: it is gone, or it did not admit us."""
        if len(self._gone) >= MAX_PEERS_CACHED:
            self._gone.clear()
        self._gone.add(peer)
        where = f"the process at {peer.endpoint}"
        gone = Unreachable(f"{where} is gone, or does not answer under that key")
        self._pending.fail_peer(peer, gone if admitted else NotAdmitted(f"{where} {_NOT_ADMITTED}"))

    def peer_up(self, peer: Peer) -> None:
        """This process answers (again)."""
        self._gone.discard(peer)

    # -- `tell` --

    def tell(self, to: Address | str, message: Message, *, source: Cell | None = None) -> Awaitable[None]:
        """See `Context.tell`."""
        if isinstance(to, str):
            address = self._system.names.known(to)
            if address is None:
                return self._tell_by_name(to, message, source)
            to = address
        if to.endpoint != self._system.endpoint:
            return self._tell_remote(to, message, source)
        local = self._system.local(to)
        if local is None:
            self._system.dead_letter("tell: ended", to.name, message, _name(source))
            return _SENT
        lane = lane_of(local, message)
        if lane is None:
            self._system.dead_letter("tell: not handled", to.name, message, _name(source))
            return _SENT
        if self._system.tap is not None:
            self._system.tap.seen("local", "tell", _name(source), to.name, message)
        delivery = Delivery(message, None, None, _name(source), self._trace_of_tell(source, to, message))
        # An actor that waited for its own full mailbox would wait for ever: the mailbox refuses instead.
        if local is source:
            local.deliver(delivery, lane)
        elif not local.take(delivery, lane):
            return self._tell_full(local, delivery, lane)
        return _SENT

    async def _tell_by_name(self, name: str, message: Message, source: Cell | None) -> None:
        try:
            to = await self._system.names.resolve(name, self._system.limits.resend_s, _name(source))
        except AskTimeout:
            self._system.dead_letter("tell: no actor holds the name", name, message, _name(source))
            return
        await self.tell(to, message, source=source)

    async def _tell_full(self, to: Cell, delivery: Delivery, lane: Lane) -> None:
        waits, name = self._system.waits, to.address.name
        async with waits.waiting(delivery.source, "room in a mailbox", name, MAILBOX_LATE_S, go_on=True):
            taken = await to.take_waiting(delivery, lane)
        if not taken and isinstance(delivery.message, Message):
            self._system.dead_letter("tell: ended", to.address.name, delivery.message, delivery.source)

    def _tell_remote(self, to: Address, message: Message, source: Cell | None) -> Awaitable[None]:
        trace = self._trace_of_tell(source, to, message)
        if self._system.tap is not None:
            self._system.tap.seen("out", "tell", _name(source), to.name, message)
        packed = self._packed(to, message, Mode.TELL, source, trace)
        sent = self._system.links.send(self._peer(to), packed, tell=True)
        if sent is Sent.NO_CREDIT:
            return self._tell_later(to, message, packed, source)
        if sent is Sent.NO_ROUTE:
            self._system.dead_letter("tell: no route", to.name, message, _name(source))
        return _SENT

    async def _tell_later(self, to: Address, message: Message, packed: bytes, source: Cell | None) -> None:
        """The process is behind: wait until it takes more, as long as it lives."""
        links, peer = self._system.links, self._peer(to)
        waits, limit_s = self._system.waits, self._system.limits.credit_s
        try:
            async with waits.waiting(_name(source), "credit for a message", peer.endpoint, limit_s):
                while peer not in self._gone:
                    await links.room(peer)
                    if peer not in self._gone and links.send(peer, packed, tell=True) is Sent.OK:
                        return
            reason = "tell: process is gone"
        except WaitTimeout:
            reason = "tell: no room in time"
        self._system.dead_letter(reason, to.name, message, _name(source))

    # -- `ask` --

    def ask(
        self,
        to: Address | str,
        message: Message,
        *,
        deadline_s: float,
        expect: type[R],
        key: str = "",
        source: Cell | None = None,
    ) -> Coroutine[object, object, R]:
        """See `Context.ask`."""
        if self._system.tracer is None:
            return self._ask(to, message, deadline_s, expect, key, source, self._trace(source))
        return self._ask_traced(self._system.tracer, to, message, deadline_s, expect, key, source)

    async def _ask_traced(
        self,
        tracer: Tracer,
        to: Address | str,
        message: Message,
        deadline_s: float,
        expect: type[R],
        key: str,
        source: Cell | None,
    ) -> R:
        name = to if isinstance(to, str) else to.name
        span = tracer.ask(_name(source), name, message, self._trace(source))
        try:
            reply = await self._ask(to, message, deadline_s, expect, key, source, span.trace)
        except BaseException as problem:
            span.end(problem)
            raise
        span.end()
        return reply

    async def _ask(
        self,
        to: Address | str,
        message: Message,
        deadline_s: float,
        expect: type[R],
        key: str,
        source: Cell | None,
        trace: str,
    ) -> R:
        now = asyncio.get_running_loop().time
        deadline = now() + deadline_s
        if source is not None and source.deadline is not None and IN_HAND.get() is source:
            deadline = min(deadline, source.deadline)
        pause = RETRY_S
        suspended: Suspended | None = None
        while True:
            address: Address | None
            try:
                if isinstance(to, str):
                    address = self._system.names.known(to)
                    if address is None:
                        address = await self._system.names.resolve(to, deadline - now(), _name(source))
                else:
                    address = to
                if address.endpoint == self._system.endpoint:
                    reply = await self._ask_local(address, message, deadline, key, source, trace)
                else:
                    if not key and not message.QUESTION:
                        self._asks += 1
                        key = f"{self._key}{self._asks}"
                    reply = await self._ask_remote(
                        address, message, deadline, key, source, trace, isinstance(to, str)
                    )
            except Unreachable:
                if isinstance(to, Address):
                    raise
                self._system.names.forget(to)
                if deadline - now() <= 0:
                    raise AskTimeout(
                        f"{kind_of(message)} to {to}: unreachable for {deadline_s:.1f} s"
                    ) from None
                await asyncio.sleep(min(pause, max(deadline - now(), 0.0)))
                pause = min(pause * 2, MAX_RETRY_S)
                continue
            except Suspended as problem:
                if now() + SUSPENDED_RETRY_S >= deadline:
                    raise
                suspended = problem
                await asyncio.sleep(SUSPENDED_RETRY_S)
                continue
            except AskTimeout:
                if suspended is not None:  # its last answer: it takes nothing for now, and why
                    raise suspended from None
                raise
            if not isinstance(reply, expect):
                raise Crashed(f"{address} answered {kind_of(reply)}, expected {expect.__name__}")
            return reply

    async def _ask_local(
        self, to: Address, message: Message, deadline: float, key: str, source: Cell | None, trace: str
    ) -> Message:
        local = self._system.local(to)
        if local is None:
            raise Unreachable(f"{to} is not alive")
        pending = self._new(message, to, None, source, deadline)
        if self._system.tap is not None:
            self._system.tap.seen("local", "ask", pending.source, to.name, message)
        try:
            asker = (b"", pending.corr)
            self._system.inbound.admit(
                local, message, key, deadline, asker, pending.resolve, pending.source, trace
            )
            outcome = await pending.wait(deadline)
        finally:
            self._pending.forget(pending.corr)
        if self._system.tap is not None and isinstance(outcome, Message):
            self._system.tap.seen("local", "reply", to.name, pending.source, outcome)
        return self._result(pending, outcome)

    async def _ask_remote(
        self,
        to: Address,
        message: Message,
        deadline: float,
        key: str,
        source: Cell | None,
        trace: str,
        named: bool,
    ) -> Message:
        now = asyncio.get_running_loop().time
        peer = self._peer(to)
        pending = self._new(message, to, peer, source, deadline)
        if self._system.tap is not None and to.name != SYSTEM:
            self._system.tap.seen("out", "ask", pending.source, to.name, message)
        resend = self._system.limits.resend_s
        try:
            while True:
                left = deadline - now()
                if left <= 0:
                    return self._result(pending, None)
                left_ms = max(1, int(left * 1000))
                packed = self._packed(to, message, Mode.ASK, source, trace, pending.corr, key, left_ms)
                self._system.links.send(peer, packed)
                outcome = await self._answer(pending, min(deadline, now() + resend), named)
                if outcome is None and named and (left := deadline - now()) > 0:
                    await self._look_up_holder(pending, min(resend, left))
                    outcome = pending.outcome
                if outcome is not None:
                    return self._result(pending, outcome)
                self._recoveries[Recovery.ASK_SENT_AGAIN] += 1
                resend = min(resend * 2, MAX_RESEND_S)
        finally:
            self._pending.forget(pending.corr)

    async def _answer(self, pending: PendingAsk, until: float, named: bool) -> Outcome | None:
        """Wait for the answer. If the process that was asked by name is gone, its successor has the name as
        soon as it is up; the registry is asked for it meanwhile. Raises Unreachable."""
        now = asyncio.get_running_loop().time
        look_s = FIRST_LOOK_S
        while named and pending.peer in self._gone and now() + look_s < until:
            outcome = await pending.wait(now() + look_s)
            if outcome is not None:
                return outcome
            await self._look_up_holder(pending, max(0.0, until - now()))
            look_s = min(2 * look_s, MAX_LOOK_S)
        return await pending.wait(until)

    async def _look_up_holder(self, pending: PendingAsk, within_s: float) -> None:
        """Raises Unreachable if the registry names another holder, and no answer arrived meanwhile."""
        held = await self._system.names.still_held(pending.to, within_s)
        if not held and pending.outcome is None:
            raise Unreachable(f"{pending.to} does not hold its name any longer")

    def _new(
        self, message: Message, to: Address, peer: Peer | None, source: Cell | None, deadline: float
    ) -> PendingAsk:
        now = asyncio.get_running_loop().time()
        return self._pending.new(message, to, peer, _name(source), now, deadline)

    def _result(self, pending: PendingAsk, outcome: Outcome | None) -> Message:
        """The result for the caller of an ask, or the error for a missing answer."""
        waited_s = asyncio.get_running_loop().time() - pending.since
        if outcome is None:
            kind = kind_of(pending.message)
            self._system.waits.expire(pending.source, f"answer to {kind}", str(pending.to), waited_s)
            outcome = AskTimeout(f"{kind} to {pending.to}: no reply by its deadline")
        if isinstance(outcome, Exception):
            self._times.fail(outcome)
            raise outcome
        self._times.add(waited_s)
        return outcome

    # -- frames --

    def system_message(self, to: Peer | Route, message: Message) -> None:
        """A `tell` to the system of another process."""
        self._system.links.send(to, encode(kind_of(message), SYSTEM, encode_body(message), Lane.SYSTEM))

    def _peer(self, to: Address) -> Peer:
        peer = self._peers.get(to.endpoint)
        if peer is None or peer.public_key != to.public_key:
            if len(self._peers) >= MAX_PEERS_CACHED:
                self._peers.clear()
            peer = self._peers[to.endpoint] = to.peer
        return peer

    def _trace(self, source: Cell | None) -> str:
        """The trace of the message that `source` handles: messages that it sends meanwhile belong to that
        trace."""
        if source is not None and source.trace and IN_HAND.get() is source:
            return source.trace
        return ""

    def note(self, source: Cell, what: str, facts: Mapping[str, str | int | float]) -> None:
        """See `Context.note`."""
        tracer = self._system.tracer
        if tracer is not None:
            tracer.note(source.address.name, what, facts, self._trace(source))

    def _trace_of_tell(self, source: Cell | None, to: Address, message: Message) -> str:
        trace = self._trace(source)
        tracer = self._system.tracer
        return trace if tracer is None else tracer.tell(_name(source), to.name, message, trace)

    def _packed(
        self,
        to: Address,
        message: Message,
        mode: Mode,
        source: Cell | None,
        trace: str,
        corr: int = 0,
        key: str = "",
        left_ms: int = 0,
    ) -> bytes:
        return encode(
            kind_of(message),
            to.name,
            encode_body(message),
            Lane.USER,
            mode,
            _name(source),
            source.address.incarnation if source is not None else 0,
            to.incarnation,
            corr,
            key,
            left_ms,
            trace,
        )


def _name(source: Cell | None) -> str:
    return source.address.name if source is not None else SYSTEM
