"""Snapshot records: the rollout state at rest, to bound the replay of the journal.

Owns the conversion between the live values and their records, both ways, and nothing else. Columns are raw
and little-endian, as on the wire and as on every host that Gleaner runs on.
"""

from collections.abc import Mapping

from gleaner.actors.rollout.state.events import BatchRecord, RequestRecord, StreamRecord
from gleaner.actors.rollout.state.request_log import RequestLog, RequestState
from gleaner.actors.rollout.state.tickets import Stream
from gleaner.actors.rollout.state.token_log import Batch, TokenLog


def record_batch(batch: Batch) -> BatchRecord:
    """The batch at rest."""
    return BatchRecord(
        submitted=batch.as_submitted(),
        taker=batch.taker,
        taken=tuple(sorted(batch.taken)),
        requests=_record_requests(list(batch.requests())),
        kept=tuple(batch.fates.kept),
        dropped=tuple(batch.fates.dropped.items()),
        added=batch.as_added(),
        closed=tuple(batch.fates.closed.items()),
    )


def _record_requests(logs: list[RequestLog]) -> tuple[RequestRecord, ...]:
    held = [log.slot for log in logs if log.crc is None]
    raw = logs[0].columns.read(held)
    return tuple(_record_request(log, *(next(raw) if log.crc is None else (b"", b""))) for log in logs)


def _record_request(log: RequestLog, tokens: bytes, logprobs: bytes) -> RequestRecord:
    return RequestRecord(
        group=log.group,
        sample=log.sample,
        state=log.state.value,
        attempts=log.attempts,
        tokens=tokens,
        logprobs=logprobs,
        spans=tuple(log.spans),
        score=log.score,
        status=log.status,
        again=log.again,
        dropped=log.dropped,
        let_go=None if log.crc is None else (len(log), log.crc),
        due=log.due,
        cut=log.cut,
        ended=log.ended,
    )


def restore_batch(log: TokenLog, record: BatchRecord) -> None:
    """Open the batch of `record` in `log` as it was."""
    batch = log.open(record.submitted)
    batch.taker, batch.taken = record.taker, set(record.taken)
    log.add(batch, record.added)
    batch.fates.kept, batch.fates.dropped = dict.fromkeys(record.kept), dict(record.dropped)
    past = len(record.requests) - sum(map(len, batch.groups))
    closed = dict(record.closed)
    surplus = sum(len(batch.groups[group]) - len(samples) for group, samples in closed.items())
    whole = len(record.requests) - surplus
    for number, kept in enumerate(record.requests):
        if number == whole:
            _close(batch, closed)
        request = _place(batch, kept, surplus=number >= whole)
        request.attempts = kept.attempts
        request.restore(kept.tokens, kept.logprobs, kept.spans)
        if kept.let_go is not None:
            log.restore_let_go(request, *kept.let_go)
        request.score, request.status = kept.score, kept.status
        request.dropped, request.ended = kept.dropped, kept.ended
        request.due, request.cut = kept.due, kept.cut
        log.move(request, RequestState(kept.state))
        if number < past:
            log.again(request)
    if not surplus:  # all samples of the closed groups count
        _close(batch, closed)


def _close(batch: Batch, closed: Mapping[int, tuple[int, ...]]) -> None:
    for group, samples in closed.items():
        batch.close_group(group, samples)


def _place(batch: Batch, record: RequestRecord, *, surplus: bool) -> RequestLog:
    """The request of this record in a batch that is opened anew."""
    requests = batch.surplus if surplus else batch.groups[record.group]
    return next(one for one in requests if (one.group, one.sample) == (record.group, record.sample))


def record_stream(instance: str, stream: Stream) -> StreamRecord:
    """The stream at rest."""
    return StreamRecord(
        instance=instance,
        incarnation=stream.incarnation,
        last_seq=stream.last_seq,
        next_ticket=stream.next_ticket,
        gone=stream.gone,
        tickets=tuple(sorted(stream.tickets.items())),
    )


def restore_stream(record: StreamRecord) -> Stream:
    """The stream as it was."""
    tickets = dict(record.tickets)
    return Stream(
        incarnation=record.incarnation,
        last_seq=record.last_seq,
        next_ticket=record.next_ticket,
        gone=record.gone,
        tickets=tickets,
        held=sum(not ticket.superseded for ticket in tickets.values()),
    )
