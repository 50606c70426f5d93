"""Selection events: groups closed, kept, dropped and added, samples generated again.

Owns their effects. A part of `state`, whose rules hold here too: total, pure, the same live and in replay.
`group_policy` and `race` decide which of them happen.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Set

from gleaner.actors.rollout.state.effects import Effects, EndedTicket
from gleaner.actors.rollout.state.events import (
    Counters,
    GroupsAdded,
    GroupsClosed,
    GroupsDropped,
    GroupsKept,
    SampleAgain,
)
from gleaner.actors.rollout.state.group_policy import SURPLUS, UNIFORM, Decision, Rule, Standing, decide
from gleaner.actors.rollout.state.length_race import decide_lengths
from gleaner.actors.rollout.state.race import Entrant, decide_race, keys_to_pass
from gleaner.actors.rollout.state.race_keys import closing
from gleaner.actors.rollout.state.request_log import RequestLog, RequestState
from gleaner.actors.rollout.state.tickets import Streams
from gleaner.actors.rollout.state.token_log import Batch, TokenLog

_OPEN, _UNIFORM, _VARIED, _KEPT = Standing.OPEN, Standing.UNIFORM, Standing.VARIED, Standing.KEPT
"""Read here, as in `race`."""

Selects = GroupsClosed | GroupsKept | GroupsDropped | GroupsAdded | SampleAgain


def select(log: TokenLog, streams: Streams, counters: Counters, event: Selects, changes: Effects) -> None:
    """Change the state by one of these events, or name in `changes` why not."""
    match event:
        case SampleAgain():
            _again(log, streams, counters, event, changes)
            return
        case _:
            batch = log.batches.get(event.batch)
    if batch is None:
        changes.refused.append("unknown_batch")
    elif isinstance(event, GroupsClosed):
        _closed(log, streams, counters, batch, event, changes)
    elif isinstance(event, GroupsKept):
        _kept(batch, event, changes)
    elif isinstance(event, GroupsDropped):
        _dropped(log, streams, counters, batch, event, changes)
    else:
        _added(log, batch, event, changes)


def _closed(
    log: TokenLog, streams: Streams, counters: Counters, batch: Batch, event: GroupsClosed, changes: Effects
) -> None:
    surplus: dict[str, RequestLog] = {}
    chosen = dict(zip(event.groups, event.samples, strict=False))
    for group in _undecided(batch, tuple(chosen), changes):
        known = {request.sample for request in batch.groups[group]}
        if group in batch.fates.closed:
            changes.refused.append("closed_twice")
        elif not _countable(batch, chosen[group], known):
            changes.refused.append("closed_otherwise")
        else:
            surplus |= {request.id: request for request in batch.close_group(group, chosen[group])}
            if batch.complete(group):
                changes.completed.append((batch.name, group))
    _give_up(log, streams, counters, surplus, SURPLUS, "aborted", changes)


def _countable(batch: Batch, samples: Collection[int], known: Set[int]) -> bool:
    """Whether these samples are as many different ones of the group as count in this race."""
    counted = batch.submitted.counted
    return 0 < counted == len(samples) == len(known & set(samples))


def _kept(batch: Batch, event: GroupsKept, changes: Effects) -> None:
    for group in _undecided(batch, event.groups, changes):
        if not (batch.closed(group) if batch.submitted.race else batch.complete(group)):
            changes.refused.append("kept_incomplete")
        elif len(batch.fates.kept) >= batch.wanted:
            changes.refused.append("kept_too_many")
        else:
            batch.fates.kept[group] = None
            batch.verdicts += 1
            if batch.complete(group):
                changes.completed.append((batch.name, group))


def _dropped(
    log: TokenLog, streams: Streams, counters: Counters, batch: Batch, event: GroupsDropped, changes: Effects
) -> None:
    dropped: dict[str, RequestLog] = {}
    for group in _undecided(batch, event.groups, changes):
        batch.fates.dropped[group] = event.why
        batch.verdicts += 1
        dropped |= {request.id: request for request in batch.groups[group]}
        counters.groups_dropped += event.why != SURPLUS
        counters.groups_aborted += event.why == SURPLUS
    cause = "aborted" if event.why == SURPLUS else "dropped"
    _give_up(log, streams, counters, dropped, event.why, cause, changes)


def _undecided(batch: Batch, groups: tuple[int, ...], changes: Effects) -> Iterator[int]:
    for group in groups:
        if not batch.selects or not 0 <= group < len(batch.groups):
            changes.refused.append("unknown_group")
        elif group in batch.fates.kept or group in batch.fates.dropped:
            changes.refused.append("decided_twice")
        else:
            yield group


def _added(log: TokenLog, batch: Batch, event: GroupsAdded, changes: Effects) -> None:
    if event.first != len(batch.groups):
        changes.refused.append("added_twice" if event.first < len(batch.groups) else "added_with_a_gap")
    elif len(batch.groups) + len(event.prompts) > batch.submitted.most:
        changes.refused.append("added_too_many")
    else:
        changes.queued += [request.id for request in log.add(batch, event.prompts)]


def _again(log: TokenLog, streams: Streams, counters: Counters, event: SampleAgain, changes: Effects) -> None:
    request = log.requests.get(event.request)
    if request is None:
        changes.refused.append("unknown_request")
    elif request.state is not RequestState.FINISHED or request.judged:
        changes.refused.append("not_without_verdict")
    elif request.again >= log.batches[request.batch].submitted.again:
        changes.refused.append("again_too_often")
    else:
        request.status = event.why
        counters.judge(event.why, event.detail)
        _give_up(log, streams, counters, {request.id: request}, event.why, "lost", changes)
        counters.samples_again += 1
        changes.queued.append(log.again(request).id)


def _give_up(
    log: TokenLog,
    streams: Streams,
    counters: Counters,
    requests: Mapping[str, RequestLog],
    why: str,
    cause: str,
    changes: Effects,
) -> None:
    """Generate nothing more for these requests; their tokens stay in the log until the release. The instances
    that decode them need an abort."""
    for name, stream in streams.items() if requests else ():
        for number, ticket in stream.live().items():
            if ticket.request in requests:
                changes.ended.append(
                    EndedTicket(name, stream.incarnation, number, ticket.request, ticket.started)
                )
                stream.supersede(number)
    changes.dropped += requests
    for request in requests.values():
        request.dropped, request.ended = why, request.state is RequestState.FINISHED
        log.move(request, RequestState.DROPPED)
        counters.waste(cause, len(request))
        log.let_go(request)


def closings_of(batch: Batch, touched: Iterable[int] | None = None) -> GroupsClosed | None:
    """The event that closes every group of an open race whose samples are certain by now; None for none.
    touched: the groups with news; None: any."""
    event = batch.submitted
    if not event.counted:
        return None
    certain: dict[int, tuple[int, ...]] = {}
    for group in range(len(batch.groups)) if touched is None else sorted(touched):
        if group in batch.fates.closed or group in batch.fates.dropped:
            continue
        samples = closing(batch, group, event.counted, by_time=event.race == "time")
        if samples is not None:
            certain[group] = samples
    if not certain:
        return None
    return GroupsClosed(batch=batch.name, groups=tuple(certain), samples=tuple(certain.values()))


def race_has_news(batch: Batch, touched: Collection[int]) -> bool:
    """Whether a race may be decided further now: where verdicts decide, one is there, and no group is named;
    elsewhere one of these groups, in which a response ended, is closed. Other news only make bounds
    higher."""
    return not touched if batch.submitted.drop_uniform else any(map(batch.closed, touched))


def longer_decides(batch: Batch) -> bool:
    """Whether more of a race may be decided since the last decision, if nothing happened but that responses
    are longer. Reads the bounds of its groups; a race by time has none."""
    return batch.submitted.race == "tokens" and batch.race.passed(batch, _count(batch))


def decision_of(batch: Batch, touched: Iterable[int] | None = None) -> Decision:
    """What is to be decided about an open batch now. touched: the groups of a race whose bounds are read;
    None: any."""
    if not batch.selects:
        return Decision()
    event = batch.submitted
    rule = Rule(event.wanted, event.most, event.drop_uniform, event.over_sampling)
    if event.race == "tokens":
        count = _count(batch)
        batch.race.look(batch, count, touched)
        batch.race.close(batch, count)
        if not rule.drop_uniform:
            surplus = {group for group, why in batch.fates.dropped.items() if why == SURPLUS}
            dropped = batch.fates.dropped.keys() - surplus
            decision, batch.race.to_pass = decide_lengths(
                rule, batch.race.lengths(), batch.fates.kept, dropped, surplus
            )
            return decision
        entrants = []
        for group in range(len(batch.groups)):
            tokens, closed = batch.race.of(group)
            entrants.append(Entrant(group, tokens, closed, _standing(batch, group, closed)))
        decision = decide_race(rule, entrants)
        batch.race.to_pass = keys_to_pass(rule, entrants, decision)
        return decision
    race = bool(event.race)
    return decide(
        rule, [_standing(batch, one, race and batch.closed(one)) for one in range(len(batch.groups))]
    )


def _count(batch: Batch) -> int:
    """Samples of a group that count."""
    return batch.submitted.counted or len(batch.prompt(0).seeds)


def events_of(batch: str, decision: Decision) -> list[Selects]:
    """The events that carry out a decision, uniform groups before those that take their places; its prompts
    have to be requested separately."""
    events: list[Selects] = []
    if decision.drop:
        events.append(GroupsDropped(batch=batch, groups=decision.drop, why=UNIFORM))
    if decision.keep:
        events.append(GroupsKept(batch=batch, groups=decision.keep))
    if decision.abort:
        events.append(GroupsDropped(batch=batch, groups=decision.abort, why=SURPLUS))
    return events


def _standing(batch: Batch, group: int, closed: bool) -> Standing:
    """closed: in a race, whether the group is."""
    if group in batch.fates.kept:
        return _KEPT
    if why := batch.fates.dropped.get(group):
        return Standing.ABORTED if why == SURPLUS else Standing.DROPPED
    race = batch.submitted.race
    if closed and not batch.submitted.drop_uniform:
        return _VARIED  # its verdicts change nothing
    if (race and not closed) or not batch.complete(group):
        return _OPEN
    scores = {log.score for log in batch.groups[group] if log.score is not None}
    return _VARIED if len(scores) > 1 else _UNIFORM


def due_aborts(log: TokenLog, streams: Streams) -> dict[str, list[int]]:
    """Tickets of requests that do not count, by instance, whose end its stream has not reported yet."""
    due: dict[str, list[int]] = {}
    if not any(batch.fates.dropped or batch.fates.closed for batch in log.batches.values()):
        return due
    for name, stream in streams.items():
        if stream.held == len(stream.tickets):
            continue  # none is superseded
        for number, ticket in stream.tickets.items():
            if ticket.superseded and log.requests[ticket.request].state is RequestState.DROPPED:
                due.setdefault(name, []).append(number)
    return due
