"""RolloutManager: owns every request from prompt to trained.

`state.state.RolloutState` holds the state and its rules; `journal.journaled_state` keeps it with its journal.
This actor receives the messages. `wiring` joins its parts: `fleet.membership`, `batches.submission`,
`journal.frame_intake`, `dispatch.dispatcher`, `dispatch.migration`, `batches.scoring`,
`batches.group_selection`, `batches.group_delivery`, `fleet.drain` and more. They feed events to the state,
and `reactions` has what follows from each. Effects of an event become visible to other actors only after its
commit: a frame is acknowledged, a dispatch sent and a group handed out only once it is in the journal. So a
killed manager restarts with everything that it had reported to any other actor. Meanwhile instances go on
decoding into their rings."""

from gleaner.actors.names import BALANCER
from gleaner.actors.protocol.balancer import ForgetAll
from gleaner.actors.protocol.instances import (
    CannotTake,
    InstancesAre,
    KeepRequests,
    ListInstances,
    NewWork,
    NotLoaded,
    Registered,
    RegisterInstance,
    RequestsKept,
    ServeNow,
    Serving,
    StillRegistered,
    Withdraw,
    Withdrawn,
)
from gleaner.actors.protocol.requests import Cancel, Generate
from gleaner.actors.protocol.rollout import (
    BatchReport,
    BatchTimes,
    GroupFates,
    GroupFatesAre,
    HoldBack,
    PublishVersion,
    ReleaseBatch,
    RolloutFigures,
    RolloutStatus,
    StepEnded,
    SubmitBatch,
    TakeGroups,
)
from gleaner.actors.rollout.batches.group_delivery import MAX_WAIT_S
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.actors.rollout.status import fates_of, figures_of, instances_of
from gleaner.actors.rollout.wiring import ManagerParts
from gleaner.supervisor import Actor, Deferred, Done, Lane, Message, Refused, Suspected, Terminated, handles

SWEEP_S = 1.0
MAX_HOLD_S = 60.0  # the sender of a hold renews it while it lives


class _Sweep(Message, frozen=True):
    """Look for silent instances, late re-registrations and takers whose deadline has passed."""


class RolloutManager(Actor):
    """See the module.

    Args:
        settings: sections `rollout`, `engine`, `reward`, `limits` and `ablation`.
    """

    def __init__(self, settings: ManagerSettings) -> None:
        self._settings = settings
        self._instances = Instances()

    async def on_start(self) -> None:
        limits = self._settings.limits
        self._journaled = JournaledState(
            self.ctx.journal, self.ctx.stream("ledger"), limits.journal_events, limits.journal_bytes
        )
        await self._journaled.replay()
        self._state = self._journaled.state
        parts = self._parts = ManagerParts(self.ctx, self._journaled, self._instances, self._settings)
        self._act = parts.reactions.committed
        await self.ctx.tell(BALANCER, ForgetAll())
        parts.start()
        self.ctx.every(SWEEP_S, _Sweep())

    # -- instances --

    @handles(RegisterInstance)
    async def register(self, message: RegisterInstance) -> Registered:
        return await self._parts.members.register(message, self._parts.receiver.local)

    @handles(StillRegistered)
    async def still_registered(self, message: StillRegistered) -> None:
        self._parts.members.still_registered(message)

    @handles(Serving)
    async def serving(self, message: Serving) -> None:
        await self._parts.members.serving(message)

    @handles(NotLoaded)
    async def not_loaded(self, message: NotLoaded) -> ServeNow:
        return await self._parts.weight_trials.not_loaded(message)

    @handles(KeepRequests)
    async def keep(self, message: KeepRequests) -> RequestsKept:
        return await self._parts.members.keep(message)

    @handles(Withdraw, lane=Lane.SYSTEM)
    async def withdraw(self, message: Withdraw) -> Deferred | Withdrawn:
        return await self._parts.members.withdraw(message)

    @handles(NewWork, lane=Lane.SYSTEM)
    async def new_work(self, message: NewWork) -> None:
        await self._parts.members.new_work(message)

    @handles(CannotTake)
    async def cannot_take(self, message: CannotTake) -> None:
        await self._parts.request_service.cannot_be(message)
        await self._parts.members.cannot_take(message)

    async def on_suspected(self, event: Suspected) -> None:
        await self._parts.members.suspected(event)

    async def on_terminated(self, event: Terminated) -> None:
        await self._parts.members.terminated(event)

    @handles(_Sweep)
    async def sweep(self, message: _Sweep) -> None:
        """Check every deadline."""
        await self._parts.members.look_for_silence()
        self._parts.group_readers.look()
        self._parts.group_selection.abort()
        self._parts.overdue.look(self.ctx.turn_time())
        due = await self._parts.deadlines.look()
        if due is not None:
            self._act(due)
        await self._parts.request_service.look()
        await self._parts.weight_trials.look()

    # -- the controller and the trainer --

    @handles(SubmitBatch)
    async def submit(self, message: SubmitBatch) -> Done:
        await self._parts.batch_submission.submit(message)
        return Done()

    @handles(Generate)
    async def generate(self, message: Generate) -> Deferred:
        deferred = self._parts.request_service.ask(message)
        self.ctx.after(message.deadline_s, _Sweep())
        return deferred

    @handles(Cancel)
    async def cancel(self, message: Cancel) -> Done:
        await self._parts.request_service.cancel(message.ids)
        due = await self._parts.deadlines.look()
        if due is not None:
            self._act(due)
        return Done()

    @handles(HoldBack)
    async def hold(self, message: HoldBack) -> Done:
        if not 0 <= message.for_s <= MAX_HOLD_S:
            raise Refused(f"for_s is {message.for_s}, expected a number from 0 to {MAX_HOLD_S:g}")
        self._parts.dispatcher.hold(message.for_s)
        if message.take_back:
            await self._parts.members.take_back()
        return Done()

    @handles(PublishVersion)
    async def publish(self, message: PublishVersion) -> Done | Deferred:
        if message.tried and not self._parts.batch_submission.known(message.weights):
            return self._parts.weight_trials.begin(message.weights)
        await self._parts.batch_submission.publish(message.weights, ascending=message.ascending)
        return Done()

    @handles(TakeGroups)
    async def take(self, message: TakeGroups) -> Deferred:
        if message.batch not in self._state.log.batches:
            raise Refused(f"batch {message.batch} is not open")
        deferred = self._parts.group_readers.add(message)  # looks at `wait_s` first
        self.ctx.after(min(message.wait_s, MAX_WAIT_S), _Sweep())
        self._parts.group_readers.look()
        return deferred

    @handles(StepEnded)
    async def step_ended(self, message: StepEnded) -> None:
        self._parts.step_metrics.step_ended(message.batch)

    @handles(GroupFates)
    async def fates(self, message: GroupFates) -> GroupFatesAre:
        batch = self._state.log.batches.get(message.batch)
        if batch is None:
            raise Refused(f"batch {message.batch} is not open")
        return fates_of(batch)

    @handles(BatchReport)
    async def report(self, message: BatchReport) -> BatchTimes:
        return self._parts.step_metrics.report(message.batch)

    @handles(ReleaseBatch)
    async def release(self, message: ReleaseBatch) -> Done:
        await self._parts.batch_submission.close([message.batch])
        return Done()

    @handles(RolloutStatus)
    async def status(self, message: RolloutStatus) -> RolloutFigures:
        parts = self._parts
        return figures_of(
            self._state,
            self._instances,
            parts.receiver.refused,
            parts.scoring.asked_again,
            parts.scoring.health.sickness(self.ctx.now()),
        )

    @handles(ListInstances)
    async def list_instances(self, message: ListInstances) -> InstancesAre:
        return instances_of(self._state, self._instances)

    def summary(self) -> dict[str, str | int | float]:
        counters = self._state.counters
        full = self.ctx.journal.refuses()
        sick = self._parts.scoring.health.sickness(self.ctx.now())
        return {
            **({"suspended": f"no new batches: {full}"} if full else {}),
            **({"verifier": f"sick: {sick.words}"} if sick is not None else {}),
            "batches": len(self._state.log.batches),
            "instances": len(self._instances),
            "tokens": counters.tokens_collected,
            "migrated": counters.requests_migrated,
            "moved": counters.requests_moved,
            "weights_by_deltas": self._instances.pulled["delta_versions"],
            "weights_whole": self._instances.pulled["whole_versions"],
            "groups_read_back": self._parts.group_readers.read_back,
            "frames_twice": self._parts.receiver.duplicates,
            "frames_missing": self._parts.receiver.gaps,
            "streams_fenced": self._parts.intake.fenced + self._parts.receiver.refused["fenced"],
        }
