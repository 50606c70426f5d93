"""RLController: the loop of a job: problems in, a step trained, its weights out; held-out rewards before and
after.

Owns where the job stands (journaled) and its history. It decides nothing about placement, seeding or rewards;
it asks. Every step is idempotent: after its own death, or the trainer's, the controller asks for the same
step again and gets the same result, so none is skipped and none done twice.
"""

import asyncio
from typing import Literal, TypeVar

from actors.cluster.messages import (
    HostsUp,
    JobEnded,
    JobSpec,
    LatestState,
    NodeSeen,
    Plan,
    PlanNext,
    RestartSeen,
    StartTrace,
    StateIs,
    StateSaved,
    WhoIsUp,
)
from actors.cluster.seeding import StepTimes
from actors.reward.messages import GetProblems, Problems
from actors.rollout.events import BatchSubmitted, Prompt
from actors.rollout.messages import (
    BatchReport,
    BatchTimes,
    Groups,
    ReleaseBatch,
    RolloutFigures,
    RolloutStatus,
    SubmitBatch,
    TakeGroups,
    Weights,
)
from actors.training.asking import ask_patiently
from actors.training.chronicle import Chronicle
from actors.training.messages import (
    CloseSeeding,
    OpenSeeding,
    StepDone,
    StepResult,
    TrainerIs,
    TrainerStatus,
    TrainState,
    TrainStep,
)
from actors.training.records import History
from actors.training.seeds import request_seed
from configs.schema import Config
from supervisor import Actor, AskFailed, Deadline, Done, Lane, Message, Refused, Suspended, handles

R = TypeVar("R", bound=Message)

MANAGER = "rollout/manager"
REWARD = "reward/proxy"
TRAINER = "training/trainer"
STATE = "training/state"
SCHEDULER = "cluster/scheduler"
PROVIDER = "cluster/provider"

START_DEADLINE_S = 180.0  # until a trainer has joined, loaded and published; imports on a cold disk are slow
ASK_DEADLINE_S = 60.0  # control asks: far above any restart of the one that answers
STEP_POLL_S = 2.0  # the trainer tells when it is done; this is for when that was lost
STEP_LATE_S = 600.0  # a step that takes longer is worth a line, again each time: small ones take seconds
GROUPS_LATE_S = 120.0  # the same for the time without a new group of an evaluation
DISK_LATE_S = 120.0  # the same for a checkpoint
SAMPLE_S = 0.5  # between two looks at the fleet at least; else as often as whether it lives is looked at
SUSPENDED_S = 3600.0  # for an operator to make space on a full disk; then the job fails, and can be resumed
MAX_UNDURABLE = 4  # steps ahead of the newest durable checkpoint; then the loop waits for the disk


class EvalDone(Message, frozen=True):
    """Journaled: a held-out evaluation is over."""

    when: str


class BeganIn(Message, frozen=True):
    """Journaled: the run began, or was resumed, in this life of the head."""

    boot: int


class JobOver(Message, frozen=True):
    """Journaled: every step is durable, both evaluations are done; nothing more is told to the history."""


class StepFinished(Message, frozen=True):
    """Journaled: this step is trained and in the history."""

    step: int


class _TakeSample(Message, frozen=True):
    """Time to look at the fleet."""


class RLController(Actor):
    """Runs one job to its end, then tells the Scheduler.

    Args:
        job: names and folders.
        config: resolved settings.
        writer: the run's history, open for appending.
    """

    def __init__(self, job: JobSpec, config: Config, writer: History) -> None:
        self._job = job
        self._config = config
        self._writer = writer
        self._finished = 0
        self._durable = 0
        self._evals: set[str] = set()
        self._step_done = asyncio.Event()
        self._saved = asyncio.Event()
        self._waits_for = ""
        self._over = False
        self._sample_s = max(SAMPLE_S, config.liveness.beat_s)

    async def on_start(self) -> None:
        boot: int | None = None
        async for event in self.ctx.journal.replay():
            if isinstance(event, BeganIn):
                boot = event.boot
            elif isinstance(event, StepFinished):
                self._finished = event.step
            elif isinstance(event, EvalDone):
                self._evals.add(event.when)
            elif isinstance(event, JobOver):
                self._over = True
        up = await self._ask(SCHEDULER, WhoIsUp(), HostsUp)
        if up.boot == boot:  # this actor alone was restarted; the run never stopped
            self._chronicle = Chronicle(self._writer, self.ctx.now(), up.roles)
        else:
            self._chronicle = Chronicle(self._writer, self.ctx.now(), {})
            self._chronicle.begin(self._job.run_id, self._config, up.roles, self.ctx.now())
            await self.ctx.journal.append(BeganIn(boot=up.boot))
        self.ctx.every(self._sample_s, _TakeSample())
        self.ctx.background(self._run(), "job")

    # -- the job --

    async def _run(self) -> None:
        if not self._over:
            try:
                await self._loop()
            except AskFailed as problem:
                reason = f"step {self._finished + 1}: {problem}"
                self.ctx.log.error("the job failed: %s", reason)
                await self._ask(SCHEDULER, JobEnded(ok=False, reason=reason), Done)
                return
            self._over = True  # before anybody hears of it: whoever does writes the end into the history
            await self.ctx.journal.append(JobOver())
        await self._ask(SCHEDULER, JobEnded(ok=True), Done)

    async def _loop(self) -> None:
        trainer = await self._ask(TRAINER, TrainerStatus(), TrainerIs, START_DEADLINE_S)
        await self._release_durable()
        if trainer.step == 0 and self._finished == 0 and "first" not in self._evals:
            await self._evaluate("first", trainer)
        await self.ctx.tell(PROVIDER, StartTrace())
        # A host copy that is lost with its host takes the trainer back to its last checkpoint, at any time.
        while (step := min(self._finished, trainer.step) + 1) <= self._config.job.steps:
            await self._one_step(step, trainer)
            trainer = await self._ask(TRAINER, TrainerStatus(), TrainerIs, START_DEADLINE_S)
        if "last" not in self._evals:
            await self._evaluate("last", trainer)
        await self._until_durable(self._config.job.steps)

    async def _one_step(self, step: int, trainer: TrainerIs) -> None:
        begin_s = self.ctx.now()
        batch = f"step-{step}"
        plan = await self._ask(SCHEDULER, PlanNext(step=step, times=None), Plan)
        if trainer.step < step:
            rollout = self._config.rollout
            first = (step - 1) * rollout.prompts
            indices = [(first + g) % self._config.task.train_problems for g in range(rollout.prompts)]
            await self._submit(batch, "train", indices, rollout.samples, rollout.temperature, trainer)
        result = await self._train(
            TrainStep(step=step, batch=batch, groups=self._config.rollout.prompts, t_seed_s=plan.t_seed_s)
        )
        if result is None:
            return  # the trainer went back: so does the loop
        if step > self._finished:
            plan = await self._plan_next(step, batch, result, plan)
            self._chronicle.step(result, plan, self.ctx.now() - begin_s, self.ctx.now())
            await self.ctx.journal.append(StepFinished(step=step))
            self._finished = step
        await self._until_durable(step - MAX_UNDURABLE)
        await self._release_durable()

    async def _train(self, order: TrainStep) -> StepResult | None:
        """Ask until the step is done; a trainer that was restarted meanwhile begins it again. None: it came
        back with an earlier state."""
        async with self.ctx.wait("a trained step", on=TRAINER, deadline_s=STEP_LATE_S, go_on=True) as wait:
            while True:
                self._step_done.clear()
                try:
                    state = await self._ask(TRAINER, order, TrainState)
                except Refused:
                    trainer = await self._ask(TRAINER, TrainerStatus(), TrainerIs)
                    if trainer.step < order.step - 1:
                        self.ctx.log.warning("the trainer went back to step %d", trainer.step)
                        return None
                    raise
                if state.result is not None:
                    return state.result
                await wait.look(self._step_done, STEP_POLL_S)

    async def _plan_next(self, step: int, batch: str, result: StepResult, plan: Plan) -> Plan:
        """Algorithm 1 on what this step measured; the plan stays where the batch's times are gone."""
        try:
            times = await self.ctx.ask(MANAGER, BatchReport(batch=batch), deadline_s=5.0, expect=BatchTimes)
        except AskFailed as problem:
            self.ctx.log.warning("no times of %s: %s", batch, problem)
            return plan
        measured = StepTimes(
            train_wait_s=result.waiting_s,
            remote_wait_s=times.since_last_s if times.remote_s > 0 else 0.0,
            train_s=result.training_s,
            remote_s=times.remote_s,
            mean_prem=times.mean_prem,
            next_prem=times.next_prem,
        )
        return await self._ask(SCHEDULER, PlanNext(step=step + 1, times=measured), Plan)

    async def _submit(
        self,
        batch: str,
        split: str,
        indices: list[int],
        samples: int,
        temperature: float,
        trainer: TrainerIs,
    ) -> None:
        problems = await self._ask(REWARD, GetProblems(split=split, indices=indices), Problems)
        seed = self._config.job.seed
        prompts = tuple(
            Prompt(
                split=split,
                index=index,
                tokens=tuple(tokens),
                seeds=tuple(request_seed(seed, batch, group, sample) for sample in range(samples)),
            )
            for group, (index, tokens) in enumerate(zip(indices, problems.prompts, strict=True))
        )
        submitted = BatchSubmitted(
            batch=batch,
            version=trainer.step,
            prompts=prompts,
            max_new_tokens=self._config.rollout.max_new_tokens,
            temperature=temperature,
        )
        weights = Weights(version=trainer.step, root=trainer.root, sources=(trainer.source,))
        await self._ask(MANAGER, SubmitBatch(batch=submitted, weights=weights), Done)

    async def _evaluate(self, when: Literal["first", "last"], trainer: TrainerIs) -> None:
        """Mean reward on the held-out problems, one sample each; the reserved engine helps."""
        batch, count = f"eval-{when}", self._config.task.heldout_problems
        temperature = self._config.rollout.eval_temperature
        await self._submit(batch, "heldout", list(range(count)), 1, temperature, trainer)
        engine = trainer.source.rsplit("/", 1)[0] + "/engine"
        await self._ask(engine, OpenSeeding(version=trainer.step, root=trainer.root), Done)
        scores: dict[int, float] = {}
        async with self.ctx.wait("complete groups", on=MANAGER, deadline_s=GROUPS_LATE_S, go_on=True) as wait:
            while len(scores) < count:
                take = TakeGroups(
                    batch=batch,
                    taker=self.ctx.incarnation,
                    have=sorted(scores),
                    min_groups=count - len(scores),
                    wait_s=2.0,
                )
                groups = await self._ask(MANAGER, take, Groups)
                scores |= {group.group: group.samples[0].score for group in groups.groups}
                if groups.groups:
                    wait.progress()
                if len(scores) < count:  # a trainer that was restarted has a new engine, which knows nothing
                    await self._ask(engine, OpenSeeding(version=trainer.step, root=trainer.root), Done)
        await self._ask(engine, CloseSeeding(), Done)
        mean = sum(scores.values()) / count
        self._chronicle.evaluation(when, trainer.step, mean, count, self.ctx.now())
        await self.ctx.journal.append(EvalDone(when=when))
        self._evals.add(when)
        await self._ask(MANAGER, ReleaseBatch(batch=batch), Done)

    # -- durability --

    async def _release_durable(self) -> None:
        """Forget batches whose step is recorded here and in a checkpoint before the newest: a damaged newest
        one costs a step, and that is done again from the samples of its batch."""
        state = await self._ask(STATE, LatestState(), StateIs)
        self._durable = max(self._durable, state.durable_step)
        last = min(state.kept_step, self._finished)
        for step in range(max(1, last - 2 * MAX_UNDURABLE), last + 1):
            await self._ask(MANAGER, ReleaseBatch(batch=f"step-{step}"), Done)

    async def _until_durable(self, step: int) -> None:
        if self._durable >= step:
            return
        async with self.ctx.wait("a checkpoint", on=STATE, deadline_s=DISK_LATE_S, go_on=True) as wait:
            while self._durable < step:
                self._saved.clear()
                state = await self._ask(STATE, LatestState(), StateIs)
                self._durable = max(self._durable, state.durable_step)
                if self._durable < step:
                    await wait.look(self._saved, STEP_POLL_S)

    @handles(StateSaved, lane=Lane.SYSTEM)
    async def state_saved(self, message: StateSaved) -> None:
        self._durable = max(self._durable, message.step)
        self._saved.set()

    @handles(StepDone, lane=Lane.SYSTEM)
    async def step_done(self, message: StepDone) -> None:
        self._step_done.set()

    # -- what the history is told --

    @handles(NodeSeen, lane=Lane.SYSTEM)
    async def node_seen(self, message: NodeSeen) -> None:
        if not self._over:
            self._chronicle.node(message, self.ctx.now())

    @handles(RestartSeen, lane=Lane.SYSTEM)
    async def restart_seen(self, message: RestartSeen) -> None:
        if not self._over:
            self._chronicle.restart(message, self.ctx.now())

    @handles(_TakeSample)
    async def take_sample(self, message: _TakeSample) -> None:
        try:
            figures = await self.ctx.ask(
                MANAGER, RolloutStatus(), deadline_s=self._sample_s, expect=RolloutFigures
            )
        except AskFailed:
            return  # the manager restarts; the next look will show it
        if not self._over:
            self._chronicle.sample(self._finished + 1, figures, self.ctx.now())

    async def _ask(self, to: str, message: Message, expect: type[R], deadline_s: float = ASK_DEADLINE_S) -> R:
        """Ask; whoever takes nothing for now, because a disk is full, say, or too much waits already, is
        waited for and named."""
        until = Deadline.after(SUSPENDED_S, self.ctx.now())
        while True:
            try:
                reply = await ask_patiently(
                    self.ctx, to, message, expect=expect, deadline_s=deadline_s, patience_s=SUSPENDED_S
                )
            except Suspended as problem:
                if until.passed(self.ctx.now()):
                    raise
                self.ctx.log.warning("the job waits: %s", problem)
                self._waits_for = str(problem)
            else:
                self._waits_for = ""
                return reply

    def summary(self) -> dict[str, str | int | float]:
        figures: dict[str, str | int | float] = {"step": self._finished, "durable": self._durable}
        return {**figures, "suspended": self._waits_for} if self._waits_for else figures
