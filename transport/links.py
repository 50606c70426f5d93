"""Links: control links with the delivery guarantees of the actor runtime.

They work over any `Wire`, whatever it drops. Owns the interface to the layer above. The ends of all links are
in `link_table`, received frames are handled in `link_receiver`, and timers in `link_upkeep`.

- Each message of a link is delivered at most once and in order, in both directions; a connection that breaks
  and is restored loses nothing. A link that ends (`Link.DOWN`, `Link.REJECTED`) drops
  what was not acknowledged: whether the peer received it is unknown. It is counted in `lost`.
- Messages of one turn of the loop to the same process leave in one frame; of many asks or answers,
  `session.PROMPT_MESSAGES` at a time leave at once.
- `send` never blocks. NO_CREDIT: the peer is behind (`LinkLimits`). A `tell` also obeys the limit that the
  peer grants: the messages that the layer above has consumed there, plus a window. So a full mailbox there
  stops `tell` messages to that process, but no asks, replies and system messages to it, and nothing to
  another process.
- A process that restarted on the same port is another life: the old link is DOWN, the next send opens one.
"""

import asyncio
import math
from collections import Counter

import msgspec

from gleaner.transport.link_end import LinkLimits
from gleaner.transport.link_receiver import FrameReceiver, OnEnvelope
from gleaner.transport.link_table import LinkTable, OnLink
from gleaner.transport.link_upkeep import RETRY_S, Upkeep
from gleaner.transport.wire import Peer, Route, Sent, Wire

__all__ = ["LinkLimits", "LinkState", "Links", "OnEnvelope", "OnLink"]

_OK = Sent.OK  # looked up for every message


class LinkState(msgspec.Struct, frozen=True):
    """State of one end of a link, for inspection. `where`: the dialled endpoint, or the dialler's route."""

    where: str
    dialled: bool
    state: str
    sent: int
    unacked: int
    tell_room: int
    waiting: int
    received: int
    held: int
    resent: int
    duplicates: int
    gaps: int


class Links:
    """See the module; one a process.

    Args:
        wire: carries the frames; closed with the links.
        life: a number that no earlier life of this process had, 1 to 2^43 - 1; its incarnation.
    """

    def __init__(self, wire: Wire, *, life: int, limits: LinkLimits | None = None) -> None:
        self.limits = limits or LinkLimits()
        self._wire = wire
        self._table = LinkTable(wire, life, self.limits)
        self._ends = self._table.ends
        self._upkeep = Upkeep(self._table)
        self._loop = asyncio.get_running_loop()
        self._closed = False

    @property
    def local(self) -> Peer:
        """Address of this process for others."""
        return self._wire.local

    @property
    def refused(self) -> Counter[str]:
        """Refused input by reason, since the start."""
        return self._wire.refused

    @property
    def lost(self) -> Counter[str]:
        """Messages that an ended link dropped, by reason; whether their receivers had them is not known."""
        return self._table.lost

    @property
    def ended(self) -> Counter[str]:
        """Counters of ended links, by `link_end.COUNTED`."""
        return self._table.ended

    def refuse(self, route: Route, reason: str, detail: str) -> None:
        """Count input that the layer above found unbelievable; logged once for each peer and reason."""
        self._wire.refuse(route, reason, detail)

    def listen(self, on_envelope: OnEnvelope, on_link: OnLink) -> None:
        """Begin to deliver. `on_envelope` returns whether the message is consumed; on False the layer above
        holds it and calls `consumed` later. `on_link` reports dialled peers. Called once."""
        receiver = FrameReceiver(self._table, self._upkeep, on_envelope)
        self._table.on_link = on_link
        self._wire.listen(receiver.on_frames, receiver.on_wire)

    def send(self, to: Peer | Route, envelope: bytes, *, tell: bool = False, answer: bool = False) -> Sent:
        """Send one packed envelope. A `tell` obeys the peer's limit; an `answer` may be acknowledged late.
        Raises `Oversize`."""
        end = self._ends.get(to)
        if end is None:
            end = self._table.dial(to) if isinstance(to, Peer) and not self._closed else None
            if end is None:
                return Sent.NO_ROUTE
        waiting = end.out.offer(envelope, tell, answer)
        if waiting <= 1:
            if waiting == 0:
                return Sent.NO_CREDIT
            if waiting < 0:
                self._upkeep.flush(end)
            else:  # the first one of this turn
                self._upkeep.flush_soon(end)
        return _OK

    async def room(self, to: Peer) -> None:
        """Return when a `tell` to this peer would be accepted, or when its link has ended; waiters return in
        order of arrival."""
        end = self._ends.get(to)
        if end is None or (not end.waiters and end.out.room() > 0):
            return
        waiter = self._loop.create_future()
        end.waiters.append(waiter)
        self._upkeep.look_briskly()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._upkeep.wake(end)  # it was our turn: pass it on
            elif waiter in end.waiters:
                end.waiters.remove(waiter)
            raise

    def consumed(self, route: Route, count: int = 1) -> None:
        """The layer above took `count` messages of this route that it had held."""
        end = self._ends.get(route)
        if end is not None:
            end.into.consumed(count)
            self._upkeep.owe(end, self.limits.ack_delay_s)

    def heard_s(self, at: Peer | Route) -> float:
        """When the newest frame of any kind arrived from the other end (the loop's time); minus infinity
        while it has not answered. The other process's loop makes frames, so that loop was running then."""
        end = self._ends.get(at)
        return end.heard_at_s if end is not None and end.peer_life else -math.inf

    def ask_life(self, peer: Peer) -> bool:
        """Request a frame from the loop of a dialled process; False without a link to it."""
        end = self._ends.get(peer)
        if end is None:
            return False
        if end.ready:
            end.acknowledge(ask=True)
        return True

    def forget(self, peer: Peer) -> None:
        """Drop the link to a dialled peer and what it still had to send, without an event."""
        end = self._ends.get(peer)
        if end is not None:
            self._table.remove(end, "forgotten")

    async def close(self) -> None:
        """Give messages under way a moment, then release everything. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._upkeep.flush_dirty()
        self._upkeep.pay()
        busy = [end for end in self._table.each() if end.ready and end.out.unacked]
        for end in busy:
            end.acknowledge(ask=True)
        for _ in range(int(self.limits.close_s / RETRY_S)):
            if not any(end.ready and end.out.unacked for end in busy):
                break
            await asyncio.sleep(RETRY_S)
        self._upkeep.close()
        for end in self._table.each():
            self._table.remove(end, "closed")
        await self._wire.close()

    def backlogs(self) -> list[tuple[int, int]]:
        """Of every end, the messages that it keeps unacknowledged and those that it holds unconsumed."""
        return [(end.out.unacked, end.into.held) for end in self._table.each()]

    def states(self) -> list[LinkState]:
        """The state of every end, for inspection."""
        return [
            LinkState(
                where=end.peer.endpoint if end.peer else end.route.decode(errors="replace"),
                dialled=end.peer is not None,
                state=end.state.value if end.state else ("up" if end.ready else "dialled"),
                sent=end.out.taken,
                unacked=end.out.unacked,
                tell_room=end.out.room(),
                waiting=len(end.waiters),
                received=end.into.received,
                held=end.into.held,
                resent=end.out.resent,
                duplicates=end.into.duplicates,
                gaps=end.into.gaps,
            )
            for end in self._table.each()
        ]
