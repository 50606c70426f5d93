"""Endings: a ticket counts no longer, and its request is finished, waits again, or went with its instance.

Pure: changes the token log, a stream and the counters by what happened, and notes it in `Changes`.
"""

from actors.rollout.changes import Changes, Ended
from actors.rollout.events import Counters
from actors.rollout.request_log import RequestLog, RequestState
from actors.rollout.tickets import Stream
from actors.rollout.token_log import TokenLog


def gone(log: TokenLog, counters: Counters, instance: str, stream: Stream, changes: Changes) -> None:
    """The incarnation is given up: its requests wait again. The stream is to be fenced."""
    for number in list(stream.live()):
        revoke(log, counters, instance, stream, number, changes)


def revoke(
    log: TokenLog, counters: Counters, instance: str, stream: Stream, number: int, changes: Changes
) -> None:
    """Take a live ticket back: its request waits again with what was collected."""
    end(instance, stream, number, changes, forget=False)
    stream.supersede(number)
    waits(log, counters, log.requests[stream.tickets[number].request], changes)


def waits(log: TokenLog, counters: Counters, request: RequestLog, changes: Changes) -> None:
    """No instance has it any more: it waits for one again, unless its time is up."""
    if request.due:
        finished(log, counters, request, changes)
    else:
        log.move(request, RequestState.QUEUED)
        changes.queued.append(request.id)


def finished(log: TokenLog, counters: Counters, request: RequestLog, changes: Changes) -> None:
    """Nothing more is generated for it."""
    counters.requests_finished += 1
    log.move(request, RequestState.FINISHED)
    changes.finished.append(request.id)


def end(name: str, stream: Stream, number: int, changes: Changes, *, forget: bool = True) -> None:
    """A ticket of the instance `name` has ended."""
    ticket = stream.tickets[number]
    if not ticket.superseded:
        changes.ended.append(Ended(name, stream.incarnation, number, ticket.request, ticket.started))
    if forget:
        stream.forget(number)
