"""Control links: exactly the delivery that the actor runtime promises, over any `Wire`, whatever that drops.

Owns the ends of all links of a process, the batching of a turn, the timers, and what the layer above hears.

- Each message of a link is delivered at most once and in order, in both directions; a connection that breaks
  and comes back loses nothing. A link that ends (`Link.DOWN`, `Link.REJECTED`) drops
  what was not acknowledged: whether the peer had it is not known. It is counted in `lost`.
- Messages of one turn of the loop to the same process leave in one frame.
- `send` never blocks. NO_CREDIT: the peer is behind (`LinkLimits`). A tell also obeys the limit that the
  peer grants: what its layer above has consumed, and a window; so a full mailbox there stops tells to that
  process, and neither asks, replies and system messages to it, nor anything to another process.
- A process that restarted on the same port is another life: the old link is DOWN, the next send opens one.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from transport import control_frame
from transport.control_frame import NONE, Ack, Data, Gone, Hello, RefusedLink, Welcome
from transport.envelope import Envelope
from transport.link_end import LinkEnd, LinkLimits
from transport.refusal import FrameError, UnknownVersion, WrongParts
from transport.wire import Link, Peer, Route, Sent, Wire

RETRY_S = 0.005  # a wire that was full is tried again after this time
BRISK_S = 0.1  # ends are looked after this often while something is on its way
CALM_S = 10.0  # and this often while all is quiet
LIFE_BITS = 20  # ends that one life of a process may open; the bits above them are the life's

_OK = Sent.OK  # looked up for every message

OnEnvelope = Callable[[Route, Envelope], bool]
OnLink = Callable[[Peer, Link], None]


@dataclass(frozen=True, slots=True)
class LinkState:
    """What one end of a link shows of itself. `where`: the dialled endpoint, or the route of who dialled."""

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
        if not 0 < life < 1 << (63 - LIFE_BITS):
            raise ValueError(f"life {life}: 1 to 2^{63 - LIFE_BITS} - 1 is needed")
        self.limits = limits or LinkLimits()
        self.lost: Counter[str] = Counter()  # messages that an ended link dropped, by reason
        self._wire = wire
        self._next_life = life << LIFE_BITS
        self._ends: dict[Peer | Route, LinkEnd] = {}  # a dialled one stands here twice: by peer and by route
        self._diallers = 0  # ends that others dialled
        self._loop = asyncio.get_running_loop()
        self._on_envelope: OnEnvelope = _nobody
        self._on_link: OnLink = _ignore
        self._dirty: list[LinkEnd] = []  # ends with messages of this turn
        self._owing: list[LinkEnd] = []  # ends that owe an acknowledgement
        self._ack_timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None
        self._brisk = False
        self._closed = False

    @property
    def local(self) -> Peer:
        """Where others reach this process."""
        return self._wire.local

    @property
    def refused(self) -> Counter[str]:
        """Refused input by reason, since the start."""
        return self._wire.refused

    def refuse(self, route: Route, reason: str, detail: str) -> None:
        """Count input that the layer above found unbelievable; logged once for each peer and reason."""
        self._wire.refuse(route, reason, detail)

    def listen(self, on_envelope: OnEnvelope, on_link: OnLink) -> None:
        """Begin to deliver. `on_envelope` answers whether the message is consumed; with False the layer above
        holds it and calls `consumed` later. `on_link` tells of dialled peers. Called once."""
        self._on_envelope = on_envelope
        self._on_link = on_link
        self._wire.listen(self._on_frames, self._on_wire)

    def send(self, to: Peer | Route, envelope: bytes, *, tell: bool = False) -> Sent:
        """Take one packed envelope. A `tell` obeys the peer's limit. Raises `Oversize`."""
        end = self._ends.get(to)
        if end is None:
            end = self._dial(to) if isinstance(to, Peer) and not self._closed else None
            if end is None:
                return Sent.NO_ROUTE
        waiting = end.out.offer(envelope, tell)
        if waiting <= 1:
            if waiting == 0:
                return Sent.NO_CREDIT
            if waiting < 0:
                self._flush(end)
            else:  # the first one of this turn
                self._dirty.append(end)
                if len(self._dirty) == 1:
                    self._loop.call_soon(self._flush_dirty)
        return _OK

    async def room(self, to: Peer) -> None:
        """Return when a tell to this peer would be taken, or when its link has ended; in order of arrival."""
        end = self._ends.get(to)
        if end is None or (not end.waiters and end.out.room() > 0):
            return
        waiter = self._loop.create_future()
        end.waiters.append(waiter)
        self._look_briskly()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake(end)  # it was our turn: pass it on
            elif waiter in end.waiters:
                end.waiters.remove(waiter)
            raise

    def consumed(self, route: Route, count: int = 1) -> None:
        """The layer above took `count` messages of this route that it had held."""
        end = self._ends.get(route)
        if end is not None:
            end.into.consumed(count)
            self._owe(end)

    def forget(self, peer: Peer) -> None:
        """Drop the link to a dialled peer and what it still had to send, without an event."""
        end = self._ends.get(peer)
        if end is not None:
            self._remove(end, "forgotten")

    async def close(self) -> None:
        """Give what is on its way a moment, then release everything. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._flush_dirty()
        busy = [end for end in self._each() if end.ready and end.out.unacked]
        for end in busy:
            end.acknowledge(ask=True)
        for _ in range(int(self.limits.close_s / RETRY_S)):
            if not any(end.ready and end.out.unacked for end in busy):
                break
            await asyncio.sleep(RETRY_S)
        for timer in (self._ack_timer, self._retry_timer, self._watch_timer):
            if timer is not None:
                timer.cancel()
        for end in list(self._each()):
            self._remove(end, "closed")
        await self._wire.close()

    def states(self) -> list[LinkState]:
        """Every end, for whoever looks."""
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
            for end in self._each()
        ]

    # -- what the wire says --

    def _on_frames(self, route: Route, frames: list[bytes]) -> None:
        if len(frames) != 1:
            raise WrongParts(f"{len(frames)} parts, expected 1")
        end = self._ends.get(route)
        if end is None and (peer := self._wire.peer_of(route)) is not None:
            end = self._ends.get(peer)
            if end is not None:  # its first answer: from now on it is found by its route
                end.route = route
                self._ends[route] = end
        try:
            frame = control_frame.decode(frames[0], lambda reason, detail: self.refuse(route, reason, detail))
        except UnknownVersion as error:
            self._other_version(route, end, error)
            raise
        if isinstance(frame, Data) and end is not None and frame.life == end.peer_life:
            self._data(end, frame)
        elif isinstance(frame, Hello):
            self._hello(route, end, frame)
        elif isinstance(frame, RefusedLink):
            if end is not None and end.peer is not None:
                self.refuse(route, UnknownVersion.reason, frame.text[:200])
                self._over(end, Link.REJECTED, "rejected")
        elif end is None:
            if not isinstance(frame, Gone | Welcome):
                self._wire.send(route, [control_frame.gone(frame.life)])
        elif isinstance(frame, Welcome):
            self._welcome(end, frame)
        elif isinstance(frame, Gone):
            if frame.life == end.life:
                self._over(end, Link.DOWN, "peer restarted")
        elif isinstance(frame, Ack) and frame.life == end.peer_life:
            self._ack(end, frame)
        elif end.peer_life:  # else our WELCOME is still to come
            self.refuse(route, "other-life", f"of life {frame.life}, the session is with {end.peer_life}")

    def _data(self, end: LinkEnd, frame: Data) -> None:
        end.heard_at_s = self._loop.time()
        if end.out.acknowledge(frame.ack, frame.limit):
            self._wake(end)
        into, envelopes, route = end.into, frame.envelopes, end.route
        known = into.take(frame.first, len(envelopes))
        if frame.first > into.expected:
            if into.ask_again():
                end.acknowledge(again=True)
            return
        if known:
            envelopes = envelopes[known:]
        deliver = self._on_envelope
        for envelope in envelopes:
            if envelope is NONE:
                continue
            try:
                if not deliver(route, envelope):
                    into.held += 1
            except FrameError as error:
                self.refuse(route, error.reason, str(error))
            except Exception as error:  # noqa: BLE001 (the rest of the batch must not go down with it)
                self._loop.call_exception_handler({"message": "delivery failed", "exception": error})
        if into.held > 2 * into.window:  # who obeys our limit cannot get there
            self.refuse(route, "over-limit", f"{into.held} messages are held, granted were {into.window}")
            self._wire.send(route, [control_frame.gone(frame.life)])
            self._over(end, Link.DOWN, "over limit")
        else:
            self._owe(end)

    def _ack(self, end: LinkEnd, frame: Ack) -> None:
        end.heard_at_s = self._loop.time()
        if end.out.acknowledge(frame.ack, frame.limit):
            self._wake(end)
        if frame.again and end.ready:
            end.out.rewind()
            self._flush(end)
        if frame.sent:
            end.acknowledge(again=frame.sent > end.into.received)

    def _hello(self, route: Route, end: LinkEnd | None, frame: Hello) -> None:
        if self._wire.peer_of(route) is not None:
            raise WrongParts("a listener said hello")
        known = end is not None and end.peer_life == frame.life and frame.peer_life in (0, end.life)
        if end is None or not known:
            if frame.peer_life != 0 or frame.first != 1:
                self._wire.send(route, [control_frame.gone(frame.life)])
                return
            if end is not None:
                self._remove(end, "peer restarted")
            if self._diallers >= self.limits.max_sessions:
                self.refuse(route, "too-many-links", f"{self._diallers} processes have dialled already")
                return
            end = self._open(route)
            end.peer_life = frame.life
        end.heard_at_s = self._loop.time()
        if end.welcome() is Sent.OK:
            end.out.acknowledge(frame.ack, frame.limit)
            self._wake(end)
            if not end.resume():
                self._retry()
        self._look_briskly()

    def _welcome(self, end: LinkEnd, frame: Welcome) -> None:
        if end.peer is None or frame.peer_life != end.life or end.ready:
            return
        if end.peer_life not in (0, frame.life):
            self._over(end, Link.DOWN, "peer restarted")
            return
        end.peer_life = frame.life
        end.heard_at_s = self._loop.time()
        end.out.acknowledge(frame.ack, frame.limit)
        if end.state is not Link.UP:
            end.state = Link.UP
            self._on_link(end.peer, Link.UP)
        if self._ends.get(end.peer) is end:
            self._wake(end)
            if not end.resume():
                self._retry()

    def _other_version(self, route: Route, end: LinkEnd | None, error: UnknownVersion) -> None:
        if end is not None and end.peer is not None:
            self._over(end, Link.REJECTED, "rejected")
        elif self._wire.peer_of(route) is None:
            self._wire.send(route, [control_frame.refused(str(error))])

    def _on_wire(self, peer: Peer, link: Link) -> None:
        end = self._ends.get(peer)
        if end is None:
            return
        end.since_s = self._loop.time()
        if link in (Link.DOWN, Link.REJECTED):
            self._over(end, link, link.value)
        elif link is Link.SUSPECT:
            end.ready = end.connected = False
            if end.state is Link.UP:
                end.state = Link.SUSPECT
                self._on_link(peer, Link.SUSPECT)
        else:
            end.connected = True
            if end.hello_held:
                end.hello_held = False  # the wire sends it now
            else:
                end.greet(end.since_s)
            self._look_briskly()

    # -- ends --

    def _dial(self, peer: Peer) -> LinkEnd | None:
        end = self._open(peer)
        if end.greet(self._loop.time()) is Sent.OK:
            end.hello_held = True
            return end
        self._remove(end, "cannot dial")
        return None

    def _open(self, to: Peer | Route) -> LinkEnd:
        self._next_life += 1
        end = LinkEnd(to, self._wire.send, self._next_life, self.limits, self._loop.time())
        self._ends[to] = end
        self._diallers += end.peer is None
        return end

    def _over(self, end: LinkEnd, link: Link, reason: str) -> None:
        self._remove(end, reason)
        if end.peer is not None:
            self._on_link(end.peer, link)

    def _remove(self, end: LinkEnd, reason: str) -> None:
        if self._ends.pop(end.to, None) is None:
            return
        self._ends.pop(end.route, None)
        self._diallers -= end.peer is None
        if dropped := end.release():
            self.lost[reason] += dropped
        if end.peer is not None:
            self._wire.forget(end.peer)

    def _each(self) -> list[LinkEnd]:
        return [end for key, end in self._ends.items() if key == end.to]

    # -- what this process does on its own --

    def _flush_dirty(self) -> None:
        dirty, self._dirty = self._dirty, []
        for end in dirty:
            self._flush(end)

    def _flush(self, end: LinkEnd) -> None:
        if not end.flush():
            self._retry()
        if not self._brisk:
            self._look_briskly()

    def _retry(self) -> None:
        if self._retry_timer is None:
            self._retry_timer = self._loop.call_later(RETRY_S, self._flush_all)

    def _flush_all(self) -> None:
        self._retry_timer = None
        for end in self._each():
            self._flush(end)

    def _wake(self, end: LinkEnd) -> None:
        # Whoever was woken may have given up: look again behind them, until the room is used.
        if end.waiters and end.wake() and end.out.room() > 0:
            self._loop.call_soon(self._wake, end)

    def _owe(self, end: LinkEnd) -> None:
        if end.owes_much:
            end.acknowledge()
        elif not end.owing and end.owes:
            end.owing = True
            self._owing.append(end)
            if self._ack_timer is None:
                self._ack_timer = self._loop.call_later(self.limits.ack_delay_s, self._acknowledge)

    def _acknowledge(self) -> None:
        self._ack_timer = None
        owing, self._owing = self._owing, []
        for end in owing:
            end.owing = False
            if end.owes and end.acknowledge() is Sent.NO_CREDIT:
                self._owe(end)

    def _look_briskly(self) -> None:
        if not self._brisk and not self._closed:
            self._brisk = True
            if self._watch_timer is not None:
                self._watch_timer.cancel()
            self._watch_timer = self._loop.call_later(BRISK_S, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        busy = [self._look_after(end, now) for end in self._each()]
        self._brisk = any(busy)
        self._watch_timer = (
            self._loop.call_later(BRISK_S if self._brisk else CALM_S, self._look) if busy else None
        )

    def _look_after(self, end: LinkEnd, now: float) -> bool:
        """Ask, greet again or give up; whether the end must be looked after soon again."""
        limits = self.limits
        if not end.ready:
            return self._look_after_silent(end, now)
        end.since_s = now
        if end.out.in_flight or end.waiters:
            if end.out.first_unacked != end.acked_at_probe:
                end.acked_at_probe = end.out.first_unacked
                end.asked_at_s = now
            elif now - end.asked_at_s >= limits.probe_s:
                end.asked_at_s = now
                end.acknowledge(ask=True)
        elif end.peer is None and now - end.heard_at_s > limits.silence_s:
            end.heard_at_s = now
            if end.acknowledge() is Sent.NO_ROUTE:
                self._remove(end, "route gone")
        return end.out.unacked > 0 or bool(end.waiters)

    def _look_after_silent(self, end: LinkEnd, now: float) -> bool:
        silent_s = now - end.since_s
        if end.peer is None:
            if silent_s > self.limits.broken_s:
                self._remove(end, "route gone")
        elif not end.connected:
            return False  # the wire has its own deadlines and tells
        elif silent_s > self.limits.answer_s:
            self.refuse(
                end.peer.endpoint.encode(), "no-welcome", f"no answer to our HELLO for {silent_s:.1f} s"
            )
            self._over(end, Link.DOWN, "no welcome")
        elif now - end.asked_at_s >= self.limits.probe_s:
            end.greet(now)
        return True


def _nobody(_route: Route, _envelope: Envelope) -> bool:
    return True


def _ignore(_peer: Peer, _link: Link) -> None:
    return None
