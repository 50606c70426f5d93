"""RLController: runs one job to its end, then tells the Scheduler.

Owns where the job stands (journaled) and its history. The order of things is `loop`, with `submission`,
`evaluation`, `planning` and `durability`. It decides nothing about placement, seeding or rewards; it asks.
Every step is idempotent: after its own death, or the trainer's, the controller asks for the same step again
and gets the same result, so none is skipped and none done twice. Of a job whose trainer is its user's own it
runs nothing: that one serves until it is stopped.
"""

import asyncio

from actors.cluster.messages import (
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
from actors.rollout.messages import MorePrompts, PromptsAre, RolloutFigures, RolloutStatus, WeightsFailed
from actors.training.asking import Asking
from actors.training.chronicle import Chronicle
from actors.training.drawing import Draws
from actors.training.durability import Durability
from actors.training.first_instance import FirstInstance
from actors.training.job_journal import BeganIn, JobOver, standing_of
from actors.training.loop import JobLoop
from actors.training.messages import StepDone
from actors.training.records import History
from actors.training.submission import NothingFits, Submission
from configs.schema import Config
from supervisor import Actor, AskFailed, Deferred, Done, Lane, Message, Refused, Terminated, handles

MANAGER = "rollout/manager"
PROVIDER = "cluster/provider"
SCHEDULER = "cluster/scheduler"
SAMPLE_S = 0.5  # between two looks at the fleet at least; else as often as whether it lives is looked at


class _TakeSample(Message, frozen=True):
    """Time to look at the fleet."""


class RLController(Actor):
    """See the module.

    Args:
        job: names and folders.
        config: resolved settings.
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
        draws = Draws(self._config.train_problems, self._config.rollout.prompts)
        self._standing = await standing_of(self.ctx.journal.replay(), draws)
        self._asking = Asking(self.ctx, self._config.liveness.successor_s)
        up = await self._asking.ask(SCHEDULER, WhoIsUp(), HostsUp)
        if up.boot == self._standing.boot:  # this actor alone was restarted; the run never stopped
            self._chronicle = Chronicle(self._writer, self.ctx.now(), up.roles)
        else:
            self._chronicle = Chronicle(self._writer, self.ctx.now(), {})
            self._chronicle.begin(self._job.run_id, self._config, up, self.ctx.now())
            await self.ctx.journal.append(BeganIn(boot=up.boot))
        self._first = FirstInstance(self._config.fleet, served=self._chronicle.served)
        self._settled = asyncio.Event()  # whether there is a first instance: it serves, or it is late
        self._durability = Durability(self.ctx, self._asking, self._standing)
        self._submission = Submission(self.ctx, self._asking, self._config, self._standing)
        self._loop = JobLoop(
            self.ctx,
            self._asking,
            self._config,
            self._standing,
            self._submission,
            self._durability,
            self._chronicle,
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
            self._standing.over = True  # before anybody hears of it: who does writes the end into the history
            await self.ctx.journal.append(JobOver())
        await self._asking.ask(SCHEDULER, JobEnded(ok=True), Done)

    async def _only_serve(self) -> None:
        """All instances that there may be; their weights come from outside, and so does the end."""
        await self.ctx.tell(PROVIDER, StartTrace())
        await self.ctx.tell(PROVIDER, SetFleet(n_prem=self._config.fleet.n_prem_max))

    async def _fail(self, reason: str, cause: str = "") -> None:
        self._failed = True
        self.ctx.log.error("the job failed: %s", reason)
        await self._asking.ask(SCHEDULER, JobEnded(ok=False, reason=reason, cause=cause), Done)

    # -- the first preemptible instance --

    async def _first_instance(self) -> None:
        """Until one serves, or has not for so long that the job goes on without; not where none is due."""
        if self._first.awaited:
            limit_s = self._config.fleet.first_instance_s
            async with self.ctx.wait("an instance that serves", on=MANAGER, deadline_s=limit_s, go_on=True):
                await self.ctx.idle(self._settled)

    def _look_for_first(self, figures: RolloutFigures) -> None:
        """Tell of the first instance, or that there is none although there should be."""
        serves = figures.serving_preemptible > 0 or bool(figures.weights_pulled)
        now_s = self.ctx.now()
        verdict = self._first.look(now_s, weights=figures.newest is not None, serves=serves)
        if not verdict:
            return
        why = self._chronicle.first_instance(self._first, verdict == "served", now_s)
        self._settled.set()
        if verdict == "served":
            self.ctx.log.info("the first preemptible instance serves after %.1f s", self._first.waited_s)
            return
        text = f"no preemptible instance has served for {self._first.waited_s:.0f} s: {why}"
        self.ctx.log.error("%s", text)
        if self._config.fleet.require_instance:
            # Beside: this actor goes on taking what comes until its supervisor stops it.
            self.ctx.background(self._fail(f"{text} (fleet.require_instance)", UNSERVED), "end of the job")

    # -- the verifier --

    def _look_at_verifier(self, figures: RolloutFigures) -> None:
        """Tell that it is sick, or well again; end the job where it stays sick."""
        sick = figures.sick
        if self._sick != (sick is not None):
            self._sick = sick is not None
            self._chronicle.verifier(sick, self.ctx.now())
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

    @handles(WeightsFailed, lane=Lane.SYSTEM)
    async def weights_failed(self, message: WeightsFailed) -> None:
        """No batch can be made under them, and no step follows: told again until the job is over."""
        if not (self._standing.over or self._failed):
            reason = f"version {message.version} of the weights cannot be served: {message.why}"
            self.ctx.background(self._fail(reason), "the end of the job")

    @handles(MorePrompts)
    async def more_prompts(self, message: MorePrompts) -> Deferred:
        """The manager refills a batch; the problems are asked for meanwhile, and nobody waits behind that."""
        deferred = Deferred()
        self.ctx.background(self._give_more(message, deferred), f"prompts for {message.batch}")
        return deferred

    async def _give_more(self, message: MorePrompts, deferred: Deferred) -> None:
        try:
            prompts = await self._submission.more(message.batch, message.first, message.count)
        except NothingFits as problem:  # not now and not later: the step can have no end
            deferred.answer(Refused(str(problem)))
            await self._fail(str(problem))
        except AskFailed as problem:
            deferred.answer(Refused(f"no prompts for {message.batch}: {problem}"))
        else:
            deferred.answer(PromptsAre(prompts=prompts))

    # -- what the history is told --

    @handles(NodeSeen, lane=Lane.SYSTEM)
    async def node_seen(self, message: NodeSeen) -> None:
        if message.event == "unfit":
            self._first.ended(message.node, message.cause)
        if not self._standing.over:
            self._chronicle.node(message, self.ctx.now())

    @handles(RestartSeen, lane=Lane.SYSTEM)
    async def restart_seen(self, message: RestartSeen) -> None:
        node, _, what = message.actor.partition("/")
        if what == "engine" and self._chronicle.role(node) == "preemptible":
            self._first.ended(message.actor, message.cause)
        if not self._standing.over:
            self._chronicle.restart(message, self.ctx.now())

    @handles(_TakeSample)
    async def take_sample(self, message: _TakeSample) -> None:
        try:
            figures = await self.ctx.ask(
                MANAGER, RolloutStatus(), deadline_s=self._sample_s, expect=RolloutFigures
            )
        except AskFailed:
            return  # the manager restarts; the next look will show it
        if not self._standing.over:
            self._chronicle.sample(self._standing.finished + 1, figures, self.ctx.now())
            self._look_for_first(figures)
            self._look_at_verifier(figures)

    def summary(self) -> dict[str, str | int | float]:
        figures: dict[str, str | int | float] = {
            "step": self._standing.finished,
            "durable": self._durability.step,
            **self._chronicle.account(self._config.prices),
        }
        if self._first.missing:
            figures["unserved_s"] = round(self._first.waited_s, 1)
        waits_for = self._asking.waits_for or ("a verifier that scores" if self._sick else "")
        return {**figures, "suspended": waits_for} if waits_for else figures
