"""Tail of the manager's journal: times of a dead instance's next tokens.

Reads the journal while it is written. Owns the reading of the file and its interpretation. A token counts
from the moment at which another process can read its commit. Times are seconds of the machine's monotonic
clock, at most one polling interval late.
"""

import sqlite3
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gleaner.actors.names import MANAGER
from gleaner.actors.rollout.state.events import (
    Dispatched,
    FrameLogged,
    InstanceGone,
    InstanceJoined,
    TicketsRevoked,
)
from gleaner.supervisor import Message
from gleaner.supervisor.journal.upgrades import decode_stored
from gleaner.transport.token_frame import Flag

_EVENTS = "SELECT seq, kind, version, body FROM events WHERE stream=? AND seq>? ORDER BY seq"
_BASE = "SELECT base_seq FROM streams WHERE name=?"
_ENDS = int(Flag.FINISHED | Flag.ABORTED)


class JournalTail:
    """Events of the manager's stream, in order, from its last snapshot on."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._db: sqlite3.Connection | None = None
        self._seq = 0
        self.missed = 0
        """Events that a snapshot removed before they were read."""

    def _opened(self) -> sqlite3.Connection | None:
        """The file, once it contains the manager's stream."""
        if self._db is None and self._file.exists():
            db = sqlite3.connect(f"file:{self._file}?mode=ro", uri=True, isolation_level=None)
            try:
                base = db.execute(_BASE, (MANAGER,)).fetchone()
            except sqlite3.OperationalError:  # it is only being made
                base = None
            if base is None:
                db.close()
            else:
                self._db, self._seq = db, base[0]
        return self._db

    def poll(self) -> list[Message]:
        """Events committed since the last call."""
        found: list[Message] = []
        db = self._opened()
        if db is None:
            return found
        for seq, kind, version, body in db.execute(_EVENTS, (MANAGER, self._seq)):
            self.missed += seq - self._seq - 1
            self._seq = seq
            message = decode_stored(kind, version, body)
            if message is not None:
                found.append(message)
        return found

    def close(self) -> None:
        """Close the file."""
        if self._db is not None:
            self._db.close()


@dataclass(slots=True)
class InstanceTickets:
    """The tickets of one incarnation of an instance: their requests, and which of them have begun."""

    incarnation: int
    requests: dict[int, str] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Resumed:
    """State of the requests of a dead instance, in seconds of the monotonic clock; None: not yet.

    `gone`: it was given up; `dispatched`: the first of them was dispatched elsewhere; `first`, `last`: the
    first and the last of them had its next token.
    """

    waiting: set[str]
    count: int
    """Number of its requests at its end."""
    gone: float | None = None
    dispatched: float | None = None
    first: float | None = None
    last: float | None = None


class Resumption:
    """Follows the events; watches one instance at a time."""

    def __init__(self) -> None:
        self.held: dict[str, InstanceTickets] = {}
        self.resumed: Resumed | None = None
        self._victim = ""

    def kill(self, instance: str) -> Resumed:
        """Watch its begun requests from now on."""
        held = self.held[instance]
        watched = {held.requests[ticket] for ticket in held.begun if ticket in held.requests}
        self._victim = instance
        self.resumed = Resumed(watched, len(watched))
        return self.resumed

    def busy(self, instance: str) -> int:
        """How many requests it decodes."""
        held = self.held.get(instance)
        return len(held.begun) if held is not None else 0

    def see(self, event: Message, now_s: float | None = None) -> None:
        """Take one committed event."""
        now = time.monotonic() if now_s is None else now_s
        match event:
            case InstanceJoined():
                known = self.held.get(event.instance)
                if known is None or known.incarnation < event.incarnation:
                    self._ended(event.instance, now)
                    self.held[event.instance] = InstanceTickets(event.incarnation)
            case InstanceGone():
                self._ended(event.instance, now)
                self.held.pop(event.instance, None)
            case TicketsRevoked():
                for ticket in event.tickets:
                    self._forget(event.instance, ticket)
            case Dispatched():
                self._dispatched(event, now)
            case FrameLogged():
                self._frame(event, now)

    def _ended(self, instance: str, now_s: float) -> None:
        if self.resumed is not None and instance == self._victim and self.resumed.gone is None:
            self.resumed.gone, self.resumed.count = now_s, len(self.resumed.waiting)

    def _forget(self, instance: str, ticket: int) -> None:
        held = self.held.get(instance)
        if held is not None:
            held.requests.pop(ticket, None)
            held.begun.discard(ticket)

    def _dispatched(self, event: Dispatched, now_s: float) -> None:
        held = self.held.setdefault(event.instance, InstanceTickets(event.incarnation))
        held.requests |= dict(zip(event.tickets, event.requests, strict=True))
        resumed = self.resumed
        if resumed is None or resumed.gone is None or resumed.dispatched is not None:
            return
        if not resumed.waiting.isdisjoint(event.requests):
            resumed.dispatched = now_s

    def _frame(self, event: FrameLogged, now_s: float) -> None:
        held = self.held.get(event.instance)
        if held is None or held.incarnation != event.incarnation:
            return
        tickets = np.frombuffer(event.tickets, "<u4").tolist()
        new = set(tickets) - held.begun
        held.begun |= new
        resumed = self.resumed
        if resumed is not None and resumed.gone is not None:
            back = {held.requests[ticket] for ticket in new if ticket in held.requests} & resumed.waiting
            if back:
                resumed.waiting -= back
                resumed.first = now_s if resumed.first is None else resumed.first
                resumed.last = now_s if not resumed.waiting else None
        if any(event.flags):
            for ticket, flags in zip(tickets, event.flags, strict=True):
                if flags & _ENDS:
                    self._end(event.instance, ticket)

    def _end(self, instance: str, ticket: int) -> None:
        """The request ended there. A victim's request that ended with its last frames needs no resume."""
        held, resumed = self.held[instance], self.resumed
        if resumed is not None and resumed.gone is None and instance == self._victim:
            resumed.waiting.discard(held.requests.get(ticket, ""))
        self._forget(instance, ticket)
