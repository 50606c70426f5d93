"""Limits and times of an actor system, with the reasons for the defaults."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds one process."""

    mailbox: int = 1024  # user messages waiting in one actor: seconds of control traffic, not minutes
    beat_s: float = 0.5  # period of application heartbeats
    silent_s: float = 3.0  # no frame for this long from a peer that beats: dead (six missed beats)
    resend_s: float = 1.0  # first re-send of an unanswered ask; doubles, at most 5 s
    credit_s: float = 5.0  # a tell waits so long for a process that is behind; then it is a dead letter
    lease_s: float = 3.0  # a registration lives this long without renewal
    stop_s: float = 3.0  # an ordered stop of one actor
