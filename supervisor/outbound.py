"""Outbound: the sending side of an actor system.

It implements `tell` (at most once); `outbound_asks` implements `ask`. `names.client` resolves names;
`inbound` handles what arrives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, TypeVar

from gleaner.supervisor.address import Address
from gleaner.supervisor.cell import Cell, lane_of
from gleaner.supervisor.delivery import Delivery
from gleaner.supervisor.errors import AskTimeout, NotAdmitted, Unreachable, WaitTimeout
from gleaner.supervisor.message import Message, encode_body, kind_of
from gleaner.supervisor.outbound_asks import OutboundAsks
from gleaner.supervisor.outbound_frames import OutboundFrames, name_of
from gleaner.supervisor.pending_asks import Outcome
from gleaner.supervisor.system_messages import SYSTEM
from gleaner.transport.envelope import Lane, Mode, encode
from gleaner.transport.wire import Peer, Route, Sent

if TYPE_CHECKING:
    from gleaner.supervisor.system import ActorSystem

R = TypeVar("R", bound=Message)
MAILBOX_LATE_S = 10.0  # a mailbox that is full for so long is an event, again each time: its actor is stuck
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
        self._frames = OutboundFrames(system)
        self._asks = OutboundAsks(system, self._frames)

    def answered(self, corr: int, outcome: Outcome) -> bool:
        """An answer arrived; False when no caller waits for it any longer."""
        return self._asks.answered(corr, outcome)

    def peer_gone(self, peer: Peer, *, admitted: bool) -> None:
        """No answer will arrive from this process: it is gone, or it did not admit us."""
        self._frames.lose(peer)
        where = f"the process at {peer.endpoint}"
        gone = Unreachable(f"{where} is gone, or does not answer under that key")
        self._asks.fail(peer, gone if admitted else NotAdmitted(f"{where} {_NOT_ADMITTED}"))

    def peer_up(self, peer: Peer) -> None:
        """This process answers (again)."""
        self._frames.found(peer)

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
        return self._asks.ask(to, message, deadline_s=deadline_s, expect=expect, key=key, source=source)

    def note(self, source: Cell, what: str, facts: Mapping[str, str | int | float]) -> None:
        """See `Context.note`."""
        tracer = self._system.tracer
        if tracer is not None:
            tracer.note(source.address.name, what, facts, self._frames.trace(source))

    def system_message(self, to: Peer | Route, message: Message) -> None:
        """A `tell` to the system of another process."""
        self._system.links.send(to, encode(kind_of(message), SYSTEM, encode_body(message), Lane.SYSTEM))

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
            self._system.dead_letter("tell: ended", to.name, message, name_of(source))
            return _SENT
        lane = lane_of(local, message)
        if lane is None:
            self._system.dead_letter("tell: not handled", to.name, message, name_of(source))
            return _SENT
        if self._system.tap is not None:
            self._system.tap.seen("local", "tell", name_of(source), to.name, message)
        delivery = Delivery(
            message, None, None, name_of(source), self._frames.trace_of_tell(source, to, message)
        )
        # An actor that waited for its own full mailbox would wait for ever: the mailbox refuses instead.
        if local is source:
            local.deliver(delivery, lane)
        elif not local.take(delivery, lane):
            return self._tell_full(local, delivery, lane)
        return _SENT

    async def _tell_by_name(self, name: str, message: Message, source: Cell | None) -> None:
        try:
            to = await self._system.names.resolve(name, self._system.limits.resend_s, name_of(source))
        except AskTimeout:
            self._system.dead_letter("tell: no actor holds the name", name, message, name_of(source))
            return
        await self.tell(to, message, source=source)

    async def _tell_full(self, to: Cell, delivery: Delivery, lane: Lane) -> None:
        waits, name = self._system.waits, to.address.name
        async with waits.waiting(delivery.source, "room in a mailbox", name, MAILBOX_LATE_S, go_on=True):
            taken = await to.take_waiting(delivery, lane)
        if not taken and isinstance(delivery.message, Message):
            self._system.dead_letter("tell: ended", to.address.name, delivery.message, delivery.source)

    def _tell_remote(self, to: Address, message: Message, source: Cell | None) -> Awaitable[None]:
        trace = self._frames.trace_of_tell(source, to, message)
        if self._system.tap is not None:
            self._system.tap.seen("out", "tell", name_of(source), to.name, message)
        packed = self._frames.packed(to, message, Mode.TELL, source, trace)
        sent = self._system.links.send(self._frames.peer(to), packed, tell=True)
        if sent is Sent.NO_CREDIT:
            return self._tell_later(to, message, packed, source)
        if sent is Sent.NO_ROUTE:
            self._system.dead_letter("tell: no route", to.name, message, name_of(source))
        return _SENT

    async def _tell_later(self, to: Address, message: Message, packed: bytes, source: Cell | None) -> None:
        """The process is behind: wait until it takes more, as long as it lives."""
        links, peer = self._system.links, self._frames.peer(to)
        waits, limit_s = self._system.waits, self._system.limits.credit_s
        try:
            async with waits.waiting(name_of(source), "credit for a message", peer.endpoint, limit_s):
                while not self._frames.gone(peer):
                    await links.room(peer)
                    if not self._frames.gone(peer) and links.send(peer, packed, tell=True) is Sent.OK:
                        return
            reason = "tell: process is gone"
        except WaitTimeout:
            reason = "tell: no room in time"
        self._system.dead_letter(reason, to.name, message, name_of(source))
