"""Frame rows: each is a token of a request, or the start or end of its ticket.

Pure: changes the token log, the stream and the counters, and records starts and ends in `Effects`.
"""

import numpy as np

from gleaner.actors.rollout.state.effects import Effects
from gleaner.actors.rollout.state.events import Counters, FrameLogged
from gleaner.actors.rollout.state.request_log import RequestState
from gleaner.actors.rollout.state.ticket_end import end, finished, revoke, waits
from gleaner.actors.rollout.state.tickets import ABORTED, CUT, FINISHED, Columns, Row, Stream, has_token
from gleaner.actors.rollout.state.token_columns import Mask
from gleaner.actors.rollout.state.token_log import TokenLog


def enter_rows(
    log: TokenLog,
    counters: Counters,
    event: FrameLogged,
    stream: Stream,
    columns: Columns,
    changes: Effects,
) -> None:
    """Append the rows of a frame. Nearly every row is one more token of a running request: all of those go
    into the columns at once.

    These are handled separately: a row with flags, the first token of a ticket, the last token that a request
    may have, and all later rows of the same ticket.
    """
    tickets, tokens, logprobs, flags = columns
    taken: Mask | None = np.zeros(len(tickets), np.bool_)
    if event.version is None:
        halt = flags != 0 if np.count_nonzero(flags) else None
        taken = log.columns.take(stream.slots(tickets), tokens, logprobs, halt)
    if taken is None:
        counters.tokens_collected += len(tickets)
        return
    alone = np.flatnonzero(~taken)
    counters.tokens_collected += len(tickets) - len(alone)
    for row in zip(*(column[alone].tolist() for column in columns), strict=True):
        _row(log, counters, event, stream, row, changes)


def _row(
    log: TokenLog,
    counters: Counters,
    event: FrameLogged,
    stream: Stream,
    row: Row,
    changes: Effects,
) -> None:
    number, token, logprob, flags = row
    ticket = stream.tickets.get(number)
    if ticket is None:
        changes.refused.append("late_row" if number < stream.next_ticket else "unknown_ticket")
        return
    if ticket.superseded:
        request = log.requests[ticket.request]
        if request.state is RequestState.DROPPED:
            counters.waste("aborted", has_token(flags))
        else:
            counters.tokens_generated_twice += has_token(flags)
        if flags & (FINISHED | ABORTED):
            stream.forget(number)
        return
    request = log.requests[ticket.request]
    made = request.version if ticket.version is None else ticket.version
    if event.version is not None and event.version != made:
        changes.refused.append("wrong_version")
        revoke(log, counters, event.instance, stream, number, changes)
        return
    if not ticket.started and not flags & ABORTED:
        stream.start(number)
        changes.started.append((event.instance, event.incarnation))
        changes.began.append(ticket.request)
    if has_token(flags):
        request.append(token, logprob, event.instance, event.incarnation, made)
        stream.flow(number, request.slot)
        counters.tokens_collected += 1
    if flags & FINISHED or request.full:
        request.cut = bool(flags & CUT)
        finished(log, counters, request, changes)
        end(event.instance, stream, number, changes)
    elif flags & ABORTED:
        end(event.instance, stream, number, changes)
        waits(log, counters, request, changes)
