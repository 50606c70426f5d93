"""One end of one control link: its two windows, the two lives that it ties together, and who waits for room.

Owns what is said on the link and in which order; `links` owns the table of ends and the timers.
A session begins with HELLO and WELCOME and ends when either side has lost it: numbers start at 1 again only
under a new pair of lives, so nothing is ever delivered twice.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transport import control_frame
from transport.session import START_LIMIT, ReceiveWindow, SendWindow
from transport.wire import Link, Peer, Route, Sent

COUNTED = ("sent", "received", "resent", "duplicates", "gaps")
"""What is summed up over links, also over those that have ended."""


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """What one control link may hold, and its times (seconds).

    Args:
        window: tells that a peer may have sent and the layer above has not consumed.
        max_unacked, max_unacked_bytes: messages kept for a re-send, of every kind; then NO_CREDIT.
        ack_after, ack_bytes: received messages, or bytes, that are acknowledged at once; less travels with
            what goes the other way.
        ack_delay_s: a tell is acknowledged by itself when nothing went the other way for so long. An ask is
            acknowledged by its answer.
        answer_ack_s: the same for an answer: whoever asked now and then asks again, and its next ask
            acknowledges. What is kept meanwhile is bounded by `ack_after` and `ack_bytes`.
        probe_s: without news of what was sent for so long, the other end is asked; of answers alone for
            `answer_ack_s` more. Longer than `ack_delay_s`, or every tell is asked after.
        answer_s: a process that we reached says WELCOME within this time, or the link is DOWN.
        broken_s: a dialler whose connection broke comes back within this time, or its session is dropped.
        silence_s: a dialler that said nothing for so long is looked at, and dropped if it has no route.
        max_sessions: diallers known at a time.
        close_s: time that `close` gives to what is on its way.
    """

    window: int = 1024
    max_unacked: int = 8192
    max_unacked_bytes: int = 32 << 20
    ack_after: int = 256
    ack_bytes: int = 1 << 20
    ack_delay_s: float = 0.2
    answer_ack_s: float = 2.0
    probe_s: float = 0.4
    answer_s: float = 5.0
    broken_s: float = 5.0
    silence_s: float = 30.0
    max_sessions: int = 4096
    close_s: float = 0.2

    def __post_init__(self) -> None:
        if self.window < START_LIMIT:
            raise ValueError(f"window {self.window}: senders begin with {START_LIMIT} tells, grant as many")


class LinkEnd:
    """See the module. `transmit` is `Wire.send`; `life` was never used before, in this process or another."""

    __slots__ = (
        "_limits", "_told_ack", "_told_limit", "_transmit", "acked_at_probe", "asked_at_s", "connected",
        "heard_at_s", "hello_held", "into", "life", "out", "owed_by_s", "owing", "peer", "peer_life",
        "process", "ready", "route", "since_s", "state", "to", "untold_bytes", "waiters",
    )  # fmt: skip

    def __init__(
        self,
        to: Peer | Route,
        transmit: Callable[[Peer | Route, Sequence[bytes]], Sent],
        life: int,
        limits: LinkLimits,
        now_s: float,
    ) -> None:
        self.to = to
        self.peer = to if isinstance(to, Peer) else None  # None: it dialled us
        self.route: Route = b"" if isinstance(to, Peer) else to  # of what it sends
        self.life = life
        self.peer_life = 0
        self.ready = False  # the session stands on the present connection
        self.state: Link | None = None  # what the layer above knows
        self.connected = False  # of a dialled one: what the wire says
        self.hello_held = False  # the first HELLO waits in the wire
        self.since_s = now_s  # the present connection, or its absence
        self.heard_at_s = now_s
        self.asked_at_s = now_s
        self.acked_at_probe = 0
        self.process = 0  # whose session was lost: its WELCOME is to come from the same life; 0: of any
        self.owing = False  # it stands among those whose acknowledgement is timed
        self.owed_by_s = math.inf  # the time by which what was received is to be acknowledged
        self.untold_bytes = 0  # received and not acknowledged
        self.out = SendWindow(limits.max_unacked, limits.max_unacked_bytes)
        self.into = ReceiveWindow(limits.window)
        self.waiters: deque[asyncio.Future[None]] = deque()
        self._limits = limits
        self._transmit = transmit
        self._told_ack = 0
        self._told_limit = START_LIMIT

    def greet(self, now_s: float) -> Sent:
        """HELLO: open the session, or go on with it on a new connection."""
        self.ready = False
        self.asked_at_s = now_s
        hello = control_frame.hello(
            self.life, self.peer_life, self.out.first_unacked, self.into.received, self.into.limit
        )
        return self._tell(hello)

    def excuse(self, stalled_s: float, now_s: float) -> None:
        """This process stood still for so long: that is nobody's silence."""
        self.since_s = min(self.since_s + stalled_s, now_s)
        self.heard_at_s = min(self.heard_at_s + stalled_s, now_s)
        self.asked_at_s = min(self.asked_at_s + stalled_s, now_s)

    def welcome(self) -> Sent:
        """WELCOME: the answer to a HELLO that we believe."""
        return self._tell(
            control_frame.welcome(self.life, self.peer_life, self.into.received, self.into.limit)
        )

    def resume(self) -> bool:
        """The session stands: send what is not acknowledged, then what waits. False: the wire is full."""
        self.ready = True
        self.out.rewind()
        return self.flush()

    def flush(self) -> bool:
        """Send what waits; False when the wire is full and it must be tried again."""
        if not self.ready:
            return True  # goes when the session stands
        out, into = self.out, self.into
        while (batch := out.next_batch()) is not None:
            frame = control_frame.data(self.life, batch.first, into.received, into.limit, batch.envelopes)
            sent = self._transmit(self.to, [frame])
            if sent is Sent.NO_ROUTE:
                self.ready = False
                return True  # goes when the dialler comes back
            if sent is Sent.NO_CREDIT:
                return False
            out.sent()
            self._told()
        return True

    def acknowledge(self, *, again: bool = False, ask: bool = False) -> Sent:
        """ACK, with the question whether all arrived (`ask`), or for a re-send (`again`)."""
        sent = self.out.last_cut if ask else 0
        return self._tell(
            control_frame.ack(self.life, self.into.received, self.into.limit, again=again, sent=sent)
        )

    @property
    def idle(self) -> bool:
        """Whether the session stands, and nothing is on its way that somebody waits for."""
        return self.ready and not self.out.in_flight and not self.waiters

    @property
    def owes(self) -> bool:
        """Whether the other end does not know yet what was received or consumed."""
        return self.into.received != self._told_ack or self.into.limit != self._told_limit

    @property
    def owes_much(self) -> bool:
        """The same, and it may be waiting for it."""
        into = self.into
        return (
            into.received - self._told_ack >= self._limits.ack_after
            or self.untold_bytes >= self._limits.ack_bytes
            or into.limit - self._told_limit >= self._limits.window // 4
        )

    def wake(self) -> bool:
        """Let the longest waiting tellers try, as many as there is room for; True when more wait."""
        room = self.out.room()
        waiters = self.waiters
        while waiters and room > 0:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1
        return bool(waiters)

    def counts(self) -> dict[str, int]:
        """By `COUNTED`, since it was opened."""
        out, into = self.out, self.into
        return dict(
            zip(COUNTED, (out.taken, into.received, out.resent, into.duplicates, into.gaps), strict=True)
        )

    def release(self) -> int:
        """The end: wake everybody. How many messages were never acknowledged."""
        self.ready = False
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
        return self.out.unacked

    def _tell(self, frame: bytes) -> Sent:
        sent = self._transmit(self.to, [frame])
        if sent is Sent.OK:
            self._told()
        return sent

    def _told(self) -> None:
        self._told_ack = self.into.received
        self._told_limit = self.into.limit
        self.owed_by_s = math.inf
        self.untold_bytes = 0
