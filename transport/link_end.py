"""LinkEnd: one end of a control link, with its two windows and waiting senders.

Owns which messages are sent on the link and in which order, and the two lives that the link connects; `links`
owns the table of ends and the timers. A session begins with HELLO and WELCOME and ends when either side has
lost it. Numbers start at 1 again only under a new pair of lives, so nothing is ever delivered twice.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gleaner.transport import control_frame
from gleaner.transport.session import START_LIMIT, ReceiveWindow, SendWindow
from gleaner.transport.wire import Link, Peer, Route, Sent

COUNTED = ("sent", "received", "resent", "duplicates", "gaps")
"""Counters that are summed up over links, also over those that have ended."""


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Limits of one control link, and its times (seconds).

    Args:
        window: `tell` messages that a peer may have sent and the layer above has not consumed.
        max_unacked, max_unacked_bytes: messages kept for a re-send, of every kind; then NO_CREDIT.
        ack_after, ack_bytes: received messages, or bytes, that are acknowledged at once; less travels with
            the traffic in the other direction.
        ack_delay_s: a `tell` is acknowledged by a frame of its own after so long without traffic in the other
            direction. An ask is acknowledged by its answer.
        answer_ack_s: the same for an answer: a process that asked is likely to ask again, and its next ask
            acknowledges. Until then `ack_after` and `ack_bytes` bound what is kept.
        probe_s: after so long without an acknowledgement the other end is probed; `answer_ack_s` later if
            only answers are unacknowledged. Longer than `ack_delay_s`, or every `tell` would cause a probe.
        answer_s: a process that we reached sends WELCOME within this time, or the link is DOWN.
        broken_s: a dialler whose connection broke reconnects within this time, or its session is dropped.
        silence_s: a dialler that was silent for so long is probed, and dropped if it has no route.
        max_sessions: diallers known at a time.
        close_s: time that `close` gives to messages under way.
    """

    window: int = 1024
    max_unacked: int = 8192
    max_unacked_bytes: int = 32 << 20
    ack_after: int = 256
    ack_bytes: int = 1 << 20
    ack_delay_s: float = 0.2
    answer_ack_s: float = 10.0
    probe_s: float = 0.4
    answer_s: float = 5.0
    broken_s: float = 5.0
    silence_s: float = 30.0
    max_sessions: int = 4096
    close_s: float = 0.2

    def __post_init__(self) -> None:
        if self.window < START_LIMIT:
            raise ValueError(
                f"window {self.window}: senders begin with {START_LIMIT} messages, grant as many"
            )


class LinkEnd:
    """See the module. `transmit` is `Wire.send`; `life` was never used before, in this process or another."""

    __slots__ = (
        "_limits",
        "_sent_ack",
        "_sent_limit",
        "_transmit",
        "ack_by_s",
        "acked_at_probe",
        "asked_at_s",
        "connected",
        "heard_at_s",
        "hello_held",
        "into",
        "life",
        "out",
        "owing",
        "peer",
        "peer_life",
        "process",
        "ready",
        "route",
        "since_s",
        "state",
        "to",
        "untold_bytes",
        "waiters",
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
        self.route: Route = b"" if isinstance(to, Peer) else to  # route of the frames that it sends
        self.life = life
        self.peer_life = 0
        self.ready = False  # the session is open on the present connection
        self.state: Link | None = None  # state as the layer above knows it
        self.connected = False  # of a dialled end: the state that the wire reported
        self.hello_held = False  # the first HELLO waits in the wire
        self.since_s = now_s  # the present connection, or its absence
        self.heard_at_s = now_s
        self.asked_at_s = now_s
        self.acked_at_probe = 0
        self.process = 0  # the process whose session was lost: WELCOME must be from that one; 0: from any
        self.owing = False  # it is in the list of ends with a timed acknowledgement
        self.ack_by_s = math.inf  # deadline of the acknowledgement of received messages
        self.untold_bytes = 0  # received and not acknowledged
        self.out = SendWindow(limits.max_unacked, limits.max_unacked_bytes)
        self.into = ReceiveWindow(limits.window)
        self.waiters: deque[asyncio.Future[None]] = deque()
        self._limits = limits
        self._transmit = transmit
        self._sent_ack = 0
        self._sent_limit = START_LIMIT

    def greet(self, now_s: float) -> Sent:
        """HELLO: open the session, or continue it on a new connection."""
        self.ready = False
        self.asked_at_s = now_s
        hello = control_frame.hello(
            self.life, self.peer_life, self.out.first_unacked, self.into.received, self.into.limit
        )
        return self._tell(hello)

    def excuse(self, stalled_s: float, now_s: float) -> None:
        """This process was stalled for so long: do not count that time as silence of the peer."""
        self.since_s = min(self.since_s + stalled_s, now_s)
        self.heard_at_s = min(self.heard_at_s + stalled_s, now_s)
        self.asked_at_s = min(self.asked_at_s + stalled_s, now_s)

    def welcome(self) -> Sent:
        """WELCOME: the answer to a HELLO that we believe."""
        return self._tell(
            control_frame.welcome(self.life, self.peer_life, self.into.received, self.into.limit)
        )

    def resume(self) -> bool:
        """The session is open: send the unacknowledged messages, then the waiting ones. False: the wire is
        full."""
        self.ready = True
        self.out.rewind()
        return self.flush()

    def flush(self) -> bool:
        """Send the waiting messages; False when the wire is full and it must be tried again."""
        if not self.ready:
            return True  # they are sent once the session is open
        out, into = self.out, self.into
        while (batch := out.next_batch()) is not None:
            frame = control_frame.data(self.life, batch.first, into.received, into.limit, batch.envelopes)
            sent = self._transmit(self.to, [frame])
            if sent is Sent.NO_ROUTE:
                self.ready = False
                return True  # they are sent once the dialler reconnects
            if sent is Sent.NO_CREDIT:
                return False
            out.sent()
            self._ack_sent()
        return True

    def acknowledge(self, *, again: bool = False, ask: bool = False) -> Sent:
        """ACK; with `ask` it queries whether all arrived, with `again` it requests a re-send."""
        sent = self.out.last_cut if ask else 0
        return self._tell(
            control_frame.ack(self.life, self.into.received, self.into.limit, again=again, sent=sent)
        )

    @property
    def idle(self) -> bool:
        """Whether the session is open, with no message in flight and no waiter."""
        return self.ready and not self.waiters and not self.out.in_flight

    @property
    def ack_due(self) -> bool:
        """Whether something was received or consumed that is not acknowledged yet."""
        into = self.into
        received = into.expected - 1  # as `into.received` and `into.limit`: this runs for every frame
        return received != self._sent_ack or received - into.held + into.window != self._sent_limit

    @property
    def ack_overdue(self) -> bool:
        """The same, and it may be waiting for it."""
        into, limits = self.into, self._limits
        received = into.expected - 1
        return (
            received - self._sent_ack >= limits.ack_after
            or self.untold_bytes >= limits.ack_bytes
            or received - into.held + into.window - self._sent_limit >= limits.window // 4
        )

    def wake(self) -> bool:
        """Wake the longest waiting senders, as many as there is free capacity; True when more wait."""
        room = self.out.room()
        waiters = self.waiters
        while waiters and room > 0:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1
        return bool(waiters)

    def counts(self) -> dict[str, int]:
        """Counters by `COUNTED`, since it was opened."""
        out, into = self.out, self.into
        return dict(
            zip(COUNTED, (out.taken, into.received, out.resent, into.duplicates, into.gaps), strict=True)
        )

    def release(self) -> int:
        """The end: wake all waiting senders. Returns how many messages were never acknowledged."""
        self.ready = False
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
        return self.out.unacked

    def _tell(self, frame: bytes) -> Sent:
        sent = self._transmit(self.to, [frame])
        if sent is Sent.OK:
            self._ack_sent()
        return sent

    def _ack_sent(self) -> None:
        into = self.into
        received = self._sent_ack = into.expected - 1
        self._sent_limit = received - into.held + into.window
        self.ack_by_s = math.inf
        self.untold_bytes = 0
