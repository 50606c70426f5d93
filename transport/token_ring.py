"""SendRing and ReceiveCursor: both ends of a token stream as pure state machines.

They have no socket, no clock and no log. They own which frame may be sent, delivered, dropped or requested
again. The law that they keep together over any loss, duplication and reconnection: every frame is delivered
in order and once in a receiver's life, and an acknowledged frame is never needed again. `token_stream` puts
sockets around them.
"""

import enum
from collections import deque
from typing import Generic, TypeVar

from gleaner.transport.refusal import BadField, FrameError

Payload = TypeVar("Payload")

# answers in a row without an acknowledged frame, after which the sender accepts that it is lost
BEHIND_LIMIT = 8


class LostByReceiver(FrameError):
    """The receiver lacks frames that it acknowledged: they are gone from the ring."""

    reason = "lost-by-receiver"


class SendRing(Generic[Payload]):
    """The sender's end: unacknowledged frames with the sequence numbers acked+1 .. last_seq.

    Nothing is sent before the receiver reported what it has (`live`), nor beyond `acked + window`.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.acked = 0
        self.next_seq = 1  # number of the next frame to send
        self.window = 0
        self.live = False
        self._frames: deque[Payload] = deque()
        self._behind = 0
        self.resent = 0  # frames that were given to a connection again

    @property
    def last_seq(self) -> int:
        """The newest frame's number; 0 before the first."""
        return self.acked + len(self._frames)

    @property
    def unacknowledged(self) -> int:
        """Frames in the ring."""
        return len(self._frames)

    @property
    def full(self) -> bool:
        """No frame is taken now."""
        return len(self._frames) >= self.capacity

    @property
    def sent(self) -> int:
        """The newest frame that was given to the connection."""
        return self.next_seq - 1

    def push(self, payload: Payload) -> None:
        """Append the frame `last_seq + 1`. The caller has checked `full`."""
        assert not self.full
        self._frames.append(payload)

    def sendable(self) -> Payload | None:
        """The frame to send next, if one may be sent; then call `advance`."""
        if not self.live or self.next_seq > min(self.last_seq, self.acked + self.window):
            return None
        return self._frames[self.next_seq - self.acked - 1]

    def advance(self) -> None:
        """The connection took the frame from `sendable`."""
        self.next_seq += 1

    def disconnected(self) -> None:
        """Require a new hello before anything else is sent."""
        self.live = False

    def have(self, acked: int, delivered: int, sent: int, window: int) -> None:
        """The answer to a hello that reported `sent`. Frames sent before the hello and not received were
        lost, and are sent again. Raises `BadField` or `LostByReceiver`."""
        if delivered > self.last_seq or acked > delivered:
            raise BadField(f"have {acked}/{delivered}, but the last frame is {self.last_seq}")
        self._behind = self._behind + 1 if delivered < self.acked else 0
        if self._behind >= BEHIND_LIMIT:
            raise LostByReceiver(f"the receiver has {delivered} and had acknowledged {self.acked}")
        self.window = window
        self.acknowledge(acked)
        if not self.live or delivered < sent:
            self._begin_at(max(delivered, self.acked) + 1)
        self.live = True

    def acknowledge(self, seq: int) -> None:
        """Frames up to `seq` are journaled; older news changes nothing. Raises `BadField`."""
        if seq > self.last_seq:
            raise BadField(f"acknowledged {seq}, but the last frame is {self.last_seq}")
        while self.acked < seq:
            self._frames.popleft()
            self.acked += 1
        self.next_seq = max(self.next_seq, self.acked + 1)

    def resend(self, seq: int) -> None:
        """The receiver misses frames from `seq` on."""
        self._begin_at(min(self.next_seq, max(seq, self.acked + 1)))

    def _begin_at(self, seq: int) -> None:
        self.resent += max(self.next_seq - seq, 0)
        self.next_seq = seq


class Verdict(enum.Enum):
    """Treatment of a frame that arrived."""

    DELIVER = "deliver"  # then call `delivered_one`
    DUPLICATE = "duplicate"  # drop
    GAP = "gap"  # drop; the missing ones are requested already
    ASK = "ask"  # drop, and request everything from `delivered + 1`
    OVER_CREDIT = "over-credit"  # drop: the sender disregards the window


class ReceiveCursor:
    """The receiver's end of one stream: how far it delivered and how far it acknowledged."""

    def __init__(self, have: int) -> None:
        self.delivered = have
        self.acked = have
        self._asked_at = -1

    def judge(self, seq: int, window: int) -> Verdict:
        """Classify a frame by its number."""
        if seq <= self.delivered:
            return Verdict.DUPLICATE
        if seq > self.acked + window:
            return Verdict.OVER_CREDIT
        if seq == self.delivered + 1:
            return Verdict.DELIVER
        if self._asked_at == self.delivered:
            return Verdict.GAP
        self._asked_at = self.delivered
        return Verdict.ASK

    def delivered_one(self) -> None:
        """The frame `delivered + 1` goes to the layer above."""
        self.delivered += 1

    def not_delivered(self) -> None:
        """The layer above failed over that frame: it will arrive again, unless it was acknowledged
        already."""
        self.delivered = max(self.delivered - 1, self.acked)

    def acknowledge(self, seq: int) -> bool:
        """Frames up to `seq` are journaled; False when that is no news. Raises ValueError beyond what was
        delivered."""
        if seq > self.delivered:
            raise ValueError(f"frame {seq} acknowledged, but only {self.delivered} were delivered")
        if seq <= self.acked:
            return False
        self.acked = seq
        return True
