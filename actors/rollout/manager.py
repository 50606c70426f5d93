"""RolloutManager: owns every request from prompt to trained.

The state and its rules are `state.RolloutState`; this actor feeds it events, journals them, and does what
follows: acknowledge, dispatch, abort, ask for scores, answer the trainer. What others see of an event
happened after its
commit: a frame is acknowledged, a dispatch sent and a group handed out only once it is in the journal, so
a killed manager comes back knowing all that anybody was told. Instances decode on into their rings
meanwhile.
"""

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable

from actors.reward.messages import Score, Verdict
from actors.rollout.changes import Changes
from actors.rollout.clock import BatchClock
from actors.rollout.events import (
    BatchReleased,
    Dispatched,
    FrameLogged,
    GroupsTaken,
    InstanceGone,
    InstanceJoined,
    RolloutSnapshot,
    Scored,
    TicketsRevoked,
)
from actors.rollout.instances import Instance, Instances
from actors.rollout.load_balancer import ForgetAll, LoadChange, LoadChanged, Place, Placed
from actors.rollout.messages import (
    Abort,
    BatchLedger,
    BatchReport,
    BatchTimes,
    CannotTake,
    Dispatch,
    GroupOut,
    Groups,
    Registered,
    RegisterInstance,
    ReleaseBatch,
    RequestLedger,
    RolloutFigures,
    RolloutStatus,
    SampleOut,
    ServeWeights,
    Serving,
    SubmitBatch,
    TakeGroups,
    Weights,
    Withdraw,
    Withdrawn,
    Work,
)
from actors.rollout.state import RolloutState
from actors.rollout.token_log import Batch, RequestLog
from configs.schema import Config
from supervisor import (
    Actor,
    AskFailed,
    Deferred,
    Done,
    Lane,
    Message,
    Refused,
    Terminated,
    Unreachable,
    handles,
)
from transport.token_frame import TokenFrame

BALANCER = "rollout/balancer"
REWARD = "reward/proxy"
SCORING = 32  # verdicts asked for at a time: a few for each reward worker
SWEEP_S = 1.0
REREGISTER_S = 5.0  # after a restart: an instance of the journal that has not come back by then is gone
PLACE_DEADLINE_S = 5.0
DISPATCH_DEADLINE_S = 10.0  # an instance that takes no dispatch for so long is given up
ABORT_AGAIN_S = 0.5  # an abort may be lost on the way; repeating it is harmless
QUIET_S = 0.05  # a dead instance's stream is at its end when nothing came for so long
QUIET_LOOKS = 10


class BatchWeights(Message, frozen=True):
    """Journaled beside `BatchSubmitted`: who has the weights of a batch."""

    batch: str
    weights: Weights


class ManagerSnapshot(Message, frozen=True):
    """Journaled when a batch is released: all that is open."""

    rollout: RolloutSnapshot
    weights: dict[str, Weights]


class _Sweep(Message, frozen=True):
    """Look for silent instances and late re-registrations."""


class RolloutManager(Actor):
    """See the module."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._state = RolloutState()
        self._weights: dict[str, Weights] = {}
        self._instances = Instances()
        self._clocks: dict[str, BatchClock] = {}
        self._takers: list[tuple[float, TakeGroups, Deferred]] = []
        self._withdrawals: dict[str, tuple[int, Deferred]] = {}
        self._dirty = asyncio.Event()
        self._ended = asyncio.Event()
        self._scoring: asyncio.Queue[str] = asyncio.Queue()  # bounded by the open requests
        self._load: list[LoadChange] = []
        self._registrations = 0

    async def on_start(self) -> None:
        async for event in self.ctx.journal.replay():
            if isinstance(event, ManagerSnapshot):
                self._state.apply(event.rollout)
                self._weights = dict(event.weights)
            elif isinstance(event, BatchWeights):
                self._weights[event.batch] = event.weights
            else:
                self._state.apply(event)
        now = self.ctx.now()
        self._clocks = {batch: BatchClock(now) for batch in self._state.log.batches}
        await self.ctx.tell(BALANCER, ForgetAll())
        self._receiver = self.ctx.network.token_receiver(
            self._on_frame, self._state.streams.have, window=self._config.limits.credit_frames
        )
        self.ctx.at_end(self._receiver.close)
        self._registered_by = now + REREGISTER_S
        for log in self._state.log.unscored():
            self._scoring.put_nowait(log.id)
        for _ in range(SCORING):
            self.ctx.background(self._score_loop(), "scores")
        self.ctx.background(self._pump_loop(), "dispatch")
        self.ctx.every(SWEEP_S, _Sweep())

    # -- instances --

    @handles(RegisterInstance)
    async def register(self, message: RegisterInstance) -> Registered:
        """A worker came, or came back. Tickets that never reached it are taken back. It gets no new ones until
        it says what it serves, and by then it knows the epoch that its dispatches must bear."""
        name, incarnation = message.instance, message.worker.incarnation
        known = self._instances.get(name)
        joined = InstanceJoined(instance=name, incarnation=incarnation)
        changes = self._apply(joined)
        if changes.refused:
            raise Refused(
                f"{name}#{incarnation} was replaced or given up: start again under a new incarnation"
            )
        self._registrations += 1
        epoch = f"{self.ctx.incarnation}.{self._registrations}"
        instance = self._instances.register(message, epoch, self.ctx.now())
        if known is None or known.worker != message.worker:
            self.ctx.watch(message.worker)
        stream = self._state.streams[name]
        lost = tuple(sorted(ticket for ticket in stream.live() if ticket > message.received))
        revoked = TicketsRevoked(instance=name, incarnation=incarnation, tickets=lost)
        taken_back = self._apply(revoked)
        await self._commit(joined, revoked)
        # The balancer gets the load as it is now; what led to it must not be reported a second time.
        self._load = [change for change in self._load if change.instance != name]
        await self.ctx.tell(BALANCER, instance.down())
        await self.ctx.tell(BALANCER, instance.up(*stream.load()))
        await self._act(changes)
        self._dirty.set()
        if taken_back.queued:
            self.ctx.log.info("%s never got %d dispatches: they go elsewhere", name, len(lost))
        local = self._receiver.local
        return Registered(
            manager=self.ctx.address,
            epoch=epoch,
            stream_endpoint=local.endpoint,
            stream_key=local.public_key,
            weights=self._newest_weights() if message.kind == "preemptible" else None,
        )

    @handles(Serving)
    async def serving(self, message: Serving) -> None:
        instance = self._instances.get(message.instance)
        if instance is None or instance.incarnation != message.incarnation:
            raise Refused(f"{message.instance}#{message.incarnation} is not registered")
        if instance.leaving:
            return
        instance.version = message.version
        await self.ctx.tell(BALANCER, instance.serves(message.version, message.root))
        self._tick_clocks()
        self._dirty.set()

    @handles(Withdraw, lane=Lane.SYSTEM)
    async def withdraw(self, message: Withdraw) -> Deferred | Withdrawn:
        """The instance gets nothing more; what it still has after the grace is taken back, token by token."""
        instance = self._instances.get(message.instance)
        if instance is None:
            stream = self._state.streams.get(message.instance)
            if stream is not None and stream.live():
                raise Refused(f"{message.instance} has not registered again yet: try again")
            return Withdrawn(handed_over=0)
        instance.version = None
        instance.leaving = message.leaves
        await self.ctx.tell(BALANCER, instance.serves(None))
        self._tick_clocks()
        deferred = Deferred()
        earlier = self._withdrawals.pop(message.instance, None)
        if earlier is not None:
            earlier[1].answer(Withdrawn(handed_over=earlier[0]))
        self._withdrawals[message.instance] = (0, deferred)
        self.ctx.background(self._hand_over(instance, message.grace_s), f"withdraw {message.instance}")
        return deferred

    async def _hand_over(self, instance: Instance, grace_s: float) -> None:
        """Abort what waits at once, what executes after the grace, and again until the stream says: ended."""
        deadline = self.ctx.now() + grace_s
        aborted: set[int] = set()
        while instance.name in self._withdrawals:
            stream = self._state.streams.alive(instance.name, instance.incarnation)
            live = stream.live() if stream is not None else {}
            late = self.ctx.now() >= deadline
            tickets = [number for number, ticket in live.items() if late or not ticket.started]
            aborted |= set(tickets)
            self._withdrawals[instance.name] = (len(aborted), self._withdrawals[instance.name][1])
            if tickets:
                await self.ctx.tell(instance.worker, Abort(tickets=tickets))
            self._settle_withdrawals()
            self._ended.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), ABORT_AGAIN_S)

    def _settle_withdrawals(self) -> None:
        for name, (handed_over, deferred) in list(self._withdrawals.items()):
            stream = self._state.streams.get(name)
            if stream is None or stream.gone or not stream.live():
                del self._withdrawals[name]
                deferred.answer(Withdrawn(handed_over=handed_over))

    async def on_terminated(self, event: Terminated) -> None:
        """It gets nothing more at once. Its last frames may still be on their way, on a socket of their own:
        they are collected before its requests go elsewhere."""
        instance = self._instances.remove(event.name, event.incarnation)
        if instance is not None:
            await self.ctx.tell(BALANCER, instance.down())
            self._tick_clocks()
            self.ctx.background(self._lose_when_quiet(event), f"end of {event.name}")

    async def _lose_when_quiet(self, event: Terminated) -> None:
        stream = self._state.streams.alive(event.name, event.incarnation)
        for _ in range(QUIET_LOOKS):
            seen = stream.last_seq if stream is not None else 0
            await asyncio.sleep(QUIET_S)
            if stream is None or stream.last_seq == seen:
                break
        if event.name not in self._instances:  # otherwise it is back already
            await self._lose(event.name, event.incarnation, event.cause)

    async def _lose(self, name: str, incarnation: int, cause: str) -> None:
        instance = self._instances.remove(name, incarnation)
        if instance is not None:
            await self.ctx.tell(BALANCER, instance.down())
        if self._state.streams.alive(name, incarnation) is not None:
            self.ctx.log.info("instance %s#%d is gone: %s", name, incarnation, cause)
            await self._commit_and_act(InstanceGone(instance=name, incarnation=incarnation, cause=cause))
        self._tick_clocks()
        self._settle_withdrawals()

    @handles(CannotTake)
    async def cannot_take(self, message: CannotTake) -> None:
        self.ctx.log.warning("%s cannot take %d: %s", message.instance, len(message.tickets), message.why)
        await self._commit_and_act(
            TicketsRevoked(
                instance=message.instance, incarnation=message.incarnation, tickets=tuple(message.tickets)
            )
        )

    @handles(_Sweep)
    async def sweep(self, message: _Sweep) -> None:
        """Give up instances that hold work in silence, and those of the journal that never came back."""
        now = self.ctx.now()
        for name, stream in list(self._state.streams.items()):
            if stream.gone:
                continue
            instance = self._instances.get(name)
            if instance is None:
                if now > self._registered_by:
                    await self._lose(
                        name, stream.incarnation, "did not come back after the manager's restart"
                    )
            elif stream.live() and now - instance.heard_s > self._config.rollout.deadline_s:
                silence = f"held {len(stream.live())} requests in silence for {now - instance.heard_s:.0f} s"
                await self._lose(name, stream.incarnation, silence)
        self._answer_takers()

    # -- the token stream --

    def _on_frame(self, frame: TokenFrame) -> None:
        """Called by the receiver, in order, once a frame. Journal first; acknowledge when it is committed."""
        event = FrameLogged(
            instance=frame.stream,
            incarnation=frame.incarnation,
            seq=frame.seq,
            tickets=frame.slots.tobytes(),
            tokens=frame.tokens.tobytes(),
            logprobs=frame.logprobs.tobytes(),
            flags=frame.flags.tobytes(),
        )
        self._instances.heard(frame.stream, self.ctx.now())
        changes = self._state.apply(event)
        committed = self.ctx.journal.append_soon(event)
        self.ctx.background(self._acknowledge(frame, committed, changes), "acknowledge")

    async def _acknowledge(self, frame: TokenFrame, committed: Awaitable[int], changes: Changes) -> None:
        await committed
        self._receiver.acknowledge(frame.stream, frame.incarnation, frame.seq)
        await self._act(changes)

    # -- dispatch --

    @handles(SubmitBatch)
    async def submit(self, message: SubmitBatch) -> Done:
        refusal = self._state.refusal(message.batch)
        if refusal is not None:
            raise Refused(refusal)
        name = message.batch.batch
        if name not in self._state.log.batches:
            self._weights[name] = message.weights
            self._clocks[name] = BatchClock(self.ctx.now())
            changes = self._apply(message.batch)
            await self._commit(message.batch, BatchWeights(batch=name, weights=message.weights))
            await self._act(changes)
        for instance in self._instances.preemptible():
            if instance.version != message.weights.version and not instance.leaving:
                await self.ctx.tell(instance.worker, ServeWeights(weights=message.weights))
        self._tick_clocks()
        return Done()

    async def _pump_loop(self) -> None:
        """Dispatch what waits, whenever something changed; the balancer says where."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._report_load()
            for name, weights in list(self._weights.items()):
                waiting = [log for log in self._state.log.queued(weights.version) if log.batch == name]
                if waiting:
                    await self._dispatch(waiting, weights)

    async def _dispatch(self, waiting: list[RequestLog], weights: Weights) -> None:
        try:
            placed = await self.ctx.ask(
                BALANCER,
                Place(version=weights.version, root=weights.root, count=len(waiting)),
                deadline_s=PLACE_DEADLINE_S,
                expect=Placed,
            )
        except AskFailed as problem:
            self.ctx.log.warning("no placement: %s", problem)
            self._dirty.set()
            await asyncio.sleep(0.1)
            return
        chosen: dict[str, list[RequestLog]] = {}
        for log, name in zip(waiting, placed.instances, strict=False):
            chosen.setdefault(name, []).append(log)
        for name, logs in chosen.items():
            instance = self._instances.get(name)
            if instance is not None:
                await self._send(instance, [log for log in logs if log.state == "queued"], weights)

    async def _send(self, instance: Instance, logs: list[RequestLog], weights: Weights) -> None:
        if self._state.streams.alive(instance.name, instance.incarnation) is None or not logs:
            return
        first = self._state.streams.next_ticket(instance.name, instance.incarnation)
        tickets = tuple(range(first, first + len(logs)))
        event = Dispatched(
            instance=instance.name,
            incarnation=instance.incarnation,
            version=weights.version,
            tickets=tickets,
            requests=tuple(log.id for log in logs),
        )
        work = [
            Work(
                ticket=ticket,
                prompt=log.prompt.tobytes(),
                prefix=log.tokens.tobytes(),
                seed=log.seed,
                max_new_tokens=log.max_new_tokens,
                temperature=log.temperature,
            )
            for ticket, log in zip(tickets, logs, strict=True)
        ]
        self._apply(event)
        if instance.kind == "preemptible":
            for log in logs:
                self._clocks[log.batch].dispatched(self.ctx.now())
        instance.heard_s = self.ctx.now()
        self._load.append(
            LoadChange(instance=instance.name, incarnation=instance.incarnation, dispatched=len(logs))
        )
        dispatch = Dispatch(epoch=instance.epoch, version=weights.version, work=work)
        committed = self.ctx.journal.append_soon(event)
        await self._report_load()
        instance.sending = [task for task in instance.sending if not task.done()]
        instance.sending.append(self.ctx.background(self._deliver(instance, committed, dispatch), "dispatch"))

    async def _deliver(self, instance: Instance, committed: Awaitable[int], dispatch: Dispatch) -> None:
        """One dispatch after the other to an instance; a slow one holds up nobody else."""
        async with instance.order:
            await committed
            try:
                await self.ctx.ask(instance.worker, dispatch, deadline_s=DISPATCH_DEADLINE_S, expect=Done)
            except (Refused, Unreachable) as problem:  # it registers again, or its end is told
                self.ctx.log.info("%s took no dispatch: %s", instance.name, problem)
            except AskFailed as problem:
                await self._lose(instance.name, instance.incarnation, f"took no dispatch: {problem}")

    async def _report_load(self) -> None:
        if self._load:
            changes, self._load = self._load, []
            await self.ctx.tell(BALANCER, LoadChanged(changes=changes))

    # -- scores --

    async def _score_loop(self) -> None:
        while True:
            request = await self._scoring.get()
            log = self._state.log.requests.get(request)
            if log is not None and log.score is None:
                await self._score(log)

    async def _score(self, log: RequestLog) -> None:
        """Ask until there is a verdict: the proxy turns every failure of a verifier into one."""
        prompt = self._state.log.batches[log.batch].submitted.prompts[log.group]
        ask = Score(request=log.id, split=prompt.split, index=prompt.index, tokens=log.tokens.tobytes())
        limits = self._config.reward
        pause_s = 0.05
        while log.id in self._state.log.requests:
            try:
                verdict = await self.ctx.ask(
                    REWARD,
                    ask,
                    deadline_s=limits.deadline_s * (limits.attempts + 1),
                    expect=Verdict,
                    key=f"score/{log.id}",
                )
            except AskFailed as problem:
                self.ctx.log.warning("score of %s: %s", log.id, problem)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 2.0)
                continue
            await self._commit_and_act(Scored(request=log.id, score=verdict.score, status=verdict.status))
            return

    # -- the trainer and the controller --

    @handles(TakeGroups)
    async def take(self, message: TakeGroups) -> Deferred:
        if message.batch not in self._state.log.batches:
            raise Refused(f"batch {message.batch} is not open")
        deferred = Deferred()
        self._takers = [entry for entry in self._takers if entry[1].batch != message.batch]
        self._takers.append((self.ctx.now() + message.wait_s, message, deferred))
        self.ctx.after(message.wait_s, _Sweep())
        self._answer_takers()
        return deferred

    def _answer_takers(self) -> None:
        waiting, self._takers = self._takers, []
        for until_s, message, deferred in waiting:
            batch = self._state.log.batches.get(message.batch)
            if deferred.answered:
                continue
            if batch is None:
                deferred.answer(Refused(f"batch {message.batch} is not open any more"))
                continue
            have = set(message.have)
            ready = [g for g in range(len(batch.groups)) if g not in have and batch.complete(g)]
            left = len(batch.groups) - len(have)
            if len(ready) >= min(message.min_groups, left) or self.ctx.now() >= until_s:
                self.ctx.background(self._hand_out(batch, message, ready, deferred), "hand out")
            else:
                self._takers.append((until_s, message, deferred))

    async def _hand_out(self, batch: Batch, ask: TakeGroups, ready: list[int], deferred: Deferred) -> None:
        if ready:
            event = GroupsTaken(batch=batch.name, taker=ask.taker, groups=tuple(ready))
            self._apply(event)
            await self._commit(event)
        deferred.answer(
            Groups(
                groups=[_group_out(batch, group) for group in ready],
                remaining=len(batch.groups) - len(ask.have) - len(ready),
                remote_serving=self._instances.serving("preemptible", batch.submitted.version),
            )
        )

    @handles(BatchReport)
    async def report(self, message: BatchReport) -> BatchTimes:
        clock = self._clocks.get(message.batch)
        batch = self._state.log.batches.get(message.batch)
        if clock is None or batch is None:
            raise Refused(f"batch {message.batch} is not open")
        serving = self._instances.serving("preemptible", batch.submitted.version)
        return clock.times(self.ctx.now(), serving)

    @handles(ReleaseBatch)
    async def release(self, message: ReleaseBatch) -> Done:
        batch = self._state.log.batches.get(message.batch)
        if batch is None:
            return Done()
        ledger = BatchLedger(
            batch=batch.name,
            version=batch.submitted.version,
            requests=tuple(
                RequestLedger(
                    request=log.id,
                    count=len(log.tokens),
                    crc=zlib.crc32(log.tokens.tobytes()),
                    spans=tuple(log.spans),
                    score=log.score if log.score is not None else 0.0,
                    status=log.status,
                )
                for log in batch.requests()
            ),
        )
        await self.ctx.stream("ledger").append(ledger)
        event = BatchReleased(batch=message.batch)
        changes = self._apply(event)
        self._weights.pop(message.batch, None)
        self._clocks.pop(message.batch, None)
        await self._commit(event)
        await self.ctx.journal.snapshot(
            ManagerSnapshot(rollout=self._state.snapshot(), weights=dict(self._weights))
        )
        await self._act(changes)
        return Done()

    @handles(RolloutStatus)
    async def status(self, message: RolloutStatus) -> RolloutFigures:
        loads = [stream.load() for stream in self._state.streams.values() if not stream.gone]
        counters = self._state.counters
        return RolloutFigures(
            queued=len(self._state.log.queued()),
            pending=sum(load[0] for load in loads),
            executing=sum(load[1] for load in loads),
            serving_reserved=self._instances.serving("reserved", None),
            serving_preemptible=self._instances.serving("preemptible", None),
            tokens_collected=counters.tokens_collected,
            tokens_lost=self._state.tokens_lost,
            tokens_generated_twice=counters.tokens_generated_twice,
            requests_migrated=counters.requests_migrated,
            refused=dict(self._state.refused),
        )

    def summary(self) -> dict[str, str | int | float]:
        counters = self._state.counters
        return {
            "batches": len(self._state.log.batches),
            "instances": len(self._instances),
            "tokens": counters.tokens_collected,
            "migrated": counters.requests_migrated,
        }

    # -- events --

    def _apply(self, event: Message) -> Changes:
        return self._state.apply(event)

    async def _commit(self, *events: Message) -> None:
        await self.ctx.journal.append(*events)

    async def _commit_and_act(self, event: Message) -> None:
        changes = self._apply(event)
        await self._commit(event)
        await self._act(changes)

    async def _act(self, changes: Changes) -> None:
        """What follows from a committed event."""
        for name, incarnation in changes.started:
            self._load.append(LoadChange(instance=name, incarnation=incarnation, started=1))
        for ended in changes.ended:
            self._load.append(
                LoadChange(
                    instance=ended.instance,
                    incarnation=ended.incarnation,
                    ended_executing=int(ended.was_executing),
                    ended_pending=int(not ended.was_executing),
                )
            )
        for request in changes.finished:
            log = self._state.log.requests.get(request)
            if log is not None:
                self._clocks[log.batch].finished(self.ctx.now())
                self._scoring.put_nowait(request)
        if changes.completed:
            self._answer_takers()
        if changes.ended or changes.queued or changes.started:
            self._dirty.set()
            self._ended.set()
            self._settle_withdrawals()

    def _newest_weights(self) -> Weights | None:
        return max(self._weights.values(), key=lambda weights: weights.version, default=None)

    def _tick_clocks(self) -> None:
        for name, clock in self._clocks.items():
            version = self._state.log.batches[name].submitted.version
            clock.serving(self.ctx.now(), self._instances.serving("preemptible", version))


def _group_out(batch: Batch, group: int) -> GroupOut:
    logs = batch.groups[group]
    return GroupOut(
        group=group,
        prompt=logs[0].prompt.tobytes(),
        samples=tuple(
            SampleOut(
                request=log.id,
                tokens=log.tokens.tobytes(),
                logprobs=log.logprobs.tobytes(),
                score=log.score if log.score is not None else 0.0,
                spans=tuple(log.spans),
            )
            for log in logs
        ),
    )
