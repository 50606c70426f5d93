"""Tickets: which dispatch a row of a token stream belongs to.

Owns one `Stream` an instance: its incarnation, the last frame that was logged, and the tickets given to it.
Pure. A ticket leaves the table when the instance says that it ended, when its batch is released, or with the
incarnation; so the table holds no more than the open requests and their recent moves.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from actors.rollout.events import FrameLogged, Ticket
from transport.token_frame import Flag

MAX_TICKETS = 8192  # of one stream; at the limit the oldest superseded one is forgotten: its rows are "late"
MAX_GONE = 1024  # fences kept for dead instances; an instance that is not known at all is refused as well

# Plain integers: an IntFlag costs ten times as much in the loop over rows.
FIRST, FINISHED, ABORTED, NO_TOKEN = (
    int(flag) for flag in (Flag.FIRST, Flag.FINISHED, Flag.ABORTED, Flag.NO_TOKEN)
)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a frame."""

    ticket: int
    token: int
    logprob: float
    flags: int

    @property
    def has_token(self) -> bool:
        return not self.flags & (ABORTED | NO_TOKEN)


@dataclass(slots=True)
class Stream:
    """The token stream of one incarnation of an instance, as far as it is logged. Frames count from 1."""

    incarnation: int
    last_seq: int = 0
    next_ticket: int = 1
    gone: bool = False
    tickets: dict[int, Ticket] = field(default_factory=dict)

    def give(self, ticket: int, request: str, attempt: int) -> None:
        """Note a dispatch."""
        self.tickets[ticket] = Ticket(request=request, attempt=attempt)
        self.next_ticket = max(self.next_ticket, ticket + 1)

    def start(self, ticket: int) -> None:
        self.tickets[ticket] = msgspec.structs.replace(self.tickets[ticket], started=True)

    def supersede(self, ticket: int) -> None:
        self.tickets[ticket] = msgspec.structs.replace(self.tickets[ticket], superseded=True)
        if len(self.tickets) > MAX_TICKETS:
            del self.tickets[min(number for number, kept in self.tickets.items() if kept.superseded)]

    def live(self) -> dict[int, Ticket]:
        """The tickets whose rows count."""
        return {number: ticket for number, ticket in self.tickets.items() if not ticket.superseded}

    def load(self) -> tuple[int, int]:
        """(pending, executing): live tickets whose decoding has not begun, and those whose has."""
        started = [ticket.started for ticket in self.live().values()]
        return started.count(False), started.count(True)


class Streams(dict[str, Stream]):
    """The streams by name of instance, in the order in which they joined."""

    def alive(self, instance: str, incarnation: int) -> Stream | None:
        """The stream of exactly this incarnation, if it lives."""
        stream = self.get(instance)
        return None if stream is None or stream.gone or stream.incarnation != incarnation else stream

    def have(self, instance: str, incarnation: int) -> int | None:
        """The last frame logged of this incarnation, 0 for none; None: refuse its stream."""
        stream = self.alive(instance, incarnation)
        return None if stream is None else stream.last_seq

    def next_ticket(self, instance: str, incarnation: int) -> int:
        """The first ticket that was never given to this incarnation. KeyError when it is not alive."""
        stream = self.alive(instance, incarnation)
        if stream is None:
            raise KeyError(f"instance {instance} incarnation {incarnation} is not alive")
        return stream.next_ticket

    def fence(self, stream: Stream) -> None:
        """Nothing of this incarnation counts from now on."""
        stream.gone = True
        stream.tickets.clear()
        gone = [name for name, other in self.items() if other.gone]
        for name in gone[: max(0, len(gone) - MAX_GONE)]:
            del self[name]


def rows(frame: FrameLogged) -> Iterator[Row] | None:
    """The rows of a frame in order; None when its columns do not fit together."""
    count = len(frame.flags)
    columns = (frame.tickets, frame.tokens, frame.logprobs)
    if any(len(column) != 4 * count for column in columns):
        return None
    tickets, tokens = (memoryview(column).cast("I") for column in columns[:2])
    return map(Row, tickets, tokens, memoryview(frame.logprobs).cast("f"), frame.flags)
