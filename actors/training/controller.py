"""`RLController`: runs one job to its end, then notifies the Scheduler.

Owns the progress of the job (journaled) and its history. `loop` has the order of the phases, with
`submission`, `evaluation`, `step_plan` and `durability`. The controller decides nothing about placement,
seeding or rewards; it sends requests. Every step is idempotent. After its own death, or the trainer's, the
controller requests the same step again and gets the same result, so no step is skipped or done twice. For a
user's own trainer it runs no loop: it serves until the job is stopped.
"""

import asyncio

from gleaner.actors.names import MANAGER, PROVIDER, SCHEDULER
from gleaner.actors.protocol.cluster import (
    UNSCORED,
    UNSERVED,
    HostsUp,
    JobEnded,
    JobSpec,
    NodeSeen,
    RestartSeen,
    SetFleet,
    StartTrace,
    StateSaved,
    WhoIsUp,
)
from gleaner.actors.protocol.rollout import (
    BatchesWhole,
    MorePrompts,
    PromptsAre,
    RolloutFigures,
    RolloutStatus,
    WeightsFailed,
)
from gleaner.actors.protocol.training import StepDone
from gleaner.actors.training.draw_order import draw_order_of
from gleaner.actors.training.durability import Durability
from gleaner.actors.training.evaluation import Evaluation
from gleaner.actors.training.first_instance import FirstInstance
from gleaner.actors.training.history_recorder import HistoryRecorder
from gleaner.actors.training.job_journal import BeganIn, JobOver, standing_of
from gleaner.actors.training.loop import JobLoop, LoopParts
from gleaner.actors.training.records import History
from gleaner.actors.training.retrying_ask import RetryingAsk
from gleaner.actors.training.settings import LoopSettings
from gleaner.actors.training.submission import NothingFits, Submission
from gleaner.configs.schema import Config
from gleaner.supervisor import Actor, AskFailed, Deferred, Done, Lane, Message, Refused, Terminated, handles

SAMPLE_S = 0.5  # between two fleet samples at least; otherwise as often as the liveness check


class _TakeSample(Message, frozen=True):
    """A fleet sample is due."""


class RLController(Actor):
    """Runs one job.

    Args:
        job: names and folders.
        config: all resolved settings, because the history begins with all of them.
        writer: the run's history, open for appending.
    """

    def __init__(self, job: JobSpec, config: Config, writer: History) -> None:
        self._job = job
        self._config = config
        self._writer = writer
        self._failed = False
        self._sick = False
        self._sample_s = max(SAMPLE_S, config.liveness.beat_s)

    async def on_start(self) -> None:
        self._standing = await standing_of(self.ctx.journal.replay(), draw_order_of(self._config))
        self._retrying_ask = RetryingAsk(self.ctx, self._config.liveness.successor_s)
        up = await self._retrying_ask.ask(SCHEDULER, WhoIsUp(), HostsUp)
        self._recorder = HistoryRecorder(self._writer, self.ctx.now())
        if up.boot == self._standing.boot:  # this actor alone was restarted; the run never stopped
            if not self._standing.over:
                self._recorder.resume(up, self.ctx.now())
        else:
            self._recorder.begin(self._job.run_id, self._config, up, self.ctx.now())
            began = BeganIn(boot=up.boot)
            await self.ctx.journal.append(began)
            self._standing.apply(began)
        self._first = FirstInstance(self._config.fleet, served=self._recorder.served)
        self._settled = asyncio.Event()  # set once there is a first instance, or it is late
        self._durability = Durability(self.ctx, self._retrying_ask, self._standing)
        self._submission = Submission(self.ctx, self._retrying_ask, self._config, self._standing)
        evaluation = Evaluation(
            self.ctx, self._retrying_ask, self._config, self._submission, self._standing, self._recorder
        )
        self._loop = JobLoop(
            self.ctx,
            self._retrying_ask,
            LoopSettings.of(self._config),
            self._standing,
            LoopParts(self._submission, evaluation, self._durability, self._recorder),
            self._first_instance,
        )
        self.ctx.every(self._sample_s, _TakeSample())
        self.ctx.background(self._run(), "job")

    async def _run(self) -> None:
        if self._config.training.backend == "own":
            await self._only_serve()
            return
        if not self._standing.over:
            try:
                await self._loop.run()
            except AskFailed as problem:
                await self._fail(f"step {self._standing.finished + 1}: {problem}")
                return
            self._standing.over = (
                True  # before any notification: its receiver writes the end into the history
            )
            await self.ctx.journal.append(JobOver())
        await self._retrying_ask.ask(SCHEDULER, JobEnded(ok=True), Done)

    async def _only_serve(self) -> None:
        """Allow all instances; an external trainer supplies the weights and ends the job."""
        await self.ctx.tell(PROVIDER, StartTrace())
        await self.ctx.tell(PROVIDER, SetFleet(n_prem=self._config.fleet.n_prem_max))

    async def _fail(self, reason: str, cause: str = "") -> None:
        self._failed = True
        self.ctx.log.error("the job failed: %s", reason)
        await self._retrying_ask.ask(SCHEDULER, JobEnded(ok=False, reason=reason, cause=cause), Done)

    # -- the first preemptible instance --

    async def _first_instance(self) -> None:
        """Wait until an instance serves, or is so late that the job goes on without; no wait if none is
        due.
        """
        if self._first.awaited:
            limit_s = self._config.fleet.first_instance_s
            async with self.ctx.wait("an instance that serves", on=MANAGER, deadline_s=limit_s, go_on=True):
                await self.ctx.idle(self._settled)

    def _look_for_first(self, figures: RolloutFigures) -> None:
        """Report the first instance, or that there is none although one is due."""
        serves = figures.serving_preemptible > 0 or bool(figures.weights_pulled)
        now_s = self.ctx.now()
        verdict = self._first.look(now_s, weights=figures.newest is not None, serves=serves)
        if not verdict:
            return
        why = self._recorder.first_instance(self._first, verdict == "served", now_s)
        self._settled.set()
        if verdict == "served":
            self.ctx.log.info("the first preemptible instance serves after %.1f s", self._first.waited_s)
            return
        text = f"no preemptible instance has served for {self._first.waited_s:.0f} s: {why}"
        self.ctx.log.error("%s", text)
        if self._config.fleet.require_instance:
            # In the background: this actor goes on handling messages until its supervisor stops it.
            self.ctx.background(self._fail(f"{text} (fleet.require_instance)", UNSERVED), "end of the job")

    # -- the verifier --

    def _look_at_verifier(self, figures: RolloutFigures) -> None:
        """Report that the verifier is sick, or well again; fail the job if it stays sick."""
        sick = figures.sick
        if self._sick != (sick is not None):
            self._sick = sick is not None
            self._recorder.verifier(sick, self.ctx.now())
        if sick is not None and sick.over and not self._failed:
            text = f"the verifier has been sick for {sick.for_s:.0f} s (reward.sick_s): {sick.words}"
            self.ctx.background(self._fail(text, UNSCORED), "end of the job")

    async def on_terminated(self, message: Terminated) -> None:
        self._loop.terminated(message)

    @handles(StateSaved, lane=Lane.SYSTEM)
    async def state_saved(self, message: StateSaved) -> None:
        self._durability.saved(message.step)

    @handles(StepDone, lane=Lane.SYSTEM)
    async def step_done(self, message: StepDone) -> None:
        self._loop.step_done()

    @handles(BatchesWhole, lane=Lane.SYSTEM)
    async def batches_whole(self, message: BatchesWhole) -> None:
        self._loop.batches_whole(message.batches)

    @handles(WeightsFailed, lane=Lane.SYSTEM)
    async def weights_failed(self, message: WeightsFailed) -> None:
        """No batch can be rolled out under these weights, and no step follows. Sent again until the job is
        over.
        """
        if not (self._standing.over or self._failed):
            reason = f"version {message.version} of the weights cannot be served: {message.why}"
            self.ctx.background(self._fail(reason), "the end of the job")

    @handles(MorePrompts)
    async def more_prompts(self, message: MorePrompts) -> Deferred:
        """The manager refills a batch. The prompts are drawn in the background, so no message waits for
        them.
        """
        deferred = Deferred()
        self.ctx.background(self._give_more(message, deferred), f"prompts for {message.batch}")
        return deferred

    async def _give_more(self, message: MorePrompts, deferred: Deferred) -> None:
        try:
            prompts = await self._submission.more(message.batch, message.first, message.count)
        except NothingFits as problem:  # not now and not later: the step cannot end
            deferred.answer(Refused(str(problem)))
            await self._fail(str(problem))
        except AskFailed as problem:
            deferred.answer(Refused(f"no prompts for {message.batch}: {problem}"))
        else:
            deferred.answer(PromptsAre(prompts=prompts))

    # -- records for the history --

    @handles(NodeSeen, lane=Lane.SYSTEM)
    async def node_seen(self, message: NodeSeen) -> None:
        if message.event == "unfit":
            self._first.ended(message.node, message.cause)
        if not self._standing.over:
            self._recorder.node(message, self.ctx.now())

    @handles(RestartSeen, lane=Lane.SYSTEM)
    async def restart_seen(self, message: RestartSeen) -> None:
        node, _, what = message.actor.partition("/")
        if what == "engine" and self._recorder.role(node) == "preemptible":
            self._first.ended(message.actor, message.cause)
        if not self._standing.over:
            self._recorder.restart(message, self.ctx.now())

    @handles(_TakeSample)
    async def take_sample(self, message: _TakeSample) -> None:
        try:
            figures = await self.ctx.ask(
                MANAGER, RolloutStatus(), deadline_s=self._sample_s, expect=RolloutFigures
            )
        except AskFailed:
            return  # the manager restarts; the next sample will show it
        if not self._standing.over:
            self._recorder.sample(self._standing.finished + 1, figures, self.ctx.now())
            self._look_for_first(figures)
            self._look_at_verifier(figures)

    def summary(self) -> dict[str, str | int | float]:
        figures: dict[str, str | int | float] = {
            "step": self._standing.finished,
            "durable": self._durability.step,
            **self._recorder.account(self._config.prices),
        }
        if self._first.missing:
            figures["unserved_s"] = round(self._first.waited_s, 1)
        waits_for = self._retrying_ask.waits_for or ("a verifier that scores" if self._sick else "")
        return {**figures, "suspended": waits_for} if waits_for else figures
