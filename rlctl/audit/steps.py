"""I5 of the audit: each step was done exactly once, and checkpoints match it.

Pure. Contradictions are reported apart from absences, because only complete evidence can show an absence.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from gleaner.actors.cluster.state_manager import Rewound
from gleaner.actors.protocol.cluster import StepTrained, TrainedSample
from gleaner.rlctl.audit.evidence import Evidence, lineage, some


def each_step_once(evidence: Evidence) -> Iterator[str]:
    yield from _finished_in_order(evidence)
    yield from _trained_in_order(evidence)
    line = lineage(evidence.trained)
    for checkpoint in evidence.checkpoints:
        if checkpoint.damage:
            yield f"checkpoint {checkpoint.name}: {checkpoint.damage}"
        elif checkpoint.step in line and _made_of(checkpoint.samples) != _made_of(
            line[checkpoint.step].samples
        ):
            yield f"checkpoint {checkpoint.name} was made from other samples than step {checkpoint.step}"


def steps_that_lack(evidence: Evidence) -> Iterator[str]:
    recorded = set(evidence.finished)
    last = evidence.steps if evidence.complete else max(recorded, default=0)
    yield from some(f"step {step} was never recorded" for step in range(1, last + 1) if step not in recorded)
    trained = evidence.trained[-1].step if evidence.trained else 0
    wanted = evidence.steps if evidence.complete else max(recorded, default=0)
    if trained < wanted:
        yield f"training reached step {trained}, {wanted} steps are recorded or due"
    line = lineage(evidence.trained)
    for checkpoint in evidence.checkpoints:
        if not checkpoint.damage and checkpoint.step not in line:
            yield f"checkpoint {checkpoint.name} is of step {checkpoint.step}, which was never trained"
    if evidence.complete and not any(
        seen.step == evidence.steps and not seen.damage for seen in evidence.checkpoints
    ):
        yield f"there is no whole checkpoint of the last step, {evidence.steps}"


def _finished_in_order(evidence: Evidence) -> Iterator[str]:
    times = Counter(evidence.finished)
    last = evidence.steps if evidence.complete else max(times, default=0)
    yield from some(f"step {step} is recorded {count} times" for step, count in times.items() if count > 1)
    yield from some(f"step {step} is recorded, the run has {evidence.steps}" for step in times if step > last)


def _trained_in_order(evidence: Evidence) -> Iterator[str]:
    sources: dict[int, StepTrained] = {}
    last = 0
    for event in evidence.trained:
        if isinstance(event, Rewound):
            if event.step > last:
                yield f"training went back to step {event.step} from step {last}, which is no way back"
        elif event.step != last + 1:
            what = "the steps between were skipped" if event.step > last else "it was done twice"
            yield f"step {event.step} was trained right after step {last}: {what}"
        elif _made_of(sources.setdefault(event.step, event).samples) != _made_of(event.samples):
            yield f"step {event.step} was done again from other samples than before"
        last = event.step
    if last > evidence.steps:
        yield f"training reached step {last}, the run has {evidence.steps}"


def _made_of(samples: Sequence[TrainedSample]) -> list[tuple[str, int, int]]:
    return sorted((sample.request, sample.count, sample.crc) for sample in samples)
