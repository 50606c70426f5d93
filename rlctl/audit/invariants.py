"""Audit of a run: invariants I1 to I5 and I7, checked from journals and training records.

Pure: evidence goes in, violations come out. `gleaner.rlctl.audit.run_files` reads the evidence. Missing
evidence gives an unchecked violation: an invariant without evidence neither passes nor counts as broken.

A host that dies with the trainer's copies returns the run to its last checkpoint (`Rewound`), and the later
steps are done again from the same samples. That is no violation, because no later version was made from the
discarded state. A repeated step with other samples is a violation.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gleaner.actors.cluster.state_manager import Rewound
from gleaner.actors.protocol.cluster import StepTrained
from gleaner.actors.protocol.rollout import BatchLedger, RequestLedger
from gleaner.rlctl.audit.evidence import CheckpointSeen, Evidence, lineage, some
from gleaner.rlctl.audit.steps import each_step_once, steps_that_lack
from gleaner.rlctl.audit.verdicts import each_verdict_once, verdicts_without_request

__all__ = [
    "INVARIANTS",
    "CheckpointSeen",
    "Evidence",
    "State",
    "Violation",
    "audit",
    "lineage",
    "states",
    "step_of",
]


class State(StrEnum):
    """State of an invariant."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNCHECKED = "not checked"


INVARIANTS = ("I1", "I2", "I3", "I4", "I5", "I7")


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant, or (`checked` is false) an invariant that could not be checked, with a text."""

    invariant: str
    text: str
    checked: bool = True

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


def audit(evidence: Evidence) -> list[Violation]:
    """All broken or unchecked invariants, I1 first; empty when the run is whole."""
    missing = dict.fromkeys(evidence.missing)
    found = [Violation(name, f"cannot be checked: {text}", checked=False) for name, text in missing]
    lacking = {name for name, _text in missing}
    for name, contradictions, absences in CHECKS:
        found += [Violation(name, text) for text in contradictions(evidence)]
        if name not in lacking:
            found += [Violation(name, text) for text in absences(evidence)]
    return sorted(found, key=lambda violation: violation.invariant)


def states(violations: Sequence[Violation]) -> dict[str, State]:
    """The state of each invariant. An observed breach counts even where other parts could not be checked."""
    found = dict.fromkeys(INVARIANTS, State.HOLDS)
    for violation in violations:
        if violation.checked:
            found[violation.invariant] = State.BROKEN
        elif found[violation.invariant] is State.HOLDS:
            found[violation.invariant] = State.UNCHECKED
    return found


# -- I1 --


def _each_request_once(evidence: Evidence) -> Iterator[str]:
    for ledger in evidence.ledgers:
        yield from some(fault for request in ledger.requests for fault in _span_faults(request))
    taken_back = _taken_back(evidence.trained)
    released = _released(evidence)
    for batch, contents in released.items():
        if len(contents) > 1 + taken_back[step_of(batch)]:
            yield f"{batch} was released twice, with different contents"
    reached: dict[str, int] = {}
    for step, event in sorted(lineage(evidence.trained).items()):
        if f"step-{step}" in released:
            ledger_of_step = released[f"step-{step}"][-1]
            yield from _reaches(step, event, ledger_of_step, evidence.requests_per_step)
        for request in {sample.request for sample in event.samples}:
            if reached.setdefault(request, step) != step:
                yield f"{request} was trained in step {reached[request]} and again in step {step}"


def _no_batch(evidence: Evidence) -> Iterator[str]:
    released = _released(evidence)
    for step in sorted(lineage(evidence.trained)):
        if f"step-{step}" not in released:
            yield f"step {step} was trained and its batch step-{step} is in no journal"


def _released(evidence: Evidence) -> dict[str, list[BatchLedger]]:
    """The different contents of each batch, in order: more than one where a step had to be done again."""
    released: dict[str, list[BatchLedger]] = {}
    for ledger in evidence.ledgers:
        contents = released.setdefault(ledger.batch, [])
        if ledger not in contents:
            contents.append(ledger)
    return released


def _taken_back(trained: Sequence[StepTrained | Rewound]) -> Counter[int | None]:
    """How often each step was lost with its state and had to be done again."""
    taken_back: Counter[int | None] = Counter()
    for index, event in enumerate(trained):
        if isinstance(event, Rewound):
            taken_back.update(step for step in lineage(trained[:index]) if step > event.step)
    return taken_back


def _reaches(step: int, event: StepTrained, ledger: BatchLedger, expected: int) -> Iterator[str]:
    counting = [request for request in ledger.requests if not request.dropped]
    collected = {request.request: request for request in counting}
    if len(counting) != expected or len(collected) != expected:
        yield f"step {step}: the batch holds {len(collected)} requests, expected {expected}"
    times = Counter(sample.request for sample in event.samples)
    yield from some(
        f"step {step}: {request} reached the trainer {count} times"
        for request, count in times.items()
        if count > 1
    )
    unscored = {name: one.status for name, one in collected.items() if one.score is None and one.status}
    yield from some(
        f"step {step}: {request} never reached the trainer"
        for request in collected.keys() - times - unscored.keys()
    )
    yield from some(
        f"step {step}: {request} was trained and has no score: {status}"
        for request, status in unscored.items()
        if request in times
    )
    yield from some(
        f"step {step}: {request} was trained and is no request of the batch"
        for request in times.keys() - collected
    )
    for sample in event.samples:
        source = collected.get(sample.request)
        if source is not None and (source.count, source.crc) != (sample.count, sample.crc):
            yield (
                f"step {step}: {sample.request} was trained with {sample.count} tokens "
                f"(crc {sample.crc:08x}), collected were {source.count} (crc {source.crc:08x})"
            )


def _span_faults(request: RequestLedger) -> Iterator[str]:
    position = 0
    for span in request.spans:
        if span.start != position or span.count < 1:
            kind = "gap" if span.start > position else "overlap"
            where = f"attempt {span.attempt} starts at {span.start}"
            yield f"{request.request}: {kind} at token {position}: {where}"
        position = span.start + span.count
    if position != request.count:
        yield f"{request.request}: its spans end at token {position}, it has {request.count}"


# -- I2 --


def _nothing_lost_or_twice(evidence: Evidence) -> Iterator[str]:
    yield from some(evidence.state_faults)
    counters = evidence.counters
    if counters is None:
        return
    if evidence.tokens_lost:
        yield f"{evidence.tokens_lost} collected tokens were lost"
    if counters.tokens_generated_twice:
        yield f"{counters.tokens_generated_twice} tokens were generated twice"


def _not_all_there(evidence: Evidence) -> Iterator[str]:
    counters = evidence.counters
    if counters is None:
        return
    ledgers = (ledger for contents in _released(evidence).values() for ledger in contents)
    standing = sum(request.count for ledger in ledgers for request in ledger.requests)
    if standing != counters.tokens_collected:
        yield f"{counters.tokens_collected} tokens were collected, the batches hold {standing}"


# -- I3 --


def _on_policy(evidence: Evidence) -> Iterator[str]:
    for ledger in evidence.ledgers:
        step = step_of(ledger.batch)
        least, most = ledger.version, ledger.version
        if step is None and ledger.min_version is not None:
            least, most = ledger.min_version, max(ledger.version, *_versions(ledger), 0)
        if step is not None:
            if ledger.version != step - 1:
                yield f"{ledger.batch} was rolled out under version {ledger.version}, expected {step - 1}"
            least, most = max(0, step - 1 - evidence.staleness), step - 1
        what = f"version {most}" if least == most else f"versions {least} to {most}"
        yield from some(
            f"{request.request}: tokens {span.start} to {span.start + span.count - 1} bear version "
            f"{span.version}, the batch is of {what}"
            for request in ledger.requests
            for span in request.spans
            if not least <= span.version <= most
        )


def _versions(ledger: BatchLedger) -> list[int]:
    return [span.version for request in ledger.requests for span in request.spans]


def step_of(batch: str) -> int | None:
    """The step of a batch's name; None for an evaluation."""
    kind, _, number = batch.partition("-")
    return int(number) if kind == "step" and number.isdigit() else None


# -- I4 --


def _old_incarnations_silent(evidence: Evidence) -> Iterator[str]:
    for name, held in sorted(evidence.fences.items()):
        for earlier, later in itertools.pairwise(held):
            if later <= earlier:
                yield f"{name} was held by incarnation {earlier} and then by the older {later}"
    for ledger in evidence.ledgers:
        yield from some(fault for request in ledger.requests for fault in _zombie_spans(request))


def _zombie_spans(request: RequestLedger) -> Iterator[str]:
    newest: dict[str, int] = {}
    attempt = 0
    for span in request.spans:
        if span.attempt <= attempt:
            yield f"{request.request}: attempt {span.attempt} wrote after attempt {attempt}"
        if span.incarnation < newest.get(span.instance, 0):
            yield (
                f"{request.request}: incarnation {span.incarnation} of {span.instance} wrote after "
                f"{newest[span.instance]}"
            )
        attempt = max(attempt, span.attempt)
        newest[span.instance] = max(span.incarnation, newest.get(span.instance, 0))


def _nothing(_evidence: Evidence) -> Iterator[str]:
    return iter(())


CHECKS = (
    ("I1", _each_request_once, _no_batch),
    ("I2", _nothing_lost_or_twice, _not_all_there),
    ("I3", _on_policy, _nothing),
    ("I4", _old_incarnations_silent, _nothing),
    ("I5", each_step_once, steps_that_lack),
    ("I7", each_verdict_once, verdicts_without_request),
)
"""For each invariant: the contradictions, which hold whatever else is missing, and the absences, which only
complete evidence can show."""
