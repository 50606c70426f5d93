"""Did a run keep its promises? Invariants I1 to I5, checked from what was journaled and trained.

Pure: evidence goes in, violations come out. Where the evidence comes from is `rlctl.evidence`. Whatever
should be there and is not is a violation too: nothing passes for want of a look.

A host that dies with the trainer's copies takes the run back to its last checkpoint (`Rewound`); the steps
after it are done again from the same samples. That is no violation: what was thrown away made no later
version. The same step made from other samples is one.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from actors.cluster.messages import StepTrained, TrainedSample
from actors.cluster.state_manager import Rewound
from actors.rollout.events import Counters
from actors.rollout.messages import BatchLedger, RequestLedger

MAX_SHOWN = 3
"""Examples named in one violation; the count tells the rest."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold, or could not be checked, in words."""

    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """A checkpoint directory: the step that it says it holds, the samples of that step, what is wrong."""

    name: str
    step: int
    samples: tuple[TrainedSample, ...] = ()
    damage: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a stopped run left behind.

    ledgers: every batch, released or still open, as its journal tells. trained: what the StateManager
    journaled, in order. finished: steps that the controller recorded, in order. fences: the incarnations that
    held each registered name, in order. state_faults: broken invariants of the manager's own state.
    missing: (invariant, text) for what could not be read. staleness: the bound on the age of trained tokens,
    in versions.
    """

    steps: int
    requests_per_step: int
    complete: bool
    staleness: int = 0
    ledgers: Sequence[BatchLedger] = ()
    trained: Sequence[StepTrained | Rewound] = ()
    finished: Sequence[int] = ()
    counters: Counters | None = None
    tokens_lost: int = 0
    state_faults: Sequence[str] = ()
    fences: Mapping[str, Sequence[int]] = field(default_factory=dict)
    checkpoints: Sequence[CheckpointSeen] = ()
    missing: Sequence[tuple[str, str]] = ()


def audit(evidence: Evidence) -> list[Violation]:
    """Everything that did not hold, I1 first; empty when the run is whole."""
    found = [Violation(invariant, f"cannot be checked: {text}") for invariant, text in evidence.missing]
    found += [Violation("I1", text) for text in _each_request_once(evidence)]
    found += [Violation("I2", text) for text in _nothing_lost_or_twice(evidence)]
    found += [Violation("I3", text) for text in _on_policy(evidence)]
    found += [Violation("I4", text) for text in _old_incarnations_silent(evidence)]
    found += [Violation("I5", text) for text in _each_step_once(evidence)]
    return sorted(found, key=lambda violation: violation.invariant)


def lineage(trained: Sequence[StepTrained | Rewound]) -> dict[int, StepTrained]:
    """What made each version in the end."""
    line: dict[int, StepTrained] = {}
    for event in trained:
        if isinstance(event, Rewound):
            line = {step: kept for step, kept in line.items() if step <= event.step}
        else:
            line[event.step] = event
    return line


# -- I1 --


def _each_request_once(evidence: Evidence) -> Iterator[str]:
    for ledger in evidence.ledgers:
        yield from _some(fault for request in ledger.requests for fault in _span_faults(request))
    taken_back = _taken_back(evidence.trained)
    released = _released(evidence)
    for batch, contents in released.items():
        if len(contents) > 1 + taken_back[step_of(batch)]:
            yield f"{batch} was released twice, with different contents"
    reached: dict[str, int] = {}
    for step, event in sorted(lineage(evidence.trained).items()):
        if f"step-{step}" not in released:
            yield f"step {step} was trained and its batch step-{step} is in no journal"
            continue
        ledger_of_step = released[f"step-{step}"][-1]
        yield from _reaches(step, event, ledger_of_step, evidence.requests_per_step)
        for request in {sample.request for sample in event.samples}:
            if reached.setdefault(request, step) != step:
                yield f"{request} was trained in step {reached[request]} and again in step {step}"


def _released(evidence: Evidence) -> dict[str, list[BatchLedger]]:
    """The different contents of each batch, in order: more than one where a step had to be done again."""
    released: dict[str, list[BatchLedger]] = {}
    for ledger in evidence.ledgers:
        contents = released.setdefault(ledger.batch, [])
        if ledger not in contents:
            contents.append(ledger)
    return released


def _taken_back(trained: Sequence[StepTrained | Rewound]) -> Counter[int | None]:
    """How often each step was lost with the state that it had made, so that it had to be done again."""
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
    yield from _some(
        f"step {step}: {request} reached the trainer {count} times"
        for request, count in times.items()
        if count > 1
    )
    yield from _some(
        f"step {step}: {request} never reached the trainer" for request in collected.keys() - times
    )
    yield from _some(
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
    yield from _some(evidence.state_faults)
    counters = evidence.counters
    if counters is None:
        return
    if evidence.tokens_lost:
        yield f"{evidence.tokens_lost} collected tokens were lost"
    if counters.tokens_generated_twice:
        yield f"{counters.tokens_generated_twice} tokens were generated twice"
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
        yield from _some(
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
        yield from _some(fault for request in ledger.requests for fault in _zombie_spans(request))


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


# -- I5 --


def _each_step_once(evidence: Evidence) -> Iterator[str]:
    yield from _finished_in_order(evidence)
    yield from _trained_in_order(evidence)
    line = lineage(evidence.trained)
    for checkpoint in evidence.checkpoints:
        if checkpoint.damage:
            yield f"checkpoint {checkpoint.name}: {checkpoint.damage}"
        elif checkpoint.step not in line:
            yield f"checkpoint {checkpoint.name} is of step {checkpoint.step}, which was never trained"
        elif _made_of(checkpoint.samples) != _made_of(line[checkpoint.step].samples):
            yield f"checkpoint {checkpoint.name} was made from other samples than step {checkpoint.step}"
    if evidence.complete and not any(
        seen.step == evidence.steps and not seen.damage for seen in evidence.checkpoints
    ):
        yield f"there is no whole checkpoint of the last step, {evidence.steps}"


def _finished_in_order(evidence: Evidence) -> Iterator[str]:
    times = Counter(evidence.finished)
    last = evidence.steps if evidence.complete else max(times, default=0)
    yield from _some(f"step {step} is recorded {count} times" for step, count in times.items() if count > 1)
    yield from _some(f"step {step} was never recorded" for step in range(1, last + 1) if step not in times)
    yield from _some(
        f"step {step} is recorded, the run has {evidence.steps}" for step in times if step > last
    )


def _trained_in_order(evidence: Evidence) -> Iterator[str]:
    sources: dict[int, StepTrained] = {}
    last = 0
    for event in evidence.trained:
        if isinstance(event, Rewound):
            if event.step > last:
                yield f"training went back to step {event.step} from step {last}, which is no way back"
        elif event.step != last + 1:
            what = "what lies between was skipped" if event.step > last else "it was done twice"
            yield f"step {event.step} was trained right after step {last}: {what}"
        elif _made_of(sources.setdefault(event.step, event).samples) != _made_of(event.samples):
            yield f"step {event.step} was done again from other samples than before"
        last = event.step
    wanted = evidence.steps if evidence.complete else max(evidence.finished, default=0)
    if last < wanted:
        yield f"training reached step {last}, {wanted} steps are recorded or due"
    elif last > evidence.steps:
        yield f"training reached step {last}, the run has {evidence.steps}"


def _made_of(samples: Sequence[TrainedSample]) -> list[tuple[str, int, int]]:
    return sorted((sample.request, sample.count, sample.crc) for sample in samples)


def _some(faults: "Iterator[str] | Sequence[str]") -> Iterator[str]:
    """The first few, and how many more."""
    every = list(faults)
    yield from every[:MAX_SHOWN]
    if len(every) > MAX_SHOWN:
        yield f"and {len(every) - MAX_SHOWN} more of this kind"
