"""Inbound: the receiving side of an actor system, from envelopes to mailboxes.

Owns the answers that are kept for repeated asks, and the `tell` messages that found a full mailbox. They are
held here, and the link grants their sender no more than its window. Invalid input is refused and counted;
nothing that arrives raises out of the wire.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from gleaner.supervisor.address import ANY_INCARNATION
from gleaner.supervisor.cell import Cell, lane_of
from gleaner.supervisor.delivery import Delivery
from gleaner.supervisor.errors import (
    ActorError,
    AskFailed,
    AskTimeout,
    Crashed,
    Overloaded,
    Refused,
    Suspended,
    Unreachable,
)
from gleaner.supervisor.inspection.vitals import Recovery
from gleaner.supervisor.message import Message, decode_body, encode_body, kind_of
from gleaner.supervisor.pending_asks import Asker, Outcome, ServedAsks
from gleaner.supervisor.system_messages import SYSTEM, Ended, Failure, Heartbeat, LinkActors, Watch
from gleaner.transport.envelope import Envelope, Lane, Mode, encode
from gleaner.transport.wire import Link, Peer, Route, Sent

if TYPE_CHECKING:
    from gleaner.supervisor.system import ActorSystem

_FAILURES: dict[str, type[AskFailed]] = {
    cls.__name__: cls for cls in (AskTimeout, Unreachable, Overloaded, Refused, Suspended, Crashed)
}


class Inbound:
    """See the module; one an actor system."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._served = ServedAsks()
        self._held: dict[Cell, deque[tuple[Route, Delivery]]] = {}

    def on_envelope(self, route: Route, envelope: Envelope) -> bool:
        """One message of a link; False while it is held here."""
        try:
            message = decode_body(envelope.kind, envelope.body)
        except ActorError as problem:
            self._system.wire.refuse(route, type(problem).__name__, str(problem))
            if envelope.mode is Mode.ASK:
                self._reply(route, envelope, Refused(str(problem)))
            return True
        if envelope.mode in (Mode.REPLY, Mode.ERROR):
            outcome: Outcome = message
            if isinstance(message, Failure):
                outcome = _FAILURES.get(message.code, Crashed)(message.text)
            if self._system.tap is not None and envelope.src != SYSTEM:
                self._system.tap.seen("in", envelope.mode.name.lower(), envelope.src, envelope.dst, message)
            if not self._system.outbound.answered(envelope.corr, outcome):
                self._system.dead_letter("reply: late", envelope.dst, message, envelope.src)
        elif envelope.dst == SYSTEM:
            self._system_message(route, envelope, message)
        else:
            if self._system.tap is not None:
                self._system.tap.seen("in", envelope.mode.name.lower(), envelope.src, envelope.dst, message)
            return self._deliver(route, envelope, message)
        return True

    def _deliver(self, route: Route, envelope: Envelope, message: Message) -> bool:
        cell = self._system.cell(envelope.dst)
        stale = cell is not None and envelope.dst_inc not in (ANY_INCARNATION, cell.address.incarnation)
        if (
            stale
            and envelope.mode is Mode.ASK
            and envelope.key
            and self._served.join(
                (envelope.dst, envelope.dst_inc),
                envelope.key,
                (route, envelope.corr),
                lambda outcome: self._reply(route, envelope, outcome),
            )
        ):
            return True  # a repetition of one that the next life took over
        if cell is None or stale:
            reason = "stale incarnation" if stale else "no such actor"
            self._system.dead_letter(reason, envelope.dst, message, envelope.src)
            if envelope.mode is Mode.ASK:
                self._reply(
                    route, envelope, Unreachable(f"{envelope.dst}#{envelope.dst_inc} is not alive here")
                )
            return True
        if envelope.mode is Mode.ASK:
            deadline = asyncio.get_running_loop().time() + envelope.deadline_left_ms / 1000
            self.admit(
                cell,
                message,
                envelope.key,
                deadline,
                (route, envelope.corr),
                lambda outcome: self._reply(route, envelope, outcome),
                envelope.src,
                envelope.trace,
            )
            return True
        lane = lane_of(cell, message)
        delivery = Delivery(message, None, None, envelope.src, envelope.trace)
        if lane is Lane.USER:
            if (not self._held or cell not in self._held) and cell.take(delivery, lane):
                return True
            self._hold(cell, route, delivery)
            return False
        if lane is None or not cell.deliver(delivery, lane):
            reason = "not handled" if lane is None else "mailbox full"
            self._system.dead_letter(reason, envelope.dst, message, envelope.src)
        return True

    def _hold(self, cell: Cell, route: Route, delivery: Delivery) -> None:
        held = self._held.get(cell)
        if held is None:
            held = self._held[cell] = deque()
            cell.mailbox.when_room(lambda: self._let_in(cell))
        held.append((route, delivery))

    def _let_in(self, cell: Cell) -> None:
        cell = cell.latest()
        held = self._held.get(cell)
        if held is None:
            return
        while held and cell.alive:
            route, delivery = held[0]
            if not cell.take(delivery, Lane.USER):
                cell.mailbox.when_room(lambda: self._let_in(cell))
                return
            held.popleft()
            self._system.links.consumed(route)
        del self._held[cell]
        for route, delivery in held:
            self._system.dead_letters.add(
                "its actor ended", cell.address.name, type(delivery.message).__name__, delivery.source
            )
            self._system.links.consumed(route)

    def admit(
        self,
        cell: Cell,
        message: Message,
        key: str,
        deadline: float,
        asker: Asker,
        reply: Callable[[Outcome], None],
        source: str,
        trace: str,
    ) -> None:
        """Pass an ask to its actor, once: a repetition under the same key gets the first one's answer."""
        if key:
            now = asyncio.get_running_loop().time()
            receiver = (cell.address.name, cell.address.incarnation)
            answer = self._served.admit(receiver, key, deadline, now, asker, reply)
            if answer is None:
                self._system.inspection.vitals.recoveries[Recovery.ASK_REPEATED] += 1
                return
        else:
            answer = reply
        lane = lane_of(cell, message)
        if lane is None:
            answer(Refused(f"{cell.address} does not handle {kind_of(message)}"))
        elif cell in self._held and lane is Lane.USER:
            cell.dropped += 1
            answer(Overloaded(f"{cell.address}: {len(cell.mailbox)} messages wait, and more in front of it"))
        else:
            cell.deliver(Delivery(message, deadline, answer, source, trace), lane)

    def inherit(self, old: Cell, new: Cell) -> None:
        """`new` has taken over the waiting messages of `old`: repeated asks among them stay repetitions."""
        before, after = old.address, new.address
        self._served.inherit((before.name, before.incarnation), (after.name, after.incarnation))
        if (held := self._held.pop(old, None)) is not None:
            self._held[new] = held

    def _system_message(self, route: Route, envelope: Envelope, message: Message) -> None:
        if isinstance(message, Watch):
            self._system.watches.watched_by(message, route)
        elif isinstance(message, Ended):
            self._system.watches.remote_ended(message)
        elif isinstance(message, Heartbeat):
            self._system.health.beat(message.pid)
        elif isinstance(message, LinkActors):
            self._system.linking.asked(message)
        else:
            self._look(route, envelope, message)

    def _look(self, route: Route, envelope: Envelope, message: Message) -> None:
        try:
            answer = self._system.inspection.answer(message) if envelope.mode is Mode.ASK else None
        except Refused as refusal:
            self._reply(route, envelope, refusal)
            return
        if answer is None:
            self._system.wire.refuse(route, "not-for-system", kind_of(message))
        else:
            self._reply(route, envelope, answer)

    def on_link(self, peer: Peer, link: Link) -> None:
        """The state of a dialled process changed."""
        if link in (Link.DOWN, Link.REJECTED):
            self._system.outbound.peer_gone(peer, admitted=link is Link.DOWN)
            self._system.names.forget_peer(peer)
            self._system.watches.link_down(peer.endpoint)
        else:
            if link is Link.UP:
                self._system.outbound.peer_up(peer)
            self._system.watches.link_broken(peer.endpoint, link is Link.SUSPECT)

    def _reply(self, route: Route, ask: Envelope, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            outcome = Failure(code=type(outcome).__name__, text=str(outcome))
        mode = Mode.ERROR if isinstance(outcome, Failure) else Mode.REPLY
        packed = encode(
            kind_of(outcome),
            ask.src,
            encode_body(outcome),
            mode=mode,
            src=ask.dst,
            dst_inc=ask.src_inc,
            corr=ask.corr,
        )
        if self._system.tap is not None and ask.dst != SYSTEM:
            self._system.tap.seen("out", mode.name.lower(), ask.dst, ask.src, outcome)
        if self._system.links.send(route, packed, answer=True) is not Sent.OK:
            self._system.dead_letter("reply: link full or gone", ask.src, outcome, ask.dst)
