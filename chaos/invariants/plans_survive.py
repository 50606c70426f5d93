"""Plans survive: what the scheduler plans and learns, is not lost, and is in its journal first.

Owns the newest plan in the scheduler's journal. Reads commits and answers, and compares each with the ones
before, over all lives of the scheduler.
"""

from collections.abc import Iterable, Iterator

from gleaner.actors.cluster.scheduler import ClusterState
from gleaner.actors.cluster.seeding import MAX_MEMORY, KindState, SeedingState
from gleaner.actors.names import SCHEDULER
from gleaner.actors.protocol.cluster import Plan, WidthPlanned
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed


class PlansSurvive(Check):
    """See `promise`. every_instance: the job's plans ignore N_prem."""

    fact_kinds = (Committed, MessagePassed)
    message_kinds = (Plan, WidthPlanned)
    committed_kinds = (ClusterState,)
    name = "plans survive"
    promise = (
        "a plan changes only with a new measurement, a width once a step, each is in the journal before "
        "it is answered, and nothing that was learnt is forgotten, whatever restarts"
    )
    meaning = (
        "If this fails, a restart of the head sends the job back to its first guess: steps are too long, or "
        "too many hosts are paid for, until everything is learnt again."
    )

    def __init__(self, *, every_instance: bool = False) -> None:
        self._every_instance = every_instance
        self._kept = ClusterState()

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, Committed) and fact.stream == SCHEDULER:
            for message in fact.messages:
                if isinstance(message, ClusterState):
                    yield from self._compared(self._kept, message)
                    self._kept = message
        elif isinstance(fact, MessagePassed) and fact.source == SCHEDULER and fact.direction != "in":
            if isinstance(answer := fact.message, Plan):
                yield from self._answered(answer)
            elif isinstance(answer, WidthPlanned):
                yield from self._width_answered(answer.width)

    def _compared(self, before: ClusterState, after: ClusterState) -> Iterator[str]:
        if before.job is None or after.job is None or before.job.run_id != after.job.run_id:
            return
        if after.planned_step < before.planned_step:
            yield f"the plan of step {before.planned_step} was replaced by that of {after.planned_step}"
        if before.widths is not None and before.widths != after.widths:
            if after.widths is not None and before.widths.step > after.widths.step:
                yield f"after the width of step {before.widths.step} that of {after.widths.step} was planned"
            if after.widths is None:
                yield f"the width {before.widths.width} of step {before.planned_step} was forgotten"
            elif after.planned_step == before.planned_step and after.widths.step <= before.widths.step:
                yield (
                    f"the width of step {before.planned_step} changed without a measurement, from "
                    f"{before.widths.width} to {after.widths.width}"
                )
            elif (
                before.widths.step == after.widths.step == after.planned_step
                and after.widths.width != before.widths.width
            ):
                yield (
                    f"the width of step {before.widths.step} changed twice, from {before.widths.width} to "
                    f"{after.widths.width}"
                )
        known, now = before.seeding, after.seeding
        if known is None or known == now:
            return
        if now is None:
            yield f"the plan of step {before.planned_step} was forgotten: T_seed {known.t_seed_s:.3f} s"
        elif after.planned_step == before.planned_step:
            yield (
                f"the plan of step {before.planned_step} changed without a measurement: T_seed from "
                f"{known.t_seed_s:.3f} to {now.t_seed_s:.3f} s, N_prem from {known.n_prem} to {now.n_prem}"
            )
        else:
            yield from _forgotten_of_kinds(known, now) if known.kinds or now.kinds else _forgotten(known, now)

    def _answered(self, plan: Plan) -> Iterator[str]:
        kept = self._kept.seeding
        if self._kept.job is None:
            return  # no job of this scheduler is known
        yield from self._width_answered(plan.width)
        if kept is None:
            yield f"a plan was answered that is in no journal: T_seed {plan.t_seed_s:.3f} s"
        elif plan.t_seed_s != kept.t_seed_s or (plan.n_prem != kept.n_prem and not self._every_instance):
            yield (
                f"a plan was answered with T_seed {plan.t_seed_s:.3f} s and N_prem {plan.n_prem}; "
                f"the journal has {kept.t_seed_s:.3f} s and {kept.n_prem}"
            )

    def _width_answered(self, width: int) -> Iterator[str]:
        widths = self._kept.widths
        if self._kept.job is not None and width != (widths.width if widths is not None else 0):
            has = "none" if widths is None else str(widths.width)
            yield f"a plan was answered with a width of {width}; the journal has {has}"


def _forgotten_of_kinds(known: SeedingState, now: SeedingState) -> Iterator[str]:
    """In a job with rounds every kind has its own values; those of the state itself are of the next kind."""
    for kind, before in known.kinds.items():
        if kind not in now.kinds:
            yield f"what was learnt of {kind} rounds was forgotten"
        else:
            for text in _forgotten(before, now.kinds[kind]):
                yield f"{kind} rounds: {text}"


def _forgotten(known: SeedingState | KindState, now: SeedingState | KindState) -> Iterator[str]:
    lost = known.memory.keys() - now.memory.keys()
    if lost and len(known.memory) < MAX_MEMORY:
        yield f"the best windows of {sorted(lost)} instances were forgotten"
    if known.learnt is not None and known.learnt.lengths:
        if now.learnt is None or not now.learnt.lengths:
            yield "the learnt model of a step was forgotten"
        elif len(now.learnt.lengths) < len(known.learnt.lengths) or (
            known.learnt.lengths[-1] not in now.learnt.lengths[-2:]
        ):
            yield (
                f"the model of a step was learnt anew: it has {len(now.learnt.lengths)} steps, and had "
                f"{len(known.learnt.lengths)}"
            )
