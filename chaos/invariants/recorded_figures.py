"""Recorded figures: the history's means and counts are those of the samples.

Owns the figures of steps and evaluations, computed from the true scores, the spans and the records of the
training; at the end of the run they are compared with the history.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gleaner.actors.protocol.cluster import StepTrained
from gleaner.actors.rollout.state.events import BatchReleased
from gleaner.actors.training.records import Eval, Step
from gleaner.chaos.invariants.check import Check, some
from gleaner.chaos.invariants.facts import Committed, Fact, RunEnd
from gleaner.chaos.invariants.shadow import Shadow, ShadowRequest
from gleaner.chaos.invariants.truth import Truth, score_of
from gleaner.rlctl.audit.invariants import Evidence

CLOSE = 1e-9
"""Two figures that differ by less are equal but for rounding."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Figures of a step, as in its record."""

    reward: float | None
    samples: int
    unscored: int
    tokens: int
    staleness_mean: float
    staleness_max: int


@dataclass(frozen=True, slots=True)
class _Eval:
    """Figures of an evaluation, as in its record."""

    reward: float | None
    problems: int
    variance: float | None


class FiguresOfSamples(Check):
    """See the module."""

    fact_kinds = (Committed,)
    name = "history"
    promise = "the rewards, counts and staleness in the history are those of the samples"
    meaning = (
        "If this fails, the curve that a user judges the training by is not that of the training: a better "
        "model looks worse, or the reverse."
    )

    def __init__(self, shadow: Shadow, truth: Truth) -> None:
        self._shadow, self._truth = shadow, truth
        self._steps: dict[int, list[_Step]] = {}  # one for each time that the step was done
        self._evals: dict[str, list[_Eval]] = {}

    def see(self, fact: Fact) -> Iterable[str]:
        for message in fact.messages if isinstance(fact, Committed) else ():
            if isinstance(message, StepTrained):
                self._trained(message)
            elif isinstance(message, BatchReleased):
                self._evaluated(message.batch)
        return ()

    def end(self, evidence: Evidence, ending: RunEnd) -> Iterable[str]:
        for batch in list(self._shadow.versions):
            self._evaluated(batch)  # not released when the job ended
        return some(self._compared(ending.history))

    def _compared(self, history: Sequence[object]) -> Iterator[str]:
        for record in history:
            match record:
                case Step():
                    due: Sequence[_Step | _Eval] = self._steps.get(record.step, [])
                    what = f"step {record.step}"
                case Eval():
                    name = f"step-{record.step}" if record.when == "during" else record.when
                    due = self._evals.get(f"eval-{name}", [])
                    what = f"the evaluation {name!r}"
                case _:
                    continue
            if due and not any(_equal(record, one) for one in due):
                names = due[-1].__dataclass_fields__
                shown = ", ".join(f"{name} {getattr(record, name)}" for name in names)
                yield f"the history has for {what}: {shown}; expected was {due[-1]}"

    def _trained(self, event: StepTrained) -> None:
        groups = [
            self._shadow.group(f"step-{event.step}", group) for part in event.micro_batches for group in part
        ]
        if not all(groups):
            return  # recorded again after its release
        every = [one for group in groups for one in group]
        scored = [[one for one in group if one.score is not None] for group in groups]
        scores = [score_of(self._truth, one) or 0.0 for group in scored for one in group]
        ages = [age for one in every for age in _ages(one, event.step - 1)]
        self._steps.setdefault(event.step, []).append(
            _Step(
                reward=sum(scores) / len(scores) if scores else None,
                samples=len(scores),
                unscored=len(every) - len(scores),
                tokens=sum(len(one.tokens) for group in scored if len(group) > 1 for one in group),
                staleness_mean=sum(ages) / len(ages) if ages else 0.0,
                staleness_max=max(ages, default=0),
            )
        )

    def _evaluated(self, batch: str) -> None:
        if not batch.startswith("eval-"):
            return
        groups = [self._shadow.group(batch, group) for group in range(self._truth.wanted.heldout)]
        if not all(group and group[0].judged for group in groups):
            return  # given up
        found = [score for group in groups if (score := score_of(self._truth, group[0])) is not None]
        mean = sum(found) / len(found) if found else None
        spread = sum((score - (mean or 0.0)) ** 2 for score in found)
        variance = spread / len(found) if len(found) > 1 else None
        self._evals.setdefault(batch, []).append(_Eval(mean, len(found), variance))


def _ages(request: ShadowRequest, version: int) -> list[int]:
    """For each token the number of versions between its weights and those that the step starts from."""
    ends = [start for start, _, _ in request.made[1:]] + [len(request.tokens)]
    spans = zip(request.made, ends, strict=False)
    return [version - made for (start, made, _), end in spans for _ in range(start, end)]


def _equal(record: Step | Eval, due: _Step | _Eval) -> bool:
    for name in due.__dataclass_fields__:
        one, other = getattr(record, name), getattr(due, name)
        if one is None or other is None:
            if one is not other:
                return False
        elif abs(one - other) > CLOSE:
            return False
    return True
