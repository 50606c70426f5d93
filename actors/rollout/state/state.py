"""RolloutState: token log, tickets and streams, changed by events alone.

Owns the one rule by which the state changes, `RolloutState.apply`. Live and in replay it is the same call, so
the manager rebuilds from its journal exactly the state it had. Pure: no clock, no I/O.

`apply` is total and never raises, because an event that raised would raise again in every replay. An event
that must not change anything (an older incarnation, a duplicate, a gap, another version) is counted under its
reason in `refused` and named in `Effects.refused`.

Invariants (`check` returns the broken ones): every collected token is in the log of its request, once; a
request is with one instance at most; every token of a batch bears a published version that the batch admits.
"""

from collections import Counter
from collections.abc import Iterable

from gleaner.actors.protocol.batches import BatchSubmitted
from gleaner.actors.rollout.state.admission import refusal_of
from gleaner.actors.rollout.state.effects import Effects
from gleaner.actors.rollout.state.events import (
    BatchReleased,
    Counters,
    Dispatched,
    FrameLogged,
    GroupsAdded,
    GroupsClosed,
    GroupsDropped,
    GroupsKept,
    GroupsTaken,
    InstanceGone,
    InstanceJoined,
    RequestsDue,
    RolloutSnapshot,
    SampleAgain,
    Scored,
    TicketsRenewed,
    TicketsRevoked,
    VersionFailed,
    VersionPublished,
)
from gleaner.actors.rollout.state.frame_rows import enter_rows
from gleaner.actors.rollout.state.group_events import select
from gleaner.actors.rollout.state.request_log import RequestLog, RequestState
from gleaner.actors.rollout.state.snapshot import record_batch, record_stream, restore_batch, restore_stream
from gleaner.actors.rollout.state.ticket_end import end, finished, gone, revoke
from gleaner.actors.rollout.state.ticket_renewal import renew
from gleaner.actors.rollout.state.tickets import (
    Stream,
    Streams,
    columns_of,
    has_token,
)
from gleaner.actors.rollout.state.token_log import TokenLog
from gleaner.actors.rollout.state.versions import Versions
from gleaner.supervisor import Message


class RolloutState:
    """See the module. Read `log`, `streams`, `versions`, `counters`, `refused` freely; change them by `apply`
    only."""

    def __init__(self) -> None:
        self.log = TokenLog()
        self.streams = Streams()
        self.versions = Versions()
        self.counters = Counters()
        self.refused: Counter[str] = Counter()

    def apply(self, event: Message) -> Effects:
        """Change the state by one event; an event of another kind is refused."""
        changes = Effects()
        match event:
            case FrameLogged():
                self._frame(event, changes)
            case Dispatched():
                self._dispatched(event, changes)
            case Scored():
                self._scored(event, changes)
            case GroupsTaken():
                self._taken(event, changes)
            case GroupsClosed() | GroupsKept() | GroupsDropped() | GroupsAdded() | SampleAgain():
                select(self.log, self.streams, self.counters, event, changes)
            case BatchSubmitted():
                self._submitted(event, changes)
            case BatchReleased():
                self._released(event, changes)
            case InstanceJoined():
                self._joined(event, changes)
            case InstanceGone():
                stream = self.streams.alive(event.instance, event.incarnation)
                if stream is None:
                    changes.refused.append("fenced")
                else:
                    self._fence(event.instance, stream, changes)
                    if event.anew:
                        self._begin_anew(changes.queued)
            case TicketsRevoked():
                stream = self.streams.alive(event.instance, event.incarnation)
                if stream is None:
                    changes.refused.append("fenced")
                else:
                    for ticket in sorted(set(event.tickets)):
                        if stream.is_live(ticket):
                            revoke(self.log, self.counters, event.instance, stream, ticket, changes)
            case TicketsRenewed():
                self._renewed(event, changes)
            case RequestsDue():
                self._due(event, changes)
            case VersionPublished():
                self.versions.publish(event)
            case VersionFailed():
                if not self.versions.fail(event):
                    changes.refused.append("unknown_version")
            case RolloutSnapshot():
                self._restore(event)
            case _:
                changes.refused.append("not_an_event")
        if changes.refused:
            self.refused.update(changes.refused)
        return changes

    def refusal(self, event: BatchSubmitted) -> str | None:
        """Why this batch cannot be opened, in words for its submitter; None if it can, or is open so."""
        return refusal_of(self.log, event)

    def begun_under_others(self, version: int, root: bytes) -> bool:
        """Whether an open batch that takes several versions has tokens of this one, under another root."""
        published = self.versions.root(version)
        return published not in (None, root) and any(
            span.version == version
            for log in self.log.requests.values()
            if log.min_version is not None
            and log.version >= version
            and self.log.batches[log.batch].submitted.scored
            for span in log.spans
        )

    @property
    def tokens_lost(self) -> int:
        """Collected tokens that are in no log. Always 0, or there is a bug."""
        standing = self.log.standing
        return self.counters.tokens_collected - self.counters.tokens_released - standing

    def snapshot(self) -> RolloutSnapshot:
        """All open state as one message; an empty state that applies it equals this one."""
        return RolloutSnapshot(
            batches=tuple(record_batch(batch) for batch in self.log.batches.values()),
            streams=tuple(record_stream(name, stream) for name, stream in self.streams.items()),
            counters=self.counters.copy(),
            refused=dict(self.refused),
            versions=tuple(self.versions.known.values()),
            lost_versions=tuple(self.versions.lost.values()),
            failed_versions=tuple(self.versions.failed.values()),
        )

    def check(self) -> list[str]:
        """Every broken invariant, in words; empty when all hold."""
        faults = self.log.check()
        holders: Counter[str] = Counter()
        for name, stream in self.streams.items():
            for number, ticket in stream.live().items():
                holders[ticket.request] += 1
                log = self.log.requests.get(ticket.request)
                if log is None or (log.state, log.attempts) != (RequestState.DISPATCHED, ticket.attempt):
                    faults.append(f"ticket {number} of {name} is of {ticket.request}, which is elsewhere")
        for log in self.log.requests.values():
            wanted = 1 if log.state is RequestState.DISPATCHED else 0
            if holders[log.id] != wanted:
                faults.append(f"{log.id} is {log.state} and held by {holders[log.id]} instances")
        highest = self.versions.highest
        if highest is not None:
            faults += [
                f"{log.id}: span under version {span.version}, {highest} is the highest that was published"
                for log in self.log.requests.values()
                for span in log.spans
                if span.version > highest
            ]
        if self.tokens_lost:
            faults.append(f"{self.tokens_lost} collected tokens are in no request")
        return faults

    def _submitted(self, event: BatchSubmitted, changes: Effects) -> None:
        if self.refusal(event) is not None:
            changes.refused.append("batch")
        elif event.batch not in self.log.batches:
            changes.queued += [log.id for log in self.log.open(event).requests()]
            if event.scored:
                changes.opened.append(event.batch)

    def _released(self, event: BatchReleased, changes: Effects) -> None:
        if event.batch not in self.log.batches:
            changes.refused.append("unknown_batch")
            return
        before = self.log.standing
        batch = self.log.close(event.batch)
        if batch.submitted.scored:
            changes.released.append(batch.name)
        closed = {log.id for log in batch.requests()}
        self.counters.tokens_released += before - self.log.standing
        for name, stream in self.streams.items():
            for number, ticket in list(stream.tickets.items()):
                if ticket.request in closed:
                    end(name, stream, number, changes)

    def _joined(self, event: InstanceJoined, changes: Effects) -> None:
        old = self.streams.get(event.instance)
        if old is not None and old.incarnation >= event.incarnation:
            if old.gone or old.incarnation > event.incarnation:
                changes.refused.append("fenced")
            return
        if old is not None and not old.gone:
            self._fence(event.instance, old, changes)
        self.streams[event.instance] = Stream(event.incarnation)

    def _fence(self, instance: str, stream: Stream, changes: Effects) -> None:
        """Ignore this incarnation from now on and requeue its requests."""
        gone(self.log, self.counters, instance, stream, changes)
        self.streams.fence(stream)

    def _begin_anew(self, requests: Iterable[str]) -> None:
        """Discard all tokens of these requests."""
        for name in requests:
            log = self.log.requests[name]
            self.counters.waste("lost", len(log))
            self.counters.tokens_released += len(log)
            self.log.empty(log)

    def _dispatched(self, event: Dispatched, changes: Effects) -> None:
        stream = self.streams.alive(event.instance, event.incarnation)
        self.counters.requests_moved += event.moved
        for number, name in zip(event.tickets, event.requests, strict=False):
            log = self.log.requests.get(name)
            if stream is None:
                changes.refused.append("fenced")
            elif log is None:
                changes.refused.append("unknown_request")
            elif log.state is not RequestState.QUEUED:
                changes.refused.append("dispatched_twice")
            elif not (log.admits(event.version) and self._published(log, event.version)):
                changes.refused.append("wrong_version")
            elif number < stream.next_ticket:
                changes.refused.append("ticket_used")
            else:
                log.attempts += 1
                self.counters.requests_migrated += log.attempts > 1
                self.log.move(log, RequestState.DISPATCHED)
                stream.give(number, name, log.attempts, event.version)

    def _renewed(self, event: TicketsRenewed, changes: Effects) -> None:
        stream = self.streams.alive(event.instance, event.incarnation)
        if stream is None:
            changes.refused.append("fenced")
        else:
            renew(self.log, self.versions, stream, event, changes)

    def _published(self, log: RequestLog, version: int) -> bool:
        """Whether this version was published; a batch of exactly one version implies it."""
        return log.min_version is None or version in self.versions.known

    def _frame(self, event: FrameLogged, changes: Effects) -> None:
        stream, columns = self.streams.alive(event.instance, event.incarnation), columns_of(event)
        if stream is None:
            changes.refused.append("fenced")
            if event.instance in self.streams:  # an incarnation that was given up went on decoding
                self.counters.tokens_generated_twice += sum(map(has_token, columns[3] if columns else b""))
        elif event.seq <= stream.last_seq:
            changes.refused.append("duplicate")
        elif event.seq - event.frames != stream.last_seq:
            changes.refused.append("gap")
        elif columns is None:  # its rows are lost: nothing that follows from this incarnation can be joined
            changes.refused.append("malformed")
            self._fence(event.instance, stream, changes)
        else:
            stream.last_seq = event.seq
            self.counters.frames += event.frames
            enter_rows(self.log, self.counters, event, stream, columns, changes)

    def _due(self, event: RequestsDue, changes: Effects) -> None:
        for name in event.requests:
            log = self.log.requests.get(name)
            if log is None:
                changes.refused.append("unknown_request")
            elif log.state in (RequestState.FINISHED, RequestState.DROPPED):
                changes.refused.append("due_late")
            elif not log.due:
                log.due = True
                if log.state is RequestState.QUEUED:
                    finished(self.log, self.counters, log, changes)

    def _scored(self, event: Scored, changes: Effects) -> None:
        log = self.log.requests.get(event.request)
        if log is None:
            changes.refused.append("unknown_request")
        elif log.state is RequestState.DROPPED:
            changes.refused.append("scored_dropped")
        elif log.state is not RequestState.FINISHED:
            changes.refused.append("scored_unfinished")
        elif log.judged:
            changes.refused.append("scored_twice")
        else:
            log.score, log.status = event.score, event.status
            changes.judged.append(event.request)
            self.counters.judge(event.status, event.detail)
            batch = self.log.batches[log.batch]
            batch.verdicts += 1
            if batch.complete(log.group):
                changes.completed.append((log.batch, log.group))

    def _taken(self, event: GroupsTaken, changes: Effects) -> None:
        batch = self.log.batches.get(event.batch)
        if batch is None:
            changes.refused.append("unknown_batch")
        elif event.taker < batch.taker:
            changes.refused.append("fenced")
        else:
            ready = set(batch.ready(event.taker))
            if event.taker > batch.taker:
                batch.taker, batch.taken = event.taker, set()
            batch.taken |= ready & set(event.groups)
            for group in sorted(ready & set(event.groups)):
                for log in batch.groups[group]:
                    self.log.let_go(log)
            self.counters.groups_taken += len(ready & set(event.groups))
            changes.refused += ["not_ready"] * len(set(event.groups) - ready)

    def _restore(self, event: RolloutSnapshot) -> None:
        self.log = TokenLog()
        for batch in event.batches:
            restore_batch(self.log, batch)
        self.streams = Streams({record.instance: restore_stream(record) for record in event.streams})
        self.counters = event.counters.copy()
        self.refused = Counter(event.refused)
        self.versions = Versions(event.versions, event.lost_versions, event.failed_versions)
