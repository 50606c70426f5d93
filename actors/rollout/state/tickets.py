"""Tickets: the mapping from rows of a token stream to dispatches.

Owns one `Stream` per instance: its incarnation, the last frame that was logged, and its tickets. Pure. A
ticket leaves the table when the instance reports its end, when its batch is released, or with the
incarnation. So the table holds no more than the open requests and their recent moves.
"""

from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from gleaner.actors.rollout.state.events import FrameLogged, Ticket
from gleaner.actors.rollout.state.token_columns import NO_SLOT, Logprobs, Slots, Tokens
from gleaner.transport.token_frame import Flag

MAX_TICKETS = 8192  # superseded ones of one stream; beyond, the oldest is forgotten: its rows are "late"
_WINDOW_AT_FIRST = 64  # tickets; entries of 8 bytes
MAX_GONE = 1024  # fences kept for dead instances; an instance that is not known at all is refused as well

# Plain integers: an IntFlag costs ten times as much in the loop over rows.
FIRST, FINISHED, ABORTED, NO_TOKEN, CUT = (
    int(flag) for flag in (Flag.FIRST, Flag.FINISHED, Flag.ABORTED, Flag.NO_TOKEN, Flag.CUT)
)


@dataclass(slots=True)
class Stream:
    """The token stream of one incarnation of an instance, as far as it is logged. Frames count from 1."""

    incarnation: int
    last_seq: int = 0
    next_ticket: int = 1
    gone: bool = False
    tickets: dict[int, Ticket] = field(default_factory=dict)
    held: int = 0
    """Number of live tickets."""
    _flowing: Slots = field(default_factory=lambda: np.zeros(_WINDOW_AT_FIRST, np.int64))
    _first: int = 0
    """The ticket of the first entry of `_flowing`: ticket numbers grow, so the live ones are close together.
    The last entry stays `NO_SLOT`, for all beyond."""

    def give(self, ticket: int, request: str, attempt: int, version: int) -> None:
        """Record a dispatch under a version."""
        self.tickets[ticket] = Ticket(request=request, attempt=attempt, version=version)
        self.held += 1
        self.next_ticket = max(self.next_ticket, ticket + 1)

    def renew(self, ticket: int, attempt: int, version: int) -> None:
        """Continue the ticket as another attempt, under another version; its next row is handled
        separately."""
        self.tickets[ticket] = msgspec.structs.replace(self.tickets[ticket], attempt=attempt, version=version)
        self._flow_no_more(ticket)

    def start(self, ticket: int) -> None:
        self.tickets[ticket] = msgspec.structs.replace(self.tickets[ticket], started=True)

    def supersede(self, ticket: int) -> None:
        self.tickets[ticket] = msgspec.structs.replace(self.tickets[ticket], superseded=True)
        self.held -= 1
        self._flow_no_more(ticket)
        if len(self.tickets) > MAX_TICKETS + self.held:
            del self.tickets[next(number for number, kept in self.tickets.items() if kept.superseded)]

    def forget(self, ticket: int) -> None:
        """Remove the ticket: no row of it is expected any more."""
        self.held -= not self.tickets.pop(ticket).superseded
        self._flow_no_more(ticket)

    def flow(self, ticket: int, slot: int) -> None:
        """The ticket has got a token: its next ones go to this slot of the token columns."""
        at = ticket - self._first
        if not 0 <= at < len(self._flowing) - 1:
            self._move_window(ticket)
            at = ticket - self._first
        self._flowing[at] = slot

    def slots(self, tickets: NDArray[np.uint32]) -> Slots:
        """The slots for the tokens of these tickets; `NO_SLOT` for those that do not flow."""
        at = tickets - np.uint32(self._first)  # below the first it wraps around, and is beyond the last
        return self._flowing.take(at, mode="clip")

    def _flow_no_more(self, ticket: int) -> None:
        at = ticket - self._first
        if 0 <= at < len(self._flowing):
            self._flowing[at] = NO_SLOT

    def _move_window(self, ticket: int) -> None:
        """Move the start to the oldest ticket that is left, with capacity for as many again."""
        first = min(ticket, next(iter(self.tickets), ticket))
        used = np.flatnonzero(self._flowing)
        newest = max(ticket, int(used[-1]) + self._first if len(used) else 0)
        moved = np.zeros(max(_WINDOW_AT_FIRST, 2 * (newest - first + 1)), np.int64)
        moved[used + (self._first - first)] = self._flowing[used]
        self._flowing, self._first = moved, first

    def clear(self) -> None:
        """Remove all tickets: no row is expected any more."""
        self.tickets.clear()
        self.held = 0
        self._flowing, self._first = np.zeros(_WINDOW_AT_FIRST, np.int64), 0

    def is_live(self, ticket: int) -> bool:
        """Whether the rows of this ticket count."""
        known = self.tickets.get(ticket)
        return known is not None and not known.superseded

    def live(self) -> dict[int, Ticket]:
        """The tickets whose rows count."""
        return {number: ticket for number, ticket in self.tickets.items() if not ticket.superseded}

    def load(self) -> tuple[int, int]:
        """(pending, executing): live tickets whose decoding has not started, and those whose has."""
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
        """Ignore everything of this incarnation from now on."""
        stream.gone = True
        stream.clear()
        gone = [name for name, other in self.items() if other.gone]
        for name in gone[: max(0, len(gone) - MAX_GONE)]:
            del self[name]


Columns = tuple[NDArray[np.uint32], Tokens, Logprobs, NDArray[np.uint8]]
"""Tickets, tokens, log-probs and flags of a frame, row by row."""
Row = tuple[int, int, float, int]
"""One row of the columns."""
_U32, _F32, _U8 = np.dtype("<u4"), np.dtype("<f4"), np.dtype("u1")


def columns_of(frame: FrameLogged) -> Columns | None:
    """The columns of a frame; None if their lengths do not fit together."""
    count = len(frame.flags)
    if any(len(column) != 4 * count for column in (frame.tickets, frame.tokens, frame.logprobs)):
        return None
    return (
        np.frombuffer(frame.tickets, _U32),
        np.frombuffer(frame.tokens, _U32),
        np.frombuffer(frame.logprobs, _F32),
        np.frombuffer(frame.flags, _U8),
    )


def has_token(flags: int) -> bool:
    """Whether the token of a row counts."""
    return not flags & (ABORTED | NO_TOKEN)
