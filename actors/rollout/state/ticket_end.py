"""Ticket termination: finish, requeue or drop its request.

Pure: changes the token log, a stream and the counters, and records the changes in `Effects`.
"""

from gleaner.actors.rollout.state.effects import Effects, EndedTicket
from gleaner.actors.rollout.state.events import Counters
from gleaner.actors.rollout.state.request_log import RequestLog, RequestState
from gleaner.actors.rollout.state.tickets import Stream
from gleaner.actors.rollout.state.token_log import TokenLog


def gone(log: TokenLog, counters: Counters, instance: str, stream: Stream, changes: Effects) -> None:
    """The incarnation is given up: requeue its requests. The caller then fences the stream."""
    for number in list(stream.live()):
        revoke(log, counters, instance, stream, number, changes)


def revoke(
    log: TokenLog, counters: Counters, instance: str, stream: Stream, number: int, changes: Effects
) -> None:
    """Take a live ticket back: its request is queued again with its collected tokens."""
    end(instance, stream, number, changes, forget=False)
    stream.supersede(number)
    waits(log, counters, log.requests[stream.tickets[number].request], changes)


def waits(log: TokenLog, counters: Counters, request: RequestLog, changes: Effects) -> None:
    """Queue a request that no instance has any more, or finish it if its deadline has passed."""
    if request.due:
        finished(log, counters, request, changes)
    else:
        log.move(request, RequestState.QUEUED)
        changes.queued.append(request.id)


def finished(log: TokenLog, counters: Counters, request: RequestLog, changes: Effects) -> None:
    """Finish a request: nothing more is generated for it."""
    counters.requests_finished += 1
    log.move(request, RequestState.FINISHED)
    changes.finished.append(request.id)


def end(name: str, stream: Stream, number: int, changes: Effects, *, forget: bool = True) -> None:
    """End a ticket of the instance `name`."""
    ticket = stream.tickets[number]
    if not ticket.superseded:
        changes.ended.append(EndedTicket(name, stream.incarnation, number, ticket.request, ticket.started))
    if forget:
        stream.forget(number)
