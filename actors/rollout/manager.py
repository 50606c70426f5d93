"""RolloutManager: owns every request from prompt to trained.

The state and its rules are `state.RolloutState`, kept with its journal in `books`. This actor feeds it
events and lets its parts do what follows: `dispatching`, `scoring`, `handing_out`, `withdrawing`. What
others see of an event happened after its commit: a frame is acknowledged, a dispatch sent and a group
handed out only once it is in the journal, so a killed manager comes back knowing all that anybody was
told. Instances decode on into their rings meanwhile."""

import asyncio

from actors.rollout.books import Books
from actors.rollout.changes import Changes
from actors.rollout.deadlines import Deadlines
from actors.rollout.dispatching import BALANCER, Dispatching
from actors.rollout.events import (
    BatchSubmitted,
    InstanceGone,
    InstanceJoined,
    SampleAgain,
    Scored,
    TicketsRevoked,
)
from actors.rollout.flipping import Flipping
from actors.rollout.handing_out import Takers
from actors.rollout.instances import Instance, Instances
from actors.rollout.intake import Intake
from actors.rollout.load_balancer import ForgetAll
from actors.rollout.measuring import Measuring
from actors.rollout.messages import (
    BatchReport,
    BatchTimes,
    CannotTake,
    Generate,
    GroupFates,
    GroupFatesAre,
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
    Weights,
    Withdraw,
    Withdrawn,
)
from actors.rollout.moving import Moving
from actors.rollout.owed import Owed
from actors.rollout.sampling import SURPLUS, made_again
from actors.rollout.scoring import Scoring
from actors.rollout.selecting import Selecting
from actors.rollout.singles import Singles
from actors.rollout.token_log import RequestLog
from actors.rollout.withdrawing import Withdrawals
from configs.schema import Config
from supervisor import (
    Actor,
    Deadline,
    Deferred,
    Done,
    Lane,
    Message,
    Refused,
    Suspected,
    Suspended,
    Terminated,
    handles,
)

SWEEP_S = 1.0
REREGISTER_S = 5.0  # after a restart: an instance of the journal that has not come back by then is gone
QUIET_S = 0.05  # a dead instance's stream is at its end when nothing came for so long
QUIET_LOOKS = 10


class _Sweep(Message, frozen=True):
    """Look for silent instances, late re-registrations and takers whose time is up."""


class RolloutManager(Actor):
    """See the module."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._instances = Instances()
        self._registrations = 0

    async def on_start(self) -> None:
        limits = self._config.limits
        self._books = Books(
            self.ctx.journal, self.ctx.stream("ledger"), limits.journal_events, limits.journal_bytes
        )
        await self._books.replay()
        self._state = self._books.state
        now = self.ctx.now()
        self._registered_by = Deadline.after(REREGISTER_S, now)
        self._awaited = {name for name, stream in self._state.streams.items() if not stream.gone}
        self._measuring = Measuring(self.ctx, self._state, self._instances)
        self._moving = Moving(self.ctx, self._books, self._instances)
        self._dispatching = Dispatching(
            self.ctx,
            self._books,
            self._instances,
            on_sent=self._sent,
            give_up=self._lose,
            moving=self._moving,
        )
        self._flipping = Flipping(self.ctx, self._books, self._instances)
        self._scoring = Scoring(self.ctx, self._books, self._config.reward, self._scored)
        self._takers = Takers(self.ctx, self._books, self._instances)
        self._selecting = Selecting(
            self.ctx, self._books, self._instances, self._config.engine.max_prompt_tokens, self._act
        )
        self._deadlines = Deadlines(
            self.ctx, self._books, self._instances, self._config.rollout.request_deadline_s
        )
        self._singles = Singles(
            self.ctx, self._books, self._instances, self._deadlines, self._config, self._open, self._close
        )
        self._withdrawals = Withdrawals(self.ctx, self._state)
        self._owed = Owed(self.ctx, self._state, self._instances, self._config.rollout.deadline_s)
        await self.ctx.tell(BALANCER, ForgetAll())
        self._intake = Intake(self._books, self._act, self._heard, self.ctx.idle)
        self._receiver = self._intake.receiver = self.ctx.network.token_receiver(
            self._intake.take, self._state.streams.have, window=self._config.limits.credit_frames
        )
        self.ctx.at_end(self._receiver.close)
        self._scoring.start()
        self._selecting.start()
        self.ctx.background(self._dispatching.run(), "dispatch")
        self.ctx.background(self._intake.enter(), "frames")
        self.ctx.background(self._intake.acknowledge(), "acknowledge")
        if self._config.rollout.continuous_lb:
            self.ctx.background(self._moving.run(), "moves")
        self.ctx.every(SWEEP_S, _Sweep())

    # -- instances --

    @handles(RegisterInstance)
    async def register(self, message: RegisterInstance) -> Registered:
        """A worker came, or came back. Tickets that never reached it are taken back. It gets no new ones
        until it says what it serves, and by then it knows the epoch that its dispatches must bear."""
        name, incarnation = message.instance, message.worker.incarnation
        known = self._instances.get(name)
        # One that is back with a manager that knows it from its journal changes nothing there: when thousands
        # of requests wait for a new manager, its instances do not queue for a commit each.
        joined = Changes()
        if self._state.streams.alive(name, incarnation) is None:
            joined = await self._books.record(InstanceJoined(instance=name, incarnation=incarnation))
            if joined.refused:
                raise Refused(
                    f"{name}#{incarnation} was replaced or given up: start again under a new incarnation"
                )
        self._awaited.discard(name)
        self._registrations += 1
        epoch = f"{self.ctx.incarnation}.{self._registrations}"
        instance = self._instances.register(message, epoch, self.ctx.now())
        if known is None or known.worker != message.worker:
            self.ctx.watch(message.worker)
        stream = self._state.streams[name]
        lost = tuple(sorted(ticket for ticket in stream.live() if ticket > message.received))
        if lost:
            self.ctx.log.info("%s never got %d dispatches: they go elsewhere", name, len(lost))
            await self._books.record(TicketsRevoked(instance=name, incarnation=incarnation, tickets=lost))
        self._dispatching.forget_load(name)
        await self.ctx.tell(BALANCER, instance.down())
        await self.ctx.tell(BALANCER, instance.up(*stream.load()))
        self._act(joined)
        self._measuring.there()
        self._dispatching.wake()
        local = self._receiver.local
        pulls = message.kind == "preemptible" and not self._config.ablation.synchronous_weights
        return Registered(
            manager=self.ctx.address,
            epoch=epoch,
            stream_endpoint=local.endpoint,
            stream_key=local.public_key,
            weights=self._books.newest_weights() if pulls else None,
        )

    @handles(StillRegistered)
    async def still_registered(self, message: StillRegistered) -> None:
        instance = self._instances.get(message.instance)
        if instance is None or (instance.incarnation, instance.epoch) != (message.incarnation, message.epoch):
            raise Refused(f"{message.instance}#{message.incarnation} is not registered: register again")

    @handles(Serving)
    async def serving(self, message: Serving) -> None:
        instance = self._instances.get(message.instance)
        if instance is None or instance.incarnation != message.incarnation:
            raise Refused(f"{message.instance}#{message.incarnation} is not registered")
        if instance.leaving:
            return
        instance.version, instance.root = message.version, message.root
        await self.ctx.tell(BALANCER, instance.serves(message.version, message.root))
        self._singles.changed()
        self._measuring.there()
        self._dispatching.wake()
        self._moving.wake()

    @handles(Withdraw, lane=Lane.SYSTEM)
    async def withdraw(self, message: Withdraw) -> Deferred | Withdrawn:
        """The instance gets nothing more; what it still has after the grace is taken back, token by token."""
        instance = self._instances.get(message.instance)
        if instance is None:
            stream = self._state.streams.get(message.instance)
            if stream is not None and stream.held:
                raise Refused(f"{message.instance} has not registered again yet: try again")
            return Withdrawn(handed_over=0)
        instance.version = None
        instance.leaving = message.leaves
        await self.ctx.tell(BALANCER, instance.serves(None))
        self._measuring.there()
        self._dispatching.wake()  # what was meant for it goes elsewhere
        return self._withdrawals.begin(instance, message.grace_s)

    async def on_suspected(self, event: Suspected) -> None:
        """It gets no new requests until it is heard again; what it has stays with it."""
        instance = self._instances.get(event.name)
        if instance is not None and instance.incarnation == event.incarnation:
            await self.ctx.tell(BALANCER, instance.suspected(event.suspected))
            self._dispatching.wake()

    async def on_terminated(self, event: Terminated) -> None:
        """It gets nothing more at once. Its last frames may still be on their way, on a socket of their own:
        they are collected before its requests go elsewhere."""
        instance = self._instances.remove(event.name, event.incarnation)
        if instance is not None:
            await self.ctx.tell(BALANCER, instance.down())
            self._measuring.there()
            self.ctx.background(self._lose_when_quiet(event), f"end of {event.name}")

    async def _lose_when_quiet(self, event: Terminated) -> None:
        stream = self._state.streams.alive(event.name, event.incarnation)
        late_s = 2 * QUIET_S * QUIET_LOOKS
        async with self.ctx.wait("its last frames", on=event.name, deadline_s=late_s, go_on=True):
            for _ in range(QUIET_LOOKS):
                seen = stream.last_seq if stream is not None else 0
                await asyncio.sleep(QUIET_S)
                if stream is None or stream.last_seq == seen:
                    break
        if event.name not in self._instances:  # otherwise it is back already
            await self._lose(event.name, event.incarnation, event.cause)

    async def _lose(self, name: str, incarnation: int, cause: str) -> None:
        """Give an incarnation up: it is fenced, and its requests go elsewhere."""
        instance = self._instances.remove(name, incarnation)
        if instance is not None:
            await self.ctx.tell(BALANCER, instance.down())
        if self._state.streams.alive(name, incarnation) is not None:
            self.ctx.log.info("instance %s#%d is gone: %s", name, incarnation, cause)
            anew = self._config.ablation.recompute
            gone = InstanceGone(instance=name, incarnation=incarnation, cause=cause, anew=anew)
            self._act(await self._books.record(gone))
            self._measuring.left(name)
        self._measuring.there()
        self._dispatching.wake()
        self._withdrawals.look()

    @handles(CannotTake)
    async def cannot_take(self, message: CannotTake) -> None:
        self.ctx.log.warning("%s cannot take %d: %s", message.instance, len(message.tickets), message.why)
        revoked = TicketsRevoked(
            instance=message.instance, incarnation=message.incarnation, tickets=tuple(message.tickets)
        )
        instance = self._instances.get(message.instance)
        if (
            instance is not None
            and instance.incarnation == message.incarnation
            and message.version is not None
            and instance.version not in (None, message.version)
        ):  # it loaded others since it said what it serves, and will say so: until then it gets nothing
            instance.version = None
            await self.ctx.tell(BALANCER, instance.serves(None))
        self._act(await self._books.record(revoked))

    @handles(_Sweep)
    async def sweep(self, message: _Sweep) -> None:
        """Give up instances that hold work in silence, and those of the journal that never came back."""
        now = self.ctx.now()
        for name, stream in list(self._state.streams.items()):
            if stream.gone:
                continue
            instance = self._instances.get(name)
            if instance is None:
                if name in self._awaited and self._registered_by.passed(now):
                    self._awaited.discard(name)
                    await self._lose(name, stream.incarnation, "did not come back")
            elif now - instance.heard_s > self._config.rollout.deadline_s and stream.held:
                self._owed.silent(name, now - instance.heard_s)
                silence = f"held {stream.held} requests in silence for {now - instance.heard_s:.0f} s"
                await self._lose(name, stream.incarnation, silence)
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
        refusal = self._state.refusal(message.batch)
        if refusal is not None:
            raise Refused(refusal)
        name = message.batch.batch
        longest = max(len(prompt.tokens) for prompt in message.batch.prompts)
        if longest > self._config.engine.max_prompt_tokens:  # no engine would take it, again and again
            most = self._config.engine.max_prompt_tokens
            raise Refused(f"batch {name}: a prompt has {longest} tokens, engine.max_prompt_tokens is {most}")
        opened = self._books.weights.get(name)
        if message.batch.min_version is None and opened is not None and opened.root != message.weights.root:
            raise Refused(_lost_weights(f"batch {name}", opened.version))  # nobody will serve those again
        await self._publish(message.weights)
        await self._open(message.batch, message.weights)
        self._flipping.tell()
        self._measuring.there()
        return Done()

    async def _open(self, batch: BatchSubmitted, weights: Weights) -> None:
        """Open a batch that is not open yet. Raises Refused or Suspended."""
        if batch.batch not in self._state.log.batches:
            if refusal := self._state.refusal(batch):
                raise Refused(refusal)
            if full := self.ctx.journal.refuses():
                raise Suspended(f"no new batches: {full}")
            self._measuring.opened(batch.batch)
            self._act(await self._books.submit(batch, weights))

    @handles(Generate)
    async def generate(self, message: Generate) -> Deferred:
        deferred = self._singles.ask(message)
        self.ctx.after(message.deadline_s, _Sweep())
        return deferred

    @handles(PublishVersion)
    async def publish(self, message: PublishVersion) -> Done:
        await self._publish(message.weights)
        self._flipping.tell()
        self._measuring.there()
        return Done()

    async def _publish(self, weights: Weights) -> None:
        """Note the newest weights. A version that comes again with another root is another one: nobody will
        ever serve again what was begun under the lost one."""
        if self._state.begun_under_others(weights.version, weights.root):
            raise Refused(_lost_weights("an open batch", weights.version))
        await self._books.publish(weights)

    @handles(TakeGroups)
    async def take(self, message: TakeGroups) -> Deferred:
        if message.batch not in self._state.log.batches:
            raise Refused(f"batch {message.batch} is not open")
        deferred = self._takers.add(message)
        self.ctx.after(message.wait_s, _Sweep())
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
        dropped = sorted(batch.fates.dropped.items())
        return GroupFatesAre(
            kept=sorted(batch.fates.kept) if batch.selects else list(range(len(batch.groups))),
            dropped=[group for group, why in dropped if why != SURPLUS],
            aborted=[group for group, why in dropped if why == SURPLUS],
            again=len(batch.past),
        )

    @handles(BatchReport)
    async def report(self, message: BatchReport) -> BatchTimes:
        return self._measuring.report(message.batch)

    @handles(ReleaseBatch)
    async def release(self, message: ReleaseBatch) -> Done:
        await self._close(message.batch)
        return Done()

    async def _close(self, name: str) -> None:
        batch = self._state.log.batches.get(name)
        if batch is not None:
            changes = await self._books.release(batch)
            self._measuring.released(name)
            self._act(changes)

    @handles(RolloutStatus)
    async def status(self, message: RolloutStatus) -> RolloutFigures:
        loads = [stream.load() for stream in self._state.streams.values() if not stream.gone]
        counters = self._state.counters
        return RolloutFigures(
            queued=self._state.log.waiting,
            pending=sum(load[0] for load in loads),
            executing=sum(load[1] for load in loads),
            serving_reserved=self._instances.serving("reserved", None),
            serving_preemptible=self._instances.serving("preemptible", None),
            tokens_collected=counters.tokens_collected,
            tokens_lost=self._state.tokens_lost,
            tokens_generated_twice=counters.tokens_generated_twice,
            requests_migrated=counters.requests_migrated,
            requests_moved=counters.requests_moved,
            refused=dict(self._state.refused + self._receiver.refused),
            reserved_engines=self._instances.engines("reserved"),
            tokens_wasted=dict(counters.tokens_wasted),
            groups_dropped=counters.groups_dropped,
            groups_aborted=counters.groups_aborted,
            samples_again=counters.samples_again,
            busy_preemptible=sum(
                not stream.gone and stream.held > 0
                for name, stream in self._state.streams.items()
                if (one := self._instances.get(name)) is not None and one.kind == "preemptible"
            ),
        )

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


def _lost_weights(what: str, version: int) -> str:
    return (
        f"{what} was begun under other weights of version {version} than there are now: the state that made "
        "them is lost; begin another run from the last checkpoint (model.path)"
    )
