"""Laws of the send and receive windows of a session.

Whatever the line does, each message is delivered once and in order.
"""

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.transport.refusal import BadField, Oversize
from gleaner.transport.session import BATCH_BYTES, BATCH_MESSAGES, START_LIMIT, ReceiveWindow, SendWindow

MAX_MESSAGES, MAX_BYTES, WINDOW = 600, 1 << 20, 300


class Line:
    """A sender, a receiver and a line that loses, doubles, reorders and breaks, step by step."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.out = SendWindow(MAX_MESSAGES, MAX_BYTES)
        self.into = ReceiveWindow(WINDOW)
        self.forth: deque[tuple[int, list[bytes]]] = deque()
        self.back: deque[tuple[int, int, bool]] = deque()
        self.offered = 0
        self.delivered: list[int] = []

    def offer(self) -> None:
        if self.out.offer(b"%d" % self.offered, tell=True) != 0:
            self.offered += 1

    def transmit(self) -> None:
        batch = self.out.next_batch()
        if batch is not None:
            assert 1 <= len(batch.envelopes) <= BATCH_MESSAGES
            self.forth.append((batch.first, list(batch.envelopes)))
            self.out.sent()

    def receive(self) -> None:
        if not self.forth:
            return
        first, envelopes = self.forth.popleft()
        known = self.into.take(first, len(envelopes))
        self.delivered += [int(envelope) for envelope in envelopes[known:]]
        self.into.held += len(envelopes) - known
        again = first > self.into.expected and self.into.ask_again(0.0, 1.0)
        self.back.append((self.into.received, self.into.limit, again))

    def consume(self) -> None:
        self.into.consumed(self.rng.randint(0, self.into.held))

    def take_reply(self) -> None:
        if self.back:
            ack, limit, again = self.back.popleft()
            self.out.acknowledge(ack, limit)
            if again:
                self.out.rewind()

    def lose(self) -> None:
        queue = self.rng.choice((self.forth, self.back))
        if queue:
            del queue[self.rng.randrange(len(queue))]

    def double(self) -> None:
        if self.forth:
            self.forth.append(self.rng.choice(self.forth))

    def reorder(self) -> None:
        for queue in (self.forth, self.back):
            queue.rotate(self.rng.randint(-1, 1))

    def reconnect(self) -> None:
        if self.rng.random() < 0.7:  # frames in flight may be lost, or still arrive
            self.forth.clear()
            self.back.clear()
        self.out.acknowledge(self.into.received, self.into.limit)
        self.out.rewind()

    def check(self) -> None:
        assert self.delivered == list(range(len(self.delivered)))
        assert self.out.unacked <= MAX_MESSAGES
        assert self.into.held <= WINDOW
        assert self.into.received == len(self.delivered)

    def heal(self) -> None:
        self.reconnect()
        for _ in range(20):
            while self.out.next_batch() is not None:
                self.transmit()
            while self.forth:
                self.receive()
            self.into.consumed(self.into.held)
            self.back.append((self.into.received, self.into.limit, False))
            while self.back:
                self.take_reply()


STEPS = (
    Line.offer, Line.offer, Line.offer, Line.offer, Line.transmit, Line.transmit, Line.receive, Line.receive,
    Line.consume, Line.take_reply, Line.take_reply, Line.lose, Line.double, Line.reorder, Line.reconnect,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=400), st.integers(0, 2**32))
def test_message_is_delivered_once_in_order_over_any_line(steps, seed) -> None:
    line = Line(random.Random(seed))
    for step in steps:
        step(line)
        line.check()
    line.heal()
    line.check()
    assert line.delivered == list(range(line.offered))
    assert line.out.unacked == 0
    assert line.out.room() == min(WINDOW, MAX_MESSAGES)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3 * BATCH_BYTES), min_size=1, max_size=40))
def test_batches_concatenate_to_the_offer_within_their_size(sizes) -> None:
    out = SendWindow(1000, 1 << 30)
    offered = [bytes(size) for size in sizes]
    assert all(out.offer(envelope, tell=False) for envelope in offered)
    batches = []
    while (batch := out.next_batch()) is not None:
        out.sent()
        batches.append(batch)
        assert len(batch.envelopes) == 1 or batch.size_bytes <= BATCH_BYTES
        assert batch.size_bytes == sum(map(len, batch.envelopes))
    assert [envelope for batch in batches for envelope in batch.envelopes] == offered
    assert [batch.first for batch in batches] == [
        1 + sum(len(earlier.envelopes) for earlier in batches[:index]) for index in range(len(batches))
    ]


def test_unacknowledged_count_and_bytes_are_bounded() -> None:
    out = SendWindow(max_messages=100, max_bytes=1 << 20)
    assert sum(out.offer(b"", tell=False) != 0 for _ in range(200)) == 100
    out = SendWindow(max_messages=100, max_bytes=1 << 20)
    big = bytes(100_000)
    assert sum(out.offer(big, tell=False) != 0 for _ in range(200)) == 11  # the last one may go beyond
    assert out.room() == 0
    while out.next_batch() is not None:
        out.sent()
    assert out.acknowledge(2, 0)
    out.rewind()
    assert [out.offer(big, tell=False) != 0 for _ in range(3)] == [True, True, False]


def test_limit_stops_one_way_messages_but_nothing_else() -> None:
    out = SendWindow(1000, 1 << 20)
    assert sum(out.offer(b"tell", tell=True) != 0 for _ in range(100)) == START_LIMIT
    assert out.room() == 0
    assert out.offer(b"ask", tell=False) != 0
    out.next_batch()
    out.sent()
    assert out.acknowledge(0, START_LIMIT + 10)
    assert out.room() == 9  # the ask took a number too
    assert not out.acknowledge(0, START_LIMIT)  # a limit never falls


def test_unsent_messages_cannot_be_acknowledged() -> None:
    out = SendWindow(10, 100)
    out.offer(b"waits", tell=False)
    with pytest.raises(BadField, match="acknowledged 1, sent were 0"):
        out.acknowledge(1, 0)
    with pytest.raises(Oversize):
        out.offer(bytes(1 << 24), tell=False)
    assert out.unacked == 1


def test_gap_is_reported_at_once_and_after_a_pause_until_closed() -> None:
    into = ReceiveWindow(START_LIMIT)
    assert into.take(3, 2) == 2
    assert [into.ask_again(now_s, 1.0) for now_s in (5.0, 5.9, 6.0, 6.9)] == [True, False, True, False]
    assert into.take(1, 3) == 0
    assert into.take(5, 1) == 1
    assert into.ask_again(6.9, 1.0), "this gap is another one"
    assert (into.gaps, into.duplicates, into.received) == (2, 0, 3)
