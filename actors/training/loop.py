"""`JobLoop`: submits batches, trains a step, plans the next, until the last.

Owns the order, and the number of open batches. With a staleness bound k, the batches of steps s to s + k are
open while step s is trained, so rollout does not wait for training. Every part is idempotent: a restarted
controller resumes the loop at the progress in its journal.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from gleaner.actors.names import MANAGER, PROVIDER, TRAINER
from gleaner.actors.protocol.cluster import StartTrace
from gleaner.actors.protocol.rollout import RolloutStatus
from gleaner.actors.protocol.training import (
    StepResult,
    StepSoFar,
    TrainerIs,
    TrainerStatus,
    TrainState,
    TrainStep,
)
from gleaner.actors.training.absence import Absence
from gleaner.actors.training.durability import MAX_UNDURABLE, Durability
from gleaner.actors.training.evaluation import Evaluation
from gleaner.actors.training.history_recorder import HistoryRecorder
from gleaner.actors.training.job_journal import JobProgress
from gleaner.actors.training.records import PhaseName
from gleaner.actors.training.retrying_ask import RetryingAsk
from gleaner.actors.training.settings import LoopSettings
from gleaner.actors.training.step_clock import StepClock, StepSeconds
from gleaner.actors.training.step_plan import StepPlanner
from gleaner.actors.training.submission import Submission
from gleaner.supervisor import AskFailed, Context, Refused, Terminated, WorkDeadlines

START_DEADLINE_S = 180.0  # until a trainer has joined, loaded and published; imports on a cold disk are slow
STEP_POLL_S = 2.0  # polling period for a lost message of the trainer
STEP_LATE_S = 600.0  # so long without any progress, and much longer than recent steps, is logged


@dataclass(frozen=True, slots=True)
class LoopParts:
    """The parts of the controller that the loop calls in their order."""

    submission: Submission
    evaluation: Evaluation
    durability: Durability
    recorder: HistoryRecorder


class JobLoop:
    """`run` it to the end of the job; call `step_done` on the trainer's message.

    Args:
        settings: sections `job`, `rollout` and `fleet`.
        first_instance: waits for the first preemptible instance, up to the configured time.
    """

    def __init__(
        self,
        ctx: Context,
        retrying_ask: RetryingAsk,
        settings: LoopSettings,
        standing: JobProgress,
        parts: LoopParts,
        first_instance: Callable[[], Awaitable[None]],
    ) -> None:
        self._ctx, self._retrying_ask, self._settings = ctx, retrying_ask, settings
        self._standing, self._durability, self._recorder = standing, parts.durability, parts.recorder
        self._first_instance = first_instance
        self._submission, self._evaluation = parts.submission, parts.evaluation
        self._planner = StepPlanner(ctx, retrying_ask)
        begun_s = parts.recorder.step_began_s  # by an earlier life of this actor
        self._manager = Absence(ctx, MANAGER, RolloutStatus(), away=begun_s is not None)
        self._trainer_away = Absence(ctx, TRAINER, TrainerStatus(), away=begun_s is not None)
        self._clock = StepClock(ctx.now() if begun_s is None else begun_s)
        self._clock.lap("recovery", ctx.now())
        self._away_s = 0.0  # seconds away of trainer and manager, at the last lap
        self._usual = WorkDeadlines(STEP_LATE_S, STEP_LATE_S)
        self._news = asyncio.Event()  # of the running step
        self._batch = ""  # of the running step
        self._whole = False  # it is, and the width of the next step is not decided
        self._idle_from_s: float | None = None  # since it is
        self._version = 0  # the trainer's version in its last reply
        self._life = 0  # the trainer's incarnation in its last reply
        self._ahead: set[int] = set()  # steps whose batches were submitted early

    def step_done(self) -> None:
        """The trainer has a result."""
        self._news.set()

    def batches_whole(self, batches: Collection[str]) -> None:
        """These batches are rolled out, and nothing else is."""
        if self._batch in batches:
            self._whole = True
            self._news.set()

    def terminated(self, message: Terminated) -> None:
        """An actor that this one watches has ended."""
        self._manager.terminated(message)
        self._trainer_away.terminated(message)

    async def run(self) -> None:
        """Run every step, with an evaluation before the first and after the last one."""
        self._ctx.background(self._manager.follow(), "watch the manager")
        self._ctx.background(self._trainer_away.follow(), "watch the trainer")
        self._phase("trainer")
        trainer = await self._trainer()
        await self._durability.release()
        if trainer.step == 0 and self._standing.finished == 0:
            self._phase("evaluation")
            await self._evaluation.run("first", trainer)
        if self._settings.fleet.await_instance:
            self._phase("instance")
            await self._submission.publish(trainer)  # perhaps no batch has announced them
            await self._first_instance()
        await self._ctx.tell(PROVIDER, StartTrace())
        # A host copy that is lost with its host takes the trainer back to its last checkpoint, at any time.
        while "last" not in self._standing.evals:
            known = self._life
            trainer = await self._trainer()
            self._lap("other" if known == self._life else "recovery")
            step = min(self._standing.finished, trainer.step) + 1
            if step > self._settings.job.steps:
                self._phase("evaluation")
                self._release()
                await self._evaluation.run("last", trainer)
            elif not self._evaluates(trainer.step) or await self._evaluate_between(trainer):
                first = self._recorder.step_began_s is None
                self._phase("steps")
                if first:
                    self._clock = StepClock(self._ctx.now())
                await self._one_step(step, trainer)
        self._phase("checkpoint")
        await self._durability.until(self._settings.job.steps)

    def _release(self) -> None:
        """Release durable batches in the background: the manager is needed for the next step first."""
        self._ctx.background(self._durability.release(), "release of batches")

    async def _evaluate_between(self, trainer: TrainerIs) -> bool:
        """As `Evaluation.run`."""
        self._phase("evaluation")
        whole = await self._evaluation.run("during", trainer)
        self._lap("evaluation")
        if not whole:
            self._clock.void(self._ctx.now())
        return whole

    def _phase(self, phase: PhaseName) -> None:
        self._recorder.phase(phase, self._ctx.now())

    def _evaluates(self, version: int) -> bool:
        """Whether this version is due for an evaluation."""
        every = self._settings.job.eval_every
        return bool(every) and version > 0 and version % every == 0 and version == self._standing.finished

    def _lap(self, what: str) -> None:
        """Count the time since the last lap as `what`, except for the absences of trainer or manager."""
        before_s, self._away_s = self._away_s, self._manager.total_s() + self._trainer_away.total_s()
        self._clock.lap(what, self._ctx.now(), self._away_s - before_s)

    async def _trainer(self) -> TrainerIs:
        trainer = await self._retrying_ask.ask(TRAINER, TrainerStatus(), TrainerIs, START_DEADLINE_S)
        self._life = trainer.life
        return trainer

    async def _one_step(self, step: int, trainer: TrainerIs) -> None:
        batch = f"step-{step}"
        self._batch, self._whole, self._idle_from_s = batch, False, None
        plan, _ = await asyncio.gather(self._planner.plan(step), self._submit(step, trainer))
        self._lap("other")
        self._release()
        due = step + 1 + self._settings.rollout.staleness
        if due <= self._settings.job.steps:
            self._ctx.background(self._submission.prepare(due), f"problems of step {due}")
        result = await self._timed(
            TrainStep(
                step=step,
                batch=batch,
                groups=self._settings.rollout.prompts,
                t_seed_s=plan.t_seed_s,
                stair_s=plan.stair_s,
            )
        )
        idle_s = self._ctx.now() - self._idle_from_s if self._idle_from_s is not None else None
        self._batch = ""
        if result is None:
            self._clock.void(self._ctx.now())
            return  # the trainer went back: so does the loop
        if step > self._standing.finished:
            round_end = await self._submission.settle(step)
            rounds = self._submission.rounds(step)
            ahead, path = await self._planner.next(step, batch, result, plan, rounds, idle_s)
            self._submission.planned(ahead)
            self._lap("other")
            if step > self._recorder.last_step:  # otherwise this actor was killed after the record
                now = self._ctx.now()
                spent = self._clock.end(now)
                self._recorder.step(result, ahead, spent, now, plan.predicted_s or None)
                if round_end is not None:
                    self._recorder.round(step, round_end, now)
                if path is not None:
                    self._recorder.path(result, path, spent, now)
            else:
                self._clock.void(self._ctx.now())
            await self._submission.finished(step)
        else:
            self._clock.void(self._ctx.now())  # it was on record already
        await self._durability.until(step - MAX_UNDURABLE)

    async def _submit(self, step: int, trainer: TrainerIs) -> None:
        """Submit the batch of this step, and of those that may be rolled out meanwhile. If the trainer went
        back, the newest versions are lost: the manager is notified, and everything is submitted again."""
        if trainer.step < self._version:
            self._ahead.clear()
        self._version = trainer.step
        if self._settings.rollout.staleness:
            await self._submission.publish(trainer)
        last = min(step + self._settings.rollout.staleness, self._settings.job.steps)
        for due in range(max(step, trainer.step + 1), last + 1):
            if due == step or due not in self._ahead:
                await self._submission.step(due, trainer)
                self._ahead.add(due)
        self._ahead = {due for due in self._ahead if due > step}

    async def _timed(self, order: TrainStep) -> StepResult | None:
        """Train the step, and count its time under the names that the attempt gives it."""
        known = self._life
        result = await self._train(order)
        if result is not None:
            again = self._life != known
            self._away_s = self._manager.total_s() + self._trainer_away.total_s()
            self._clock.attempt(_spent(result), self._ctx.now(), again=again)
        return result

    async def _train(self, order: TrainStep) -> StepResult | None:
        """Ask until the step is done; a restarted trainer begins it again. None: the trainer has an earlier
        state now."""
        late_s, begin_s, progress = self._usual.deadline_s("step"), self._ctx.now(), 0
        async with self._ctx.wait("a trained step", on=TRAINER, deadline_s=late_s, go_on=True) as wait:
            while True:
                self._news.clear()
                try:
                    state = await self._retrying_ask.ask(TRAINER, order, TrainState)
                except Refused:
                    trainer = await self._retrying_ask.ask(TRAINER, TrainerStatus(), TrainerIs)
                    if trainer.step < order.step - 1:
                        self._ctx.log.warning("the trainer went back to step %d", trainer.step)
                        return None
                    raise
                self._life = state.life
                if state.result is not None:
                    self._usual.took("step", self._ctx.now() - begin_s)
                    return state.result
                if state.progress != progress:
                    wait.progress()
                    progress = state.progress
                if self._whole and state.so_far is not None and self._times_known(order, state.so_far):
                    self._whole = False
                    await self._plan_width(order, state.so_far)
                await wait.look(self._news, STEP_POLL_S)

    def _times_known(self, order: TrainStep, so_far: StepSoFar) -> bool:
        return self._planner.training_s(so_far, order.groups) is not None

    async def _plan_width(self, order: TrainStep, so_far: StepSoFar) -> None:
        """Engines have nothing to do until the step is done: have the next width decided, so that they
        relaunch meanwhile."""
        try:
            rounds = await self._submission.rounds_ahead(order.step)
        except AskFailed as problem:
            self._ctx.log.info("width is left to the plan of step %d: %s", order.step + 1, problem)
            return
        if await self._planner.width(order.step, order.batch, so_far, order.groups, rounds):
            self._idle_from_s = self._ctx.now()


def _spent(result: StepResult) -> StepSeconds:
    return StepSeconds(
        seeding_s=result.seeding_s,
        waiting_s=result.waiting_s,
        training_s=result.training_s,
        weights_s=result.weights_s,
        recovery_s=result.recovery_s,
    )
