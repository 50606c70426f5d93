"""RolloutManager: owns every request from prompt to trained.

The state and its rules are `state.RolloutState`, kept with its journal in `books`. This actor takes the
messages, and its parts feed the state events and do what follows: `membership` and `opening`, `intake`,
`dispatching`, `moving`, `scoring`, `selecting`, `handing_out`, `withdrawing` and more. What others see of an
event happened after its commit: a frame is acknowledged, a dispatch sent and a group handed out only once it
is in the journal, so a killed manager comes back knowing all that anybody was told. Instances decode on into
their rings meanwhile."""

from actors.rollout.books import Books
from actors.rollout.changes import Changes
from actors.rollout.deadlines import Deadlines
from actors.rollout.dispatching import BALANCER, Dispatching
from actors.rollout.events import SampleAgain, Scored
from actors.rollout.figures import fates_of, figures_of, instances_of
from actors.rollout.flipping import Flipping
from actors.rollout.following import Following
from actors.rollout.handing_out import MAX_WAIT_S, Takers
from actors.rollout.instances import Instance, Instances
from actors.rollout.intake import Intake
from actors.rollout.load_balancer import ForgetAll
from actors.rollout.measuring import Measuring
from actors.rollout.membership import Membership
from actors.rollout.messages import (
    BatchReport,
    BatchTimes,
    Cancel,
    CannotTake,
    Generate,
    GroupFates,
    GroupFatesAre,
    HoldBack,
    InstancesAre,
    ListInstances,
    NewWork,
    PublishVersion,
    Registered,
    RegisterInstance,
    ReleaseBatch,
    RolloutFigures,
    RolloutStatus,
    Serving,
    StepEnded,
    StillRegistered,
    SubmitBatch,
    TakeGroups,
    Withdraw,
    Withdrawn,
)
from actors.rollout.moving import Moving
from actors.rollout.opening import Opening
from actors.rollout.owed import Owed
from actors.rollout.request_log import RequestLog
from actors.rollout.sampling import made_again
from actors.rollout.scoring import Scoring
from actors.rollout.selecting import Selecting
from actors.rollout.sessions import Sessions
from actors.rollout.singles import Singles
from actors.rollout.withdrawing import Withdrawals
from configs.schema import Config
from supervisor import Actor, Deferred, Done, Lane, Message, Refused, Suspected, Terminated, handles

SWEEP_S = 1.0
MAX_HOLD_S = 60.0  # whoever holds lives, and says so again


class _Sweep(Message, frozen=True):
    """Look for silent instances, late re-registrations and takers whose time is up."""


class RolloutManager(Actor):
    """See the module."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._instances = Instances()

    async def on_start(self) -> None:
        limits = self._config.limits
        self._books = Books(
            self.ctx.journal, self.ctx.stream("ledger"), limits.journal_events, limits.journal_bytes
        )
        await self._books.replay()
        self._state = self._books.state
        self._measuring = Measuring(self.ctx, self._state, self._instances)
        self._moving = Moving(self.ctx, self._books, self._instances)
        sessions = Sessions()
        self._dispatching = Dispatching(
            self.ctx,
            self._books,
            self._instances,
            on_sent=self._sent,
            give_up=self._give_up,
            moving=self._moving,
            sessions=sessions,
        )
        self._opening = Opening(
            self.ctx,
            self._books,
            flipping=Flipping(self.ctx, self._books, self._instances),
            measuring=self._measuring,
            max_prompt_tokens=self._config.engine.max_prompt_tokens,
            max_new_tokens=self._config.rollout.max_new_tokens,
            act=self._act,
        )
        self._scoring = Scoring(self.ctx, self._books, self._config.reward, self._scored)
        self._takers = Takers(self.ctx, self._books, self._instances)
        self._selecting = Selecting(
            self.ctx, self._books, self._instances, self._config.engine.max_prompt_tokens, self._act
        )
        self._deadlines = Deadlines(
            self.ctx, self._books, self._instances, self._config.rollout.request_deadline_s
        )
        opening = self._opening
        self._following = Following(self.ctx, self._books)
        self._singles = Singles(
            self.ctx,
            self._books,
            self._instances,
            self._deadlines,
            self._config,
            self._following,
            sessions,
            opening.open,
            opening.close,
        )
        self._withdrawals = Withdrawals(self.ctx, self._state)
        self._owed = Owed(self.ctx, self._state, self._instances, self._config.rollout.deadline_s)
        self._members = Membership(
            self.ctx,
            self._books,
            self._instances,
            self._config,
            dispatching=self._dispatching,
            measuring=self._measuring,
            withdrawals=self._withdrawals,
            owed=self._owed,
            act=self._act,
            on_serving=self._on_serving,
        )
        await self.ctx.tell(BALANCER, ForgetAll())
        self._intake = Intake(self._books, self._act, self._heard, self.ctx.idle, self._following)
        self._receiver = self._intake.receiver = self.ctx.network.token_receiver(
            self._intake.take, self._state.streams.have, window=self._config.limits.credit_frames
        )
        self.ctx.at_end(self._receiver.close)
        self._scoring.start()
        self._selecting.start()
        self.ctx.background(self._dispatching.run(), "dispatch")
        self.ctx.background(self._intake.enter(), "frames")
        self.ctx.background(self._intake.acknowledge(), "acknowledge")
        self.ctx.background(self._following.run(), "follow")
        if self._config.rollout.continuous_lb:
            self.ctx.background(self._moving.run(), "moves")
        self.ctx.every(SWEEP_S, _Sweep())

    # -- instances --

    @handles(RegisterInstance)
    async def register(self, message: RegisterInstance) -> Registered:
        return await self._members.register(message, self._receiver.local)

    @handles(StillRegistered)
    async def still_registered(self, message: StillRegistered) -> None:
        self._members.still_registered(message)

    @handles(Serving)
    async def serving(self, message: Serving) -> None:
        await self._members.serving(message)

    @handles(Withdraw, lane=Lane.SYSTEM)
    async def withdraw(self, message: Withdraw) -> Deferred | Withdrawn:
        return await self._members.withdraw(message)

    @handles(NewWork, lane=Lane.SYSTEM)
    async def new_work(self, message: NewWork) -> None:
        await self._members.new_work(message)

    @handles(CannotTake)
    async def cannot_take(self, message: CannotTake) -> None:
        await self._singles.cannot_be(message)
        await self._members.cannot_take(message)

    async def on_suspected(self, event: Suspected) -> None:
        await self._members.suspected(event)

    async def on_terminated(self, event: Terminated) -> None:
        await self._members.terminated(event)

    async def _give_up(self, name: str, incarnation: int, cause: str) -> None:
        await self._members.lose(name, incarnation, cause)

    def _on_serving(self) -> None:
        self._singles.changed()
        self._moving.wake()

    @handles(_Sweep)
    async def sweep(self, message: _Sweep) -> None:
        """Whatever is late."""
        now = self.ctx.now()
        await self._members.look_for_silence(now)
        self._takers.look()
        self._selecting.abort()
        self._owed.look(now)
        due = await self._deadlines.look()
        if due is not None:
            self._act(due)
        await self._singles.look()

    def _heard(self, name: str) -> None:
        self._instances.heard(name, self.ctx.now())

    # -- the controller and the trainer --

    @handles(SubmitBatch)
    async def submit(self, message: SubmitBatch) -> Done:
        await self._opening.submit(message)
        return Done()

    @handles(Generate)
    async def generate(self, message: Generate) -> Deferred:
        deferred = self._singles.ask(message)
        self.ctx.after(message.deadline_s, _Sweep())
        return deferred

    @handles(Cancel)
    async def cancel(self, message: Cancel) -> Done:
        await self._singles.cancel(message.ids)
        due = await self._deadlines.look()
        if due is not None:
            self._act(due)
        return Done()

    @handles(HoldBack)
    async def hold(self, message: HoldBack) -> Done:
        if not 0 <= message.for_s <= MAX_HOLD_S:
            raise Refused(f"for_s is {message.for_s}, expected a number from 0 to {MAX_HOLD_S:g}")
        self._dispatching.hold(message.for_s)
        if message.take_back:
            await self._members.take_back()
        return Done()

    @handles(PublishVersion)
    async def publish(self, message: PublishVersion) -> Done:
        await self._opening.publish(message.weights)
        return Done()

    @handles(TakeGroups)
    async def take(self, message: TakeGroups) -> Deferred:
        if message.batch not in self._state.log.batches:
            raise Refused(f"batch {message.batch} is not open")
        deferred = self._takers.add(message)  # looks at `wait_s` first
        self.ctx.after(min(message.wait_s, MAX_WAIT_S), _Sweep())
        self._takers.look()
        return deferred

    @handles(StepEnded)
    async def step_ended(self, message: StepEnded) -> None:
        self._measuring.step_ended(message.batch)

    @handles(GroupFates)
    async def fates(self, message: GroupFates) -> GroupFatesAre:
        batch = self._state.log.batches.get(message.batch)
        if batch is None:
            raise Refused(f"batch {message.batch} is not open")
        return fates_of(batch)

    @handles(BatchReport)
    async def report(self, message: BatchReport) -> BatchTimes:
        return self._measuring.report(message.batch)

    @handles(ReleaseBatch)
    async def release(self, message: ReleaseBatch) -> Done:
        await self._opening.close(message.batch)
        return Done()

    @handles(RolloutStatus)
    async def status(self, message: RolloutStatus) -> RolloutFigures:
        return figures_of(self._state, self._instances, self._receiver.refused)

    @handles(ListInstances)
    async def list_instances(self, message: ListInstances) -> InstancesAre:
        return instances_of(self._state, self._instances)

    def summary(self) -> dict[str, str | int | float]:
        counters = self._state.counters
        full = self.ctx.journal.refuses()
        return {
            **({"suspended": f"no new batches: {full}"} if full else {}),
            "batches": len(self._state.log.batches),
            "instances": len(self._instances),
            "tokens": counters.tokens_collected,
            "migrated": counters.requests_migrated,
            "moved": counters.requests_moved,
            "groups_read_back": self._takers.read_back,
            "frames_twice": self._receiver.duplicates,
            "frames_missing": self._receiver.gaps,
            "streams_fenced": self._intake.fenced + self._receiver.refused["fenced"],
        }

    # -- what follows from committed events --

    def _sent(self, instance: Instance, logs: list[RequestLog]) -> None:
        instance.heard_s = self.ctx.now()  # its silence counts from here
        self._owed.moved()
        self._measuring.sent(instance, logs)
        self._moving.sent(logs)
        self._deadlines.sent(logs)

    async def _scored(self, event: Scored) -> None:
        """A verdict counts, unless it says nothing of the sample: then that one is made again, alone."""
        log = self._state.log.requests.get(event.request)
        if log is not None:
            batch = self._state.log.batches[log.batch]
            if not log.due and made_again(event.status, log.again, batch.submitted.again):
                self.ctx.log.info("%s is made again: %s", log.id, event.status)
                self._act(await self._books.record(SampleAgain(request=log.id, why=event.status)))
                return
        self._act(await self._books.record(event))

    def _act(self, changes: Changes) -> None:
        self._dispatching.note(changes)
        self._measuring.ended(changes)
        self._moving.note(changes)
        for request in changes.finished:
            log = self._state.log.requests.get(request)
            if log is None:
                continue
            if self._state.log.batches[log.batch].submitted.scored:
                self._scoring.add(request)
            else:
                self._singles.finished(log)
        if changes.completed:
            for name in dict.fromkeys(batch for batch, _ in changes.completed):
                batch = self._state.log.batches.get(name)
                if batch is not None and batch.selects:
                    self._selecting.look(batch)
            self._takers.look()
        if changes.ended or changes.queued or changes.started:
            self._dispatching.wake()
            self._withdrawals.look()
