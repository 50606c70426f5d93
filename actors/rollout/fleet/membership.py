"""Membership: registered instances, what each serves, and when it is given up.

Owns the registrations and the ends of instances. A registration opens a stream under the instance's
incarnation, which fences the earlier ones. The manager gives up an instance in four cases: its process has
ended; it holds requests in silence for too long; it takes no dispatch; it does not re-register with a
restarted manager. Its requests then continue elsewhere from their last token.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gleaner.actors.names import BALANCER
from gleaner.actors.protocol.instances import (
    Abort,
    CannotTake,
    KeepRequests,
    NewWork,
    Registered,
    RegisterInstance,
    RequestsKept,
    ServeWeights,
    Serving,
    StillRegistered,
    Withdraw,
    Withdrawn,
)
from gleaner.actors.rollout.dispatch.dispatcher import Dispatcher
from gleaner.actors.rollout.dispatch.placement import InstanceKind
from gleaner.actors.rollout.dispatch.quarantine import Quarantine
from gleaner.actors.rollout.fleet.drain import Drains
from gleaner.actors.rollout.fleet.instance_table import Instance, Instances
from gleaner.actors.rollout.fleet.overdue import OverdueWork
from gleaner.actors.rollout.fleet.step_metrics import StepMetrics
from gleaner.actors.rollout.fleet.weight_trials import WeightTrials
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.effects import Effects
from gleaner.actors.rollout.state.events import InstanceGone, InstanceJoined, TicketsRenewed, TicketsRevoked
from gleaner.actors.rollout.state.ticket_renewal import may_renew
from gleaner.actors.rollout.state.tickets import Stream
from gleaner.configs.schema import Ablation, Rollout
from gleaner.configs.section_group import Sections
from gleaner.supervisor import Context, Deadline, Deferred, Refused, Suspected, Terminated
from gleaner.transport.wire import Peer

REREGISTER_S = 5.0  # after a restart: an instance of the journal that has not registered by then is gone
MAX_GRACE_S = 86_400.0  # no cloud gives notice of more than minutes
QUIET_S = 0.05  # a dead instance's stream is at its end when nothing arrived for this long
QUIET_LOOKS = 10


@dataclass(frozen=True, slots=True)
class MembershipSettings(Sections):
    """Sections `rollout` (silence after which an instance is given up) and `ablation`."""

    rollout: Rollout
    ablation: Ablation


@dataclass(frozen=True, slots=True)
class MembershipParts:
    """The parts of the manager that registrations and ends of instances concern."""

    dispatcher: Dispatcher
    weight_trials: WeightTrials
    step_metrics: StepMetrics
    drains: Drains
    overdue: OverdueWork
    quarantine: Quarantine


@dataclass(frozen=True, slots=True)
class MembershipEffects:
    """What follows from a change of the fleet.

    Args:
        committed: an event of the journal has these changes.
        serving: an instance serves other weights than before.
        deadly: these requests kill the engines that take them.
    """

    committed: Callable[[Effects], None]
    serving: Callable[[], None]
    deadly: Callable[[list[str]], Awaitable[None]]


class Membership:
    """See the module."""

    def __init__(
        self,
        ctx: Context,
        journaled: JournaledState,
        instances: Instances,
        settings: MembershipSettings,
        parts: MembershipParts,
        effects: MembershipEffects,
    ) -> None:
        self._ctx, self._journaled, self._instances, self._settings = ctx, journaled, instances, settings
        self._dispatcher, self._weight_trials, self._step_metrics = (
            parts.dispatcher,
            parts.weight_trials,
            parts.step_metrics,
        )
        self._drains, self._overdue, self._quarantine = parts.drains, parts.overdue, parts.quarantine
        self._act, self._on_serving = effects.committed, effects.serving
        self._on_deadly = effects.deadly
        self._asked: set[tuple[str, int]] = set()  # instances asked to drain: their death is expected
        self._state = journaled.state
        self._registrations = 0
        self._registered_by = Deadline.after(REREGISTER_S, ctx.turn_time())
        self._awaited = {name for name, stream in self._state.streams.items() if not stream.gone}

    async def register(self, message: RegisterInstance, stream_at: Peer) -> Registered:
        """Register a new or returning worker; it streams to `stream_at`. Tickets that never reached it are
        taken back. It gets no new ones until it reports what it serves, and by then it knows the epoch that
        its dispatches must bear. Raises Refused."""
        name, incarnation = message.instance, message.worker.incarnation
        if message.kind not in set(InstanceKind):
            raise Refused(f"{name}: kind is {message.kind!r}, expected one of {', '.join(InstanceKind)}")
        if message.slots < 1 or message.engines < 1 or message.cache_tokens < 0:
            raise Refused(
                f"{name}: {message.engines} engines, {message.slots} slots and {message.cache_tokens} tokens "
                "of cache: each has at least one, one and none"
            )
        known = self._instances.get(name)
        # An instance of the journal that registers again with a new manager changes nothing there: when
        # thousands of requests wait for the manager, its instances do not queue for a commit each.
        joined, deadly = Effects(), list[str]()
        if self._state.streams.alive(name, incarnation) is None:
            before = self._state.streams.get(name)
            if before is not None and not before.gone and before.incarnation < incarnation:
                deadly = self._died(name, before)  # it is back before its end was reported
            joined = await self._journaled.record(InstanceJoined(instance=name, incarnation=incarnation))
            if joined.refused:
                raise Refused(
                    f"{name}#{incarnation} was replaced or given up: start again under a new incarnation"
                )
        self._awaited.discard(name)
        self._weight_trials.gone(name, "it registered again")
        self._registrations += 1
        epoch = f"{self._ctx.incarnation}.{self._registrations}"
        instance = self._instances.register(message, epoch, self._ctx.turn_time())
        if known is None or known.worker != message.worker:
            self._ctx.watch(message.worker)
        stream = self._state.streams[name]
        lost = tuple(sorted(ticket for ticket in stream.live() if ticket > message.received))
        if lost:
            self._ctx.log.info("%s never got %d dispatches: they go elsewhere", name, len(lost))
            await self._journaled.record(TicketsRevoked(instance=name, incarnation=incarnation, tickets=lost))
        self._dispatcher.forget_load(name)
        await self._ctx.tell(BALANCER, instance.down())
        await self._ctx.tell(BALANCER, instance.up(*stream.load()))
        self._act(joined)
        await self._on_deadly(deadly)
        self._step_metrics.there()
        self._dispatcher.wake()
        pulls = message.kind == "preemptible" and not self._settings.ablation.synchronous_weights
        return Registered(
            manager=self._ctx.address,
            epoch=epoch,
            stream_endpoint=stream_at.endpoint,
            stream_key=stream_at.public_key,
            weights=self._journaled.newest_weights() if pulls else None,
        )

    def still_registered(self, message: StillRegistered) -> None:
        """Raises Refused if this registration does not count."""
        instance = self._instances.get(message.instance)
        if instance is None or (instance.incarnation, instance.epoch) != (message.incarnation, message.epoch):
            raise Refused(f"{message.instance}#{message.incarnation} is not registered: register again")

    async def serving(self, message: Serving) -> None:
        """Record which weights the instance serves from now on."""
        instance = self._instances.get(message.instance)
        if instance is None or instance.incarnation != message.incarnation:
            raise Refused(f"{message.instance}#{message.incarnation} is not registered")
        await self._weight_trials.serving(instance, message)
        if message.number < instance.withdrawn:
            return  # the withdrawal is newer: it came first, on the system lane
        if instance.idle:
            instance.announcement = message.version, message.root
            return
        self._instances.serves(instance, message)
        await self._ctx.tell(BALANCER, self._quarantine.report(instance))
        self._on_serving()
        self._step_metrics.serves(instance.name)
        self._step_metrics.there()
        self._dispatcher.wake()

    async def keep(self, message: KeepRequests) -> RequestsKept:
        """Select the tickets that the instance may continue under its newer weights. Raises Refused."""
        name, incarnation, version = message.instance, message.incarnation, message.version
        instance, known = self._instances.get(name), self._state.versions.known.get(version)
        if instance is None or instance.incarnation != incarnation or instance.idle:
            raise Refused(f"{name}#{incarnation} is not registered, or is draining")
        if known is None or known.root != message.root:
            raise Refused(f"version {version} of {name} is not one that was published")
        stream = self._state.streams.alive(name, incarnation)
        if stream is None:
            raise Refused(f"the stream of {name}#{incarnation} does not count any more")
        state = self._state
        if kept := may_renew(state.log, state.versions, stream, version, message.tickets):
            renewed = TicketsRenewed(
                instance=name, incarnation=incarnation, version=version, tickets=tuple(kept)
            )
            self._act(await self._journaled.record(renewed))
        return RequestsKept(tickets=kept)

    async def withdraw(self, message: Withdraw) -> Deferred | Withdrawn:
        """Drain the instance: it gets nothing more, and what it still holds after the grace is requeued with
        its tokens. Raises Refused."""
        if not message.grace_s >= 0:
            raise Refused(f"{message.instance}: grace_s is {message.grace_s}, expected a number from 0 up")
        instance = self._instances.get(message.instance)
        if instance is None:
            stream = self._state.streams.get(message.instance)
            if stream is not None and stream.held:
                raise Refused(f"{message.instance} has not registered again yet: try again")
            return Withdrawn(handed_over=0)
        if message.incarnation == instance.incarnation:
            instance.withdrawn = max(instance.withdrawn, message.number)
        # a drain for a weight update must not clear `leaving`
        instance.leaving = instance.leaving or message.leaves
        await self._nothing_new(instance)
        return self._drains.begin(instance, min(message.grace_s, MAX_GRACE_S))

    async def new_work(self, message: NewWork) -> None:
        """Stop or resume dispatching to the instance. On resume it serves again what it last reported, and
        receives newer weights as other instances do."""
        instance = self._instances.get(message.instance)
        if instance is not None and not message.allowed and instance.leaving:
            self._ctx.log.info("drain called off, the host may stay: instance=%s", instance.name)
            instance.leaving, instance.spared = False, True
            self._drains.call_off(instance.name)
            return
        if instance is None or message.allowed != instance.idle:
            return  # not registered, or no change
        if not message.allowed:
            self._ctx.log.info("no new requests, the host may go away: instance=%s", instance.name)
            instance.spared = True
            await self._nothing_new(instance)
            return
        self._ctx.log.info("serving again, the host stays: instance=%s", instance.name)
        instance.leaving = instance.spared = False
        self._asked.discard((instance.name, instance.incarnation))
        self._drains.call_off(instance.name)
        announcement, instance.announcement = instance.announcement, None
        if announcement is not None:
            instance.version, instance.root = announcement
            await self._ctx.tell(BALANCER, self._quarantine.report(instance))
        newest = self._journaled.newest_weights()
        if newest is not None and announcement != (newest.version, newest.root):
            await self._ctx.tell(instance.worker, ServeWeights(weights=newest))
        self._on_serving()
        self._step_metrics.there()
        self._dispatcher.wake()

    async def _nothing_new(self, instance: Instance) -> None:
        if instance.idle and instance.version is not None:
            instance.announcement = instance.version, instance.root
        instance.version = None
        self._asked.add((instance.name, instance.incarnation))
        await self._ctx.tell(BALANCER, instance.serves(None))
        self._step_metrics.there()
        self._dispatcher.wake()  # requests meant for it go elsewhere

    async def take_back(self) -> None:
        """Abort the tickets that instances hold; each row that confirms an abort arrives as an event of its
        own."""
        for name, stream in self._state.streams.items():
            instance = self._instances.get(name)
            tickets = sorted(stream.live())
            if tickets and instance is not None and instance.incarnation == stream.incarnation:
                await self._ctx.tell(instance.worker, Abort(tickets=tickets))

    async def suspected(self, event: Suspected) -> None:
        """The instance gets no new requests until it answers again; it keeps those that it has."""
        instance = self._instances.get(event.name)
        if instance is not None and instance.incarnation == event.incarnation:
            await self._ctx.tell(BALANCER, instance.suspected(event.suspected))
            self._dispatcher.wake()

    async def terminated(self, event: Terminated) -> None:
        """Stop dispatching to the instance at once. Its last frames may still be in transit, on a socket of
        their own: they are collected before its requests go elsewhere."""
        instance = self._instances.remove(event.name, event.incarnation)
        if instance is not None:
            await self._ctx.tell(BALANCER, instance.down())
            self._step_metrics.there()
            self._ctx.background(self._lose_when_quiet(event), f"end of {event.name}")

    async def _lose_when_quiet(self, event: Terminated) -> None:
        stream = self._state.streams.alive(event.name, event.incarnation)
        late_s = 2 * QUIET_S * QUIET_LOOKS
        async with self._ctx.wait("its last frames", on=event.name, deadline_s=late_s, go_on=True):
            for _ in range(QUIET_LOOKS):
                seen = stream.last_seq if stream is not None else 0
                await asyncio.sleep(QUIET_S)
                if stream is None or stream.last_seq == seen:
                    break
        if event.name not in self._instances:  # otherwise it is back already
            await self.lose(event.name, event.incarnation, event.cause)

    async def lose(self, name: str, incarnation: int, cause: str) -> None:
        """Give up an incarnation: it is fenced, and its requests go elsewhere."""
        instance = self._instances.remove(name, incarnation)
        if instance is not None:
            self._weight_trials.gone(name, cause)
            await self._ctx.tell(BALANCER, instance.down())
        deadly: list[str] = []
        if (stream := self._state.streams.alive(name, incarnation)) is not None:
            self._ctx.log.info("instance %s#%d is gone: %s", name, incarnation, cause)
            deadly = self._died(name, stream)
            anew = self._settings.ablation.recompute
            gone = InstanceGone(instance=name, incarnation=incarnation, cause=cause, anew=anew)
            self._act(await self._journaled.record(gone))
            self._step_metrics.left(name)
        self._step_metrics.there()
        self._dispatcher.wake()
        self._drains.look()
        await self._on_deadly(deadly)

    def _died(self, name: str, stream: Stream) -> list[str]:
        """Requests that surely killed the instance; none if it was asked to drain."""
        asked = (name, stream.incarnation) in self._asked
        self._asked.discard((name, stream.incarnation))
        return [] if asked else self._quarantine.died(name, stream)

    async def cannot_take(self, message: CannotTake) -> None:
        """Requeue the tickets that the worker did not take."""
        self._ctx.log.warning(
            "dispatches refused: instance=%s count=%d: %s",
            message.instance,
            len(message.tickets),
            message.why,
        )
        revoked = TicketsRevoked(
            instance=message.instance, incarnation=message.incarnation, tickets=tuple(message.tickets)
        )
        instance = self._instances.get(message.instance)
        if (
            instance is not None
            and instance.incarnation == message.incarnation
            and message.version is not None
            and instance.version is not None
            and instance.version < message.version
        ):  # it loaded newer weights since its last report, and will report them: until then it gets nothing
            instance.version = None
            await self._ctx.tell(BALANCER, instance.serves(None))
        self._act(await self._journaled.record(revoked))

    async def look_for_silence(self) -> None:
        """Give up instances that hold work in silence, and those of the journal that never registered
        again."""
        now = self._ctx.turn_time()
        for name, stream in list(self._state.streams.items()):
            if stream.gone:
                continue
            instance = self._instances.get(name)
            if instance is None:
                if name in self._awaited and self._registered_by.passed(now):
                    self._awaited.discard(name)
                    await self.lose(name, stream.incarnation, "did not come back")
                continue
            silent_s = self._overdue.silent_s(instance, now)
            if silent_s > self._settings.rollout.deadline_s and stream.held:
                self._overdue.silent(name, silent_s)
                silence = f"held {stream.held} requests in silence for {silent_s:.0f} s"
                await self.lose(name, stream.incarnation, silence)
