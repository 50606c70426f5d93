"""Limits and times of an actor system, with the reasons for the defaults."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one process."""

    mailbox: int = 1024  # user messages waiting in one actor: seconds of control traffic, not minutes
    beat_s: float = 0.5  # a watched process that was silent for so long is probed
    silent_s: float = 3.0  # no frame for this long from a watched process: dead (six missed beats)
    resend_s: float = 1.0  # first re-send of an unanswered ask; doubles, at most 5 s
    credit_s: float = 5.0  # a `tell` waits so long for a process that is behind; then it is a dead letter
    lease_s: float = 6.0
    """A registration lives this long without renewal, and is renewed at a third of it. It is twice the
    silence that counts as death. By then every process that deals with a dead one knows its death, by its
    connection or its silence, and a successor takes a name at once. The lease is for the other cases: a name
    must not lead to a dead process for ever. It costs each process a message a third."""
    stop_s: float = 3.0  # an ordered stop of one actor
