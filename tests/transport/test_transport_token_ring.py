"""The law of a token stream, on its pure state machines.

No frame is lost under any loss, duplication or restart.
"""

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.transport.refusal import BadField
from gleaner.transport.token_ring import BEHIND_LIMIT, LostByReceiver, ReceiveCursor, SendRing, Verdict

WINDOW = 5
CAPACITY = 12


@dataclass
class Story:
    """A sender, a lossy network with an order, and a receiver that journals and may restart."""

    ring: SendRing[int] = field(default_factory=lambda: SendRing(CAPACITY))
    to_receiver: deque[tuple] = field(default_factory=deque)
    to_sender: deque[tuple] = field(default_factory=deque)
    journal: list[int] = field(default_factory=list)  # made durable by the receiver
    in_hand: list[int] = field(default_factory=list)  # delivered, not journaled
    cursor: ReceiveCursor = field(default_factory=lambda: ReceiveCursor(0))
    pushed: int = 0

    def step(self, action: str) -> None:
        getattr(self, action)()
        assert self.ring.unacknowledged <= CAPACITY
        assert self.cursor.delivered - self.cursor.acked <= WINDOW
        assert self.ring.acked <= len(self.journal)  # only journaled frames leave the ring

    def push(self) -> None:
        if not self.ring.full:
            self.pushed += 1
            self.ring.push(self.pushed)

    def send(self) -> None:
        frame = self.ring.sendable()
        if frame is not None:
            self.to_receiver.append(("frame", frame))
            self.ring.advance()

    def hello(self) -> None:
        self.to_receiver.append(("hello", self.ring.sent))

    def receive(self) -> None:
        if not self.to_receiver:
            return
        kind, number = self.to_receiver.popleft()
        if kind == "hello":
            self.to_sender.append(("have", self.cursor.acked, self.cursor.delivered, number))
            return
        match self.cursor.judge(number, WINDOW):
            case Verdict.DELIVER:
                self.cursor.delivered_one()
                self.in_hand.append(number)
            case Verdict.ASK:
                self.to_sender.append(("resend", self.cursor.delivered + 1))
            case Verdict.OVER_CREDIT:
                raise AssertionError("the sender went beyond its credit")

    def journal_all(self) -> None:
        self.journal += self.in_hand
        self.in_hand.clear()
        if self.cursor.acknowledge(len(self.journal)):
            self.to_sender.append(("ack", len(self.journal)))

    def take_reply(self) -> None:
        if not self.to_sender:
            return
        match self.to_sender.popleft():
            case ("have", acked, delivered, sent):
                self.ring.have(acked, delivered, sent, WINDOW)
            case ("ack", seq):
                self.ring.acknowledge(seq)
            case ("resend", seq):
                self.ring.resend(seq)

    def lose_a_frame(self) -> None:
        if self.to_receiver:
            self.to_receiver.popleft()

    def lose_an_answer(self) -> None:
        if self.to_sender:
            self.to_sender.popleft()

    def double_a_frame(self) -> None:
        if self.to_receiver:
            self.to_receiver.appendleft(self.to_receiver[0])

    def reconnect(self) -> None:
        self.to_receiver.clear()
        self.to_sender.clear()
        self.ring.disconnected()
        self.hello()

    def restart_receiver(self) -> None:
        self.in_hand.clear()
        self.cursor = ReceiveCursor(len(self.journal))
        self.reconnect()

    def heal(self) -> None:
        """No more faults: hellos at a period, everything else at once."""
        for _ in range(3 * CAPACITY):
            self.step("hello")
            for _ in range(4 * CAPACITY):
                for action in ("send", "receive", "journal_all", "take_reply"):
                    self.step(action)


ACTIONS = [name for name in vars(Story) if not name.startswith("_") and name not in ("step", "heal")]
ACTIONS = [name for name in ACTIONS if callable(getattr(Story, name))]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(ACTIONS + ["push", "send", "receive", "take_reply"] * 3), max_size=150))
def test_every_frame_is_journaled_once_and_in_order(actions: list[str]) -> None:
    story = Story()
    story.reconnect()
    for action in actions:
        story.step(action)
        assert story.journal == list(range(1, len(story.journal) + 1))
    story.heal()
    assert story.journal == list(range(1, story.pushed + 1))
    assert story.ring.unacknowledged == 0


def test_nothing_is_sent_before_the_receiver_reports_position() -> None:
    ring: SendRing[str] = SendRing(4)
    ring.push("one")
    assert ring.sendable() is None
    ring.have(0, 0, 0, WINDOW)
    assert ring.sendable() == "one"
    ring.disconnected()
    assert ring.sendable() is None


def test_window_bounds_the_frames_in_flight() -> None:
    ring: SendRing[int] = SendRing(100)
    for n in range(1, 51):
        ring.push(n)
    ring.have(0, 0, 0, window=10)
    sent = 0
    while ring.sendable() is not None:
        ring.advance()
        sent += 1
    assert sent == 10
    ring.acknowledge(4)
    assert ring.sendable() == 11


def test_probe_does_not_resend_frames_waiting_for_journal() -> None:
    ring: SendRing[int] = SendRing(10)
    for n in range(1, 5):
        ring.push(n)
    ring.have(0, 0, 0, 10)
    for _ in range(4):
        ring.advance()
    ring.have(0, 4, 4, 10)
    assert ring.sendable() is None
    ring.have(0, 2, 4, 10)  # two were lost
    assert ring.sendable() == 3


def test_receiver_claiming_unsent_frames_is_refused() -> None:
    ring: SendRing[int] = SendRing(10)
    ring.push(1)
    with pytest.raises(BadField):
        ring.have(7, 7, 0, 10)
    with pytest.raises(BadField):
        ring.acknowledge(2)


def test_receiver_that_lost_its_journal_is_detected() -> None:
    ring: SendRing[int] = SendRing(10)
    for n in range(1, 5):
        ring.push(n)
    ring.have(3, 3, 0, 10)
    for _ in range(BEHIND_LIMIT - 1):
        ring.have(0, 0, 3, 10)
    with pytest.raises(LostByReceiver):
        ring.have(0, 0, 3, 10)


def test_acknowledging_undelivered_frames_is_an_error() -> None:
    cursor = ReceiveCursor(3)
    with pytest.raises(ValueError, match="only 3 were delivered"):
        cursor.acknowledge(4)


def test_undelivered_frame_is_accepted_again() -> None:
    cursor = ReceiveCursor(0)
    cursor.delivered_one()
    cursor.not_delivered()
    assert cursor.judge(1, WINDOW) is Verdict.DELIVER
