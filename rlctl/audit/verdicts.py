"""I7 of the audit: every verdict counts once, and belongs to a request of the run.

Pure. The manager's journal has the verdicts that count; that of the reward proxy has those that took long,
where it has any. The proxy keeps a verdict until its batch is over, so a second one of a request is a
verdict that was computed although it was there.
"""

import math
from collections.abc import Iterator, Sequence

from gleaner.actors.reward.batch_limit import surplus_batches
from gleaner.actors.reward.journal import BatchClosed, RewardSnapshot, VerdictGiven
from gleaner.actors.reward.verdicts import OURS
from gleaner.rlctl.audit.evidence import Evidence, some
from gleaner.supervisor.message import Message


def each_verdict_once(evidence: Evidence) -> Iterator[str]:
    yield from some(evidence.verdict_faults)
    for ledger in evidence.ledgers:
        yield from some(
            f"{request.request} has the score {request.score}, with the status {request.status}"
            for request in ledger.requests
            if request.score is not None and (request.status in OURS or not math.isfinite(request.score))
        )
    yield from some(list(_given_twice(evidence.rewards)))
    yield from some(list(_of_others(evidence)))


def verdicts_without_request(evidence: Evidence) -> Iterator[str]:
    known = {(ledger.batch, request.request) for ledger in evidence.ledgers for request in ledger.requests}
    yield from some(
        f"the reward proxy has a verdict of {given.request} of {given.batch}, which is no request of the run"
        for given in _given(evidence.rewards)
        if (given.batch, given.request) not in known
    )


def _given(rewards: Sequence[Message]) -> Iterator[VerdictGiven]:
    for event in rewards:
        if isinstance(event, VerdictGiven):
            yield event
        elif isinstance(event, RewardSnapshot):
            yield from event.verdicts


def _given_twice(rewards: Sequence[Message]) -> Iterator[str]:
    """Of batches that are over, and of those beyond its limit, the proxy keeps none."""
    open_batches: dict[str, set[str]] = {}
    for event in rewards:
        if isinstance(event, BatchClosed):
            open_batches.pop(event.batch, None)
            continue
        for given in _given([event]):
            there = open_batches.setdefault(given.batch, set())
            if given.request in there:
                yield f"the reward proxy has two verdicts of {given.request} of {given.batch}"
            there.add(given.request)
            for batch in surplus_batches(open_batches):
                del open_batches[batch]


def _of_others(evidence: Evidence) -> Iterator[str]:
    """Verdicts of the proxy that are not the ones that count."""
    counted = {
        (ledger.batch, request.request): request.score
        for ledger in evidence.ledgers
        for request in ledger.requests
        if request.score is not None
    }
    for given in _given(evidence.rewards):
        score = counted.get((given.batch, given.request), given.score)
        if score != given.score:
            yield f"{given.request} counts with the score {score}, the reward proxy gave {given.score}"
