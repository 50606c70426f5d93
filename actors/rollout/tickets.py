"""Tickets: which dispatch a row of a token stream belongs to.

Owns one `Stream` an instance: its incarnation, the last frame that was logged, and the tickets given to it.
Pure. A ticket leaves the table when the instance says that it ended, when its batch is released, or with the
incarnation; so the table holds no more than the open requests and their recent moves.
"""

from dataclasses import dataclass, field

import msgspec

from actors.rollout.events import FrameLogged, Ticket
from actors.rollout.token_log import RequestLog
from transport.token_frame import Flag

MAX_TICKETS = 8192  # of one stream; at the limit the oldest superseded one is forgotten: its rows are "late"
MAX_GONE = 1024  # fences kept for dead instances; an instance that is not known at all is refused as well

# Plain integers: an IntFlag costs ten times as much in the loop over rows.
FIRST, FINISHED, ABORTED, NO_TOKEN = (
    int(flag) for flag in (Flag.FIRST, Flag.FINISHED, Flag.ABORTED, Flag.NO_TOKEN)
)


@dataclass(slots=True)
class Stream:
    """The token stream of one incarnation of an instance, as far as it is logged. Frames count from 1."""

    incarnation: int
    last_seq: int = 0
    next_ticket: int = 1
    gone: bool = False
    tickets: dict[int, Ticket] = field(default_factory=dict)
    flowing: dict[int, RequestLog] = field(default_factory=dict)
    """The logs of live tickets that have got a token: where their next ones go."""

    def give(self, ticket: int, request: str, attempt: int) -> None:
        """Note a dispatch."""
        self.tickets[ticket] = Ticket(request=request, attempt=attempt)
        self.next_ticket = max(self.next_ticket, ticket + 1)

    def start(self, ticket: int) -> None:
        self.tickets[ticket] = msgspec.structs.replace(self.tickets[ticket], started=True)

    def supersede(self, ticket: int) -> None:
        self.tickets[ticket] = msgspec.structs.replace(self.tickets[ticket], superseded=True)
        self.flowing.pop(ticket, None)
        if len(self.tickets) > MAX_TICKETS:
            del self.tickets[min(number for number, kept in self.tickets.items() if kept.superseded)]

    def forget(self, ticket: int) -> None:
        """No row of it is expected any more."""
        del self.tickets[ticket]
        self.flowing.pop(ticket, None)

    def live(self) -> dict[int, Ticket]:
        """The tickets whose rows count."""
        return {number: ticket for number, ticket in self.tickets.items() if not ticket.superseded}

    def load(self) -> tuple[int, int]:
        """(pending, executing): live tickets whose decoding has not begun, and those whose has."""
        pending = executing = 0
        for ticket in self.tickets.values():
            if not ticket.superseded:
                if ticket.started:
                    executing += 1
                else:
                    pending += 1
        return pending, executing


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
        stream.flowing.clear()
        gone = [name for name, other in self.items() if other.gone]
        for name in gone[: max(0, len(gone) - MAX_GONE)]:
            del self[name]


Columns = tuple["memoryview[int]", "memoryview[int]", "memoryview[float]", bytes]
"""Tickets, tokens, log-probs and flags of a frame, row by row."""
Row = tuple[int, int, float, int]
"""One of them."""


def columns_of(frame: FrameLogged) -> Columns | None:
    """The columns of a frame; None when they do not fit together."""
    count = len(frame.flags)
    if any(len(column) != 4 * count for column in (frame.tickets, frame.tokens, frame.logprobs)):
        return None
    tickets, tokens = (memoryview(column).cast("I") for column in (frame.tickets, frame.tokens))
    return tickets, tokens, memoryview(frame.logprobs).cast("f"), frame.flags


def has_token(flags: int) -> bool:
    """Whether the token of a row counts."""
    return not flags & (ABORTED | NO_TOKEN)
