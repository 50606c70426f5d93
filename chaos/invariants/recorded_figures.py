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
NEAR_S = 1e-3
"""The same for seconds of the run."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Figures of a step, as in its record."""

    reward: float | None
    samples: int
    unscored: int
    tokens: int
    staleness_mean: float
    staleness_max: int
    loss: float
    grad_norm: float


@dataclass(frozen=True, slots=True)
class _Eval:
    """Figures of an evaluation, as in its record."""

    reward: float | None
    problems: int
    variance: float | None


class FiguresOfSamples(Check):
    """See the module."""

    fact_kinds = (Committed,)
    committed_kinds = (StepTrained, BatchReleased)
    name = "history"
    promise = "each step and evaluation is recorded once, with its rewards, counts, losses and seconds"
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
        yield from some(self._compared(ending.history))
        if ending.ended:
            yield from self._complete(ending.history)

    def _complete(self, history: Sequence[object]) -> Iterator[str]:
        """Each step and each evaluation that is due has one record."""
        wanted = self._truth.wanted
        between = range(wanted.eval_every, wanted.steps, wanted.eval_every) if wanted.eval_every else range(0)
        due = [*(f"step {step}" for step in range(1, wanted.steps + 1))]
        due += ["evaluation first", *(f"evaluation step-{step}" for step in between), "evaluation last"]
        found = [f"step {one.step}" for one in history if isinstance(one, Step)]
        found += [f"evaluation {_name(one)}" for one in history if isinstance(one, Eval)]
        if found != due:
            yield f"the history has the records {found}, expected were {due}"

    def _compared(self, history: Sequence[object]) -> Iterator[str]:
        before: Step | None = None
        for record in history:
            match record:
                case Step():
                    yield from _seconds(before, record)
                    before = record
                    due: Sequence[_Step | _Eval] = self._steps.get(record.step, [])
                    what = f"step {record.step}"
                case Eval():
                    due = self._evals.get(f"eval-{_name(record)}", [])
                    what = f"the evaluation {_name(record)!r}"
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
        weights = self._truth.weights(event.root)
        if not all(groups) or weights is None:
            return  # recorded again after its release
        every = [one for group in groups for one in group]
        scored = [[one for one in group if one.score is not None] for group in groups]
        scores = [score_of(self._truth, one) or 0.0 for group in scored for one in group]
        ages = [age for one in every for age in _ages(one, event.step - 1)]
        tokens = sum(len(one.tokens) for group in scored if len(group) > 1 for one in group)
        loss, grad_norm = self._truth.losses(weights) if tokens else (0.0, 0.0)
        self._steps.setdefault(event.step, []).append(
            _Step(
                reward=sum(scores) / len(scores) if scores else None,
                samples=len(scores),
                unscored=len(every) - len(scores),
                tokens=tokens,
                loss=loss,
                grad_norm=grad_norm,
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


def _name(record: Eval) -> str:
    """The name of an evaluation, as in its batch."""
    return f"step-{record.step}" if record.when == "during" else record.when


def _seconds(before: Step | None, record: Step) -> Iterator[str]:
    """A step lasts from the end of the one before it to its own, and is not shorter than its parts."""
    parts_s = record.seeding_s + record.waiting_s + record.training_s + record.weights_s
    parts_s += record.recovery_s + record.evaluation_s
    if parts_s > record.step_s + NEAR_S:
        yield f"the history has for step {record.step} {record.step_s} s, of which {parts_s} s are accounted"
    if before is not None and abs(record.t_s - before.t_s - record.step_s) > NEAR_S:
        yield (
            f"the history has for step {record.step} {record.step_s} s, since the step before are "
            f"{record.t_s - before.t_s} s"
        )


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
