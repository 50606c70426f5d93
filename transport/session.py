"""SendWindow and ReceiveWindow: the two windows of one end of a control link.

They hold what it sent and may send, and what it received and accepts. Pure: no socket, no loop, no clock;
`link_end` moves the bytes. Messages of one direction are numbered from 1. Laws
(tests/transport/test_transport_session.py): whatever is dropped, doubled or reordered below, the receiver
delivers each number at most once and in order; everything arrives once the line heals; memory is bounded.
"""

import math
from collections import deque
from typing import Final

import msgspec

from gleaner.transport.control_frame import MAX_BATCH
from gleaner.transport.envelope import MAX_ENVELOPE_BYTES
from gleaner.transport.refusal import BadField, Oversize

BATCH_MESSAGES: Final = MAX_BATCH  # the cost of a frame is spread, and a turn of the receiver stays short
PROMPT_MESSAGES: Final = 16
"""Asks and answers that leave before the turn ends: the other side works on them meanwhile, instead of the
two taking turns (64 outstanding asks: 1.4 times the rate)."""
BATCH_BYTES: Final = 64 << 10
START_LIMIT: Final = 64  # `tell` messages that every receiver accepts before it has sent its limit


class Batch(msgspec.Struct):
    """Envelopes that travel together; `first` is the number of the first one."""

    first: int
    envelopes: list[bytes]
    size_bytes: int


class SendWindow:
    """Messages that this end sent without acknowledgement, and messages that wait to be sent.

    Bounded by `max_messages` and `max_bytes` (a batch may exceed them); `tell` messages also by the peer's
    `limit`.
    """

    __slots__ = (
        "_acked", "_cursor", "_cut_to", "_flight", "_flight_bytes", "_limit", "_max_bytes", "_max_messages",
        "_next", "_open", "_open_to_new", "_pending", "_pending_bytes", "_unanswering", "resent",
    )  # fmt: skip

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.resent = 0
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._next = 1
        self._cut_to = 0  # the last number that is in a batch
        self._unanswering = 0  # the last number that is no answer
        self._acked = 0
        self._limit = START_LIMIT  # the last number that the peer grants to `tell` messages
        self._open = self._open_to_new = 0  # the last number that is taken now
        self._pending: list[bytes] = []  # in no batch yet
        self._pending_bytes = 0
        self._flight: deque[Batch] = deque()
        self._flight_bytes = 0
        self._cursor = 0  # the batch of `_flight` that is sent next
        self._reopen()

    @property
    def unacked(self) -> int:
        """Messages kept: waiting or sent and not acknowledged."""
        return self._next - 1 - self._acked

    @property
    def first_unacked(self) -> int:
        """Number of the oldest message that is kept, or of the next one."""
        return self._acked + 1

    @property
    def last_cut(self) -> int:
        """Number of the last message that left, or was made ready to."""
        return self._cut_to

    @property
    def in_flight(self) -> bool:
        """Whether something is sent and not acknowledged."""
        return bool(self._flight)

    @property
    def answers_only(self) -> bool:
        """Whether nothing but answers waits for an acknowledgement."""
        return self._acked >= self._unanswering

    @property
    def taken(self) -> int:
        """Messages taken since the beginning."""
        return self._next - 1

    def room(self) -> int:
        """How many `tell` messages would be accepted now."""
        return max(0, self._open_to_new - self._next + 1)

    def offer(self, envelope: bytes, tell: bool, answer: bool = False) -> int:
        """Take a message: how many messages wait to be sent now, negative when a batch is full; 0 when it was
        not taken. Raises `Oversize` beyond `MAX_ENVELOPE_BYTES`."""
        number = self._next
        if number > (self._open_to_new if tell else self._open):
            return 0
        size = self._pending_bytes + len(envelope)
        if size >= BATCH_BYTES:
            if len(envelope) > MAX_ENVELOPE_BYTES:
                raise Oversize(f"envelope of {len(envelope)} bytes, the limit is {MAX_ENVELOPE_BYTES}")
            if self._flight_bytes + size >= self._max_bytes:
                self._open = self._open_to_new = number  # until something is acknowledged
        self._pending.append(envelope)
        self._pending_bytes = size
        self._next = number + 1
        if not answer:
            self._unanswering = number
        waiting = number - self._cut_to
        full = BATCH_MESSAGES if tell else PROMPT_MESSAGES
        return -waiting if waiting >= full or size >= BATCH_BYTES else waiting

    def acknowledge(self, number: int, limit: int) -> bool:
        """The peer has everything up to `number` and accepts `tell` messages up to `limit`. Returns whether
        that is news. Raises `BadField` for a number that was never sent."""
        if number > self._cut_to:
            raise BadField(f"acknowledged {number}, sent were {self._cut_to}")
        if number <= self._acked and limit <= self._limit:
            return False
        if limit > self._limit:  # no calls of `max`: this runs for every frame
            self._limit = limit
        if number > self._acked:
            self._acked = number
        flight = self._flight
        while flight:
            batch = flight[0]
            if batch.first + len(batch.envelopes) - 1 > number:
                break
            self._flight_bytes -= batch.size_bytes
            flight.popleft()
            if self._cursor:
                self._cursor -= 1
        self._reopen()
        return True

    def rewind(self) -> None:
        """Send everything unacknowledged again."""
        if self._flight:
            batch = self._flight[0]
            known = self._acked + 1 - batch.first
            if known > 0:
                size = sum(map(len, batch.envelopes[:known]))
                self._flight_bytes -= size
                self._flight[0] = Batch(self._acked + 1, batch.envelopes[known:], batch.size_bytes - size)
        self.resent += sum(len(self._flight[index].envelopes) for index in range(self._cursor))
        self._cursor = 0

    def next_batch(self) -> Batch | None:
        """The next batch to send, the same until `sent` is called for it; None when there is nothing."""
        if self._cursor < len(self._flight):
            return self._flight[self._cursor]
        if not self._pending:
            return None
        batch = self._cut()
        self._flight.append(batch)
        self._flight_bytes += batch.size_bytes
        self._cut_to += len(batch.envelopes)
        return batch

    def sent(self) -> None:
        """The batch from `next_batch` was sent."""
        self._cursor += 1

    def _cut(self) -> Batch:
        pending, size = self._pending, self._pending_bytes
        first = self._cut_to + 1
        if len(pending) <= BATCH_MESSAGES and (size <= BATCH_BYTES or len(pending) == 1):
            self._pending, self._pending_bytes = [], 0
            return Batch(first, pending, size)
        count, size = 1, len(pending[0])
        for envelope in pending[1:BATCH_MESSAGES]:
            if size + len(envelope) > BATCH_BYTES:
                break
            count += 1
            size += len(envelope)
        self._pending = pending[count:]
        self._pending_bytes -= size
        return Batch(first, pending[:count], size)

    def _reopen(self) -> None:
        full = self._flight_bytes + self._pending_bytes >= self._max_bytes
        self._open = self._next - 1 if full else self._acked + self._max_messages
        self._open_to_new = min(self._open, self._limit)


class ReceiveWindow:
    """What this end received: the next number that it delivers, and up to which number it accepts `tell`
    messages."""

    __slots__ = ("_reported_s", "duplicates", "expected", "gaps", "held", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.expected = 1
        self.held = 0  # received, but not consumed by the layer above
        self.duplicates = 0
        self.gaps = 0
        self._reported_s = -math.inf  # when the present gap was reported

    @property
    def received(self) -> int:
        """Everything up to this number is here."""
        return self.expected - 1

    @property
    def limit(self) -> int:
        """`tell` messages are accepted up to this number: the consumed count plus a window."""
        return self.expected - 1 - self.held + self.window

    def take(self, first: int, count: int) -> int:
        """`count` messages arrived, numbered from `first`. Returns how many of them to skip as known; all
        (`count`) when none is to be delivered."""
        known = self.expected - first
        if known < 0:
            self.gaps += 1
            return count
        self.duplicates += min(known, count)
        if known >= count:
            return count
        self.expected = first + count
        self._reported_s = -math.inf
        return known

    def ask_again(self, now_s: float, pause_s: float) -> bool:
        """Whether to report a gap to the sender: at once, and `pause_s` after the last report if it is still
        open, as that report or what was sent upon it may be lost."""
        if now_s - self._reported_s < pause_s:
            return False
        self._reported_s = now_s
        return True

    def consumed(self, count: int) -> None:
        """The layer above took `count` messages that it had held."""
        self.held = max(0, self.held - count)
