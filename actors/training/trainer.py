"""`Trainer`: makes weight version v+1 from samples of version v.

It lends its device to rollout at the start of a step. Owns the running step. Its mathematics and its files
are behind `work.TrainerWork`. A step is done the moment its host copy is sealed: a repeated request for it
gets its result. A trainer that was killed before that begins the step anew with the responses that were
already collected (RLBoost 4.1, 4.2).
"""

from collections.abc import Callable
from functools import partial

from gleaner.actors.names import CONTROLLER, MANAGER, STATE
from gleaner.actors.protocol.cluster import (
    LatestState,
    RecordIs,
    RecordOf,
    SaveState,
    StateIs,
    StepTrained,
)
from gleaner.actors.protocol.rollout import GroupOut, Groups, RolloutStatus, StepEnded, TakeGroups
from gleaner.actors.protocol.training import (
    CloseSeeding,
    OpenSeeding,
    StepDone,
    StepResult,
    StepSoFar,
    TrainerIs,
    TrainerStatus,
    TrainState,
    TrainStep,
)
from gleaner.actors.protocol.weights import Publish, Published
from gleaner.actors.training.absence import Absence
from gleaner.actors.training.attempt_times import AttemptTimes
from gleaner.actors.training.micro_batches import AsTheyCome, InOrder, MicroBatches
from gleaner.actors.training.retrying_ask import ask_patiently
from gleaner.actors.training.settings import TrainerSettings
from gleaner.actors.training.stair_seeding import Spent, StairSeeding, Wait, WindowTraining
from gleaner.actors.training.stairs import PaperStair, PlannedStair
from gleaner.actors.training.staleness import Staleness
from gleaner.actors.training.step_samples import StepContents, samples_of
from gleaner.actors.training.work import Commit, TrainerWork
from gleaner.supervisor import Actor, Done, Refused, Terminated, Waiting, WorkDeadlines, handles

HAND_OVER_S = 60.0  # for the engine to give its requests back to a manager that is there
WAIT_S = 1.0  # one wait for groups; between two waits the trainer checks whether any instance still rolls out
GROUPS_LATE_S = 120.0  # so long without a token is logged, each time again
PATIENCE_S = 600.0  # with an overloaded manager; then the step is begun anew
COLOCATED_S = 2.0  # one look at a batch without preemptible instances; the first instance ends it


class Trainer(Actor):
    """Trains the steps of one job.

    Args:
        settings: sections `job`, `rollout`, `seeding`, `training` and `liveness`.
        node: this host; its TransferAgent is `<node>/transfer`, its rollout worker `<node>/engine`.
        work: the model in training, its host copies and the images of its weights.
    """

    def __init__(self, settings: TrainerSettings, node: str, work: TrainerWork) -> None:
        self._settings = settings
        self._node = node
        self._work = work
        self._successor_s = settings.liveness.successor_s
        self._deadlines = WorkDeadlines(settings.liveness.work_s, settings.liveness.first_work_s)
        self._done = 0
        self._root = b""
        self._result: StepResult | None = None
        self._running: int | None = None
        self._so_far: Callable[[], StepSoFar] | None = None  # of the running step
        self._stairs = settings.seeding.stairs != "off" and work.halves
        self._progress = 0  # changes with every progress of the step
        self._collected = 0  # tokens, in the manager's last message

    async def on_start(self) -> None:
        self._manager = Absence(self.ctx, MANAGER, RolloutStatus())
        self.ctx.background(self._manager.follow(), "watch the manager")
        await self.ctx.earlier_work_over(self._deadlines)  # it may be sealing the newest state
        state = await self.ctx.ask(STATE, LatestState(), deadline_s=self._successor_s, expect=StateIs)
        commit = await self.ctx.offload_within(self._deadlines, self._work.load, state.path)
        self._done = state.step
        self._root = await self._publish(state.step)
        if commit is not None:
            self._result = commit.result.with_weights(self._root)
        await self._save(commit, self._root)
        self.ctx.log.info("ready with %d steps done", self._done)

    async def on_terminated(self, message: Terminated) -> None:
        self._manager.terminated(message)

    @handles(TrainerStatus)
    async def status(self, message: TrainerStatus) -> TrainerIs:
        return TrainerIs(
            step=self._done, root=self._root, source=f"{self._node}/transfer", life=self.ctx.incarnation
        )

    @handles(TrainStep)
    async def train_step(self, message: TrainStep) -> TrainState:
        if message.step <= self._done:
            if self._result is None or self._result.step != message.step:
                raise Refused(f"step {message.step} was done before this run's last {self._done}; it is gone")
            return TrainState(result=self._result, life=self.ctx.incarnation)
        if message.step != self._done + 1:
            raise Refused(f"step {message.step} cannot follow step {self._done}")
        if self._running is None:
            self._running = message.step
            self.ctx.background(self._step(message), f"step {message.step}")
        so_far = self._so_far() if self._so_far is not None else None
        return TrainState(result=None, life=self.ctx.incarnation, progress=self._progress, so_far=so_far)

    async def _step(self, order: TrainStep) -> None:
        times = AttemptTimes(self.ctx.now, self._manager.total_s)
        await self.ctx.offload_within(self._deadlines, self._work.begin_step)
        times.lap("training")
        done = StepContents(Staleness(order.step - 1, self._settings.rollout.staleness))
        self._so_far = partial(_so_far, times, done)
        for groups in await self._as_before(order):
            await self._train(groups, done, times)
        coming = self._micro_batches(order)
        last_train_s, stair = 0.0, Spent()
        if len(done.groups) < order.groups:
            stair, reply = await self._seed_in_stairs(order, coming, done, times)
            times.lap("seeding")
            last_train_s = await self._train_due(coming.add(reply.groups, reply.dropped), done, times)
        while len(done.groups) < order.groups:
            reply = await self._more(order, coming, times)
            last_train_s = await self._train_due(coming.add(reply.groups, reply.dropped), done, times)
        stats = await self.ctx.offload_within(self._deadlines, self._work.finish_step)
        update_s = times.lap("training")
        if not stats.tokens:
            self.ctx.log.warning(
                "step %d has no token to train on: the weights stay as they are; of its responses %d have no "
                "score, the others are empty (rollout.request_deadline_s is %g) or alone in their group",
                order.step,
                done.unscored,
                self._settings.rollout.request_deadline_s,
            )
        result = StepResult(
            step=order.step,
            root=b"",
            reward=done.reward,
            samples=len(done.scores),
            unscored=done.unscored,
            tokens=stats.tokens,
            loss=stats.loss,
            grad_norm=stats.grad_norm,
            seeding_s=times.spent.seeding_s,
            waiting_s=times.spent.waiting_s,
            training_s=times.spent.training_s,
            weights_s=0.0,
            recovery_s=times.spent.recovery_s,
            update_s=update_s,
            last_train_s=last_train_s,
            staleness_mean=done.staleness.mean,
            staleness_max=done.staleness.most,
            drift=stats.drift,
            clipped=stats.clipped,
            truncated=stats.truncated,
            stair_s=stair.stair_s,
            half_s=stair.half_s,
        )
        commit = Commit(result=result, samples=tuple(done.samples), micro_batches=tuple(done.micro_batches))
        await self.ctx.offload_within(
            self._deadlines, self._work.seal, commit
        )  # from here on the step is done
        seal_s = times.lap("weights")
        root = await self._publish(order.step)
        publish_s = times.lap("weights")
        await self._save(commit, root)
        record_s = times.lap("weights")
        # All at once and last: a status request must get a version with its own root.
        self._done, self._root = order.step, root
        self._result = result.with_weights(root, seal_s, publish_s, record_s)
        self._running = self._so_far = None
        await self.ctx.tell(MANAGER, StepEnded(batch=order.batch))
        await self.ctx.tell(CONTROLLER, StepDone(step=order.step))

    def _micro_batches(self, order: TrainStep) -> MicroBatches:
        size = self._settings.training.micro_batch_groups
        policy = InOrder if self._settings.job.exact else AsTheyCome
        return policy(size, order.groups)

    async def _train_due(self, due: list[list[GroupOut]], done: StepContents, times: AttemptTimes) -> float:
        """Train the micro-batches that are due; returns the seconds."""
        began_s = self.ctx.now()
        for groups in due:
            await self._train(groups, done, times)
        return self.ctx.now() - began_s

    async def _train(self, groups: list[GroupOut], done: StepContents, times: AttemptTimes) -> None:
        """Train one micro-batch."""
        done.add(groups)  # first: samples older than the bound are not trained on
        samples = samples_of(groups)
        if samples:
            await self.ctx.offload_within(self._deadlines, self._work.add_micro_batch, samples)
            self._progress += 1
        times.lap("training")
        done.trained = len(done.groups)

    # -- samples --

    async def _as_before(self, order: TrainStep) -> list[list[GroupOut]]:
        """The micro-batches of a step that was done and lost with its host, if its samples are still there:
        trained in the same order they give the same bits, so later results stay valid."""
        ask = RecordOf(step=order.step)
        record = (await self.ctx.ask(STATE, ask, deadline_s=self._successor_s, expect=RecordIs)).record
        if record is None:
            return []
        reply = await self._take(order, [], order.groups, WAIT_S)
        there = {group.group: group for group in reply.groups}
        if there.keys() != {group for batch in record.micro_batches for group in batch}:
            return []  # its batch was given up, and is rolled out anew
        self.ctx.log.info("step %d was lost: done again from the same samples", order.step)
        return [[there[group] for group in batch] for batch in record.micro_batches]

    async def _more(self, order: TrainStep, coming: MicroBatches, times: AttemptTimes) -> Groups:
        """The next complete groups, and groups that do not count; while no preemptible instance serves, this
        host helps."""
        known = coming.dropped
        async with self.ctx.wait("complete groups", on=MANAGER, deadline_s=GROUPS_LATE_S, go_on=True) as wait:
            while True:
                reply = await self._take(order, coming.have, coming.least, WAIT_S, known)
                self._look(reply, wait)
                times.lap("waiting")
                if not reply.groups and reply.remote_serving == 0:
                    reply = await self._seed(order, coming, 0.0)
                    times.lap("seeding")
                if reply.groups or (known is not None and len(reply.dropped) > known):
                    return reply

    async def _seed(self, order: TrainStep, coming: MicroBatches, window_s: float) -> Groups:
        """Lend the device to rollout for `window_s`, or until the batch is complete.

        While no preemptible instance serves, the window is extended until the first one does: the run
        continues in co-located mode. A batch that was rolled out ahead may be complete already.
        """
        have = coming.have
        left = order.groups - len(have)
        if window_s <= 0 or self._settings.rollout.staleness:
            reply = await self._take(order, have, left, 0.0)
            if reply.remaining == 0 or (window_s <= 0 and reply.remote_serving > 0):
                return reply
        engine = f"{self._node}/engine"
        opened = OpenSeeding(version=self._done, root=self._root)
        await self.ctx.ask(engine, opened, deadline_s=self._successor_s, expect=Done)
        late_s = window_s + GROUPS_LATE_S
        async with self.ctx.wait("the end of seeding", on=MANAGER, deadline_s=late_s, go_on=True) as wait:
            if window_s > 0:
                reply = await self._take(order, have, left, window_s)
                self._look(reply, wait)
            while reply.remaining and not reply.remote_serving:
                reply = await self._take(order, have, left, COLOCATED_S, until_served=True)
                self._look(reply, wait)
        await self.ctx.ask(engine, CloseSeeding(), deadline_s=self._successor_s + HAND_OVER_S, expect=Done)
        return reply

    async def _seed_in_stairs(
        self, order: TrainStep, coming: MicroBatches, done: StepContents, times: AttemptTimes
    ) -> tuple[Spent, Groups]:
        """As `_seed`, with half of the engines leaving first where the job has stairs. Returns the groups
        that are not trained yet."""
        have = list(coming.have)
        window_s, stair_s = order.t_seed_s, order.stair_s
        if (self._settings.seeding.stairs == "model" and stair_s is None) or not self._stairs:
            return Spent(), await self._seed(order, coming, window_s)
        reply = await self._take(order, have, order.groups - len(have), 0.0)
        if reply.remaining == 0 or (window_s <= 0 and reply.remote_serving > 0):
            return Spent(), reply
        engine, ask_s = f"{self._node}/engine", self._successor_s
        opened = OpenSeeding(version=self._done, root=self._root)
        await self.ctx.ask(engine, opened, deadline_s=ask_s, expect=Done)
        late_s = window_s + GROUPS_LATE_S
        what = "the end of seeding"
        async with self.ctx.wait(what, on=MANAGER, deadline_s=late_s, go_on=True) as waiting:

            async def take(all_left: bool, wait: Wait) -> Groups:
                least = order.groups - len(have) if all_left else max(coming.least, 1)
                taken = await self._take(
                    order, have, least, wait.at_most_s, until_served=wait.until_served, ended=wait.ended
                )
                self._look(taken, waiting)
                have.extend(group.group for group in taken.groups)
                return taken

            async def train(taken: Groups) -> float:
                times.lap("seeding")
                return await self._train_due(coming.add(taken.groups, taken.dropped), done, times)

            async def on_half(half: bool) -> None:
                await self.ctx.offload_within(self._deadlines, self._work.train_on_half, half)

            size = self._settings.training.micro_batch_groups
            window = StairSeeding(self.ctx, engine, ask_s, take, WindowTraining(on_half, train, size))
            stair = PaperStair() if stair_s is None else PlannedStair(stair_s)
            spent, reply = await window.run(window_s, stair)
            self._stairs = self._stairs and not window.refused
        await self.ctx.ask(engine, CloseSeeding(), deadline_s=ask_s + HAND_OVER_S, expect=Done)
        return spent, reply

    def _look(self, reply: Groups, wait: Waiting) -> None:
        """Look at the batch. While tokens arrive, nothing is late, however long a batch takes."""
        if reply.collected != self._collected:
            self._progress += 1
            self._collected = reply.collected
            wait.progress()

    async def _take(
        self,
        order: TrainStep,
        have: list[int],
        least: int,
        wait_s: float,
        dropped: int | None = None,
        until_served: bool = False,
        ended: float | None = None,
    ) -> Groups:
        ask = TakeGroups(
            batch=order.batch,
            taker=self.ctx.incarnation,
            have=have,
            min_groups=least,
            wait_s=wait_s,
            dropped=dropped,
            until_served=until_served,
            ended=ended,
        )
        return await ask_patiently(
            self.ctx,
            MANAGER,
            ask,
            expect=Groups,
            deadline_s=self._successor_s + wait_s,
            patience_s=PATIENCE_S,
        )

    # -- weights and state --

    async def _publish(self, version: int) -> bytes:
        publish: Publish = await self.ctx.offload_within(self._deadlines, self._work.write_image, version)
        published = await self.ctx.ask(
            f"{self._node}/transfer", publish, deadline_s=self._successor_s, expect=Published
        )
        return published.root

    async def _save(self, commit: Commit | None, root: bytes) -> None:
        trained = None
        if commit is not None:
            trained = StepTrained(
                step=commit.result.step,
                samples=commit.samples,
                root=root,
                micro_batches=commit.micro_batches,
            )
        save = SaveState(step=commit.result.step if commit is not None else self._done, trained=trained)
        await self.ctx.ask(STATE, save, deadline_s=self._successor_s, expect=Done)

    def summary(self) -> dict[str, str | int | float]:
        return {"steps": self._done, "running": self._running if self._running is not None else "-"}


def _so_far(times: AttemptTimes, done: StepContents) -> StepSoFar:
    spent = times.spent
    return StepSoFar(
        seeding_s=spent.seeding_s,
        waiting_s=spent.waiting_s,
        training_s=spent.training_s,
        groups=done.trained,
    )
