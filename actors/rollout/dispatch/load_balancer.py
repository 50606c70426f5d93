"""LoadBalancer: actor around `placement`, `rebalancer` and their profile tables.

Owns nothing durable: the manager reports the load again after a restart, and engines send measurements again
as they go on decoding.
"""

import numpy as np

from gleaner.actors.protocol.balancer import (
    EngineMeasured,
    ForgetAll,
    Holding,
    InstanceDown,
    InstanceHalved,
    InstanceServes,
    InstanceSuspected,
    InstanceUp,
    LoadChanged,
    MoveOrder,
    Moves,
    Place,
    Placed,
    Rebalance,
)
from gleaner.actors.protocol.device import Device
from gleaner.actors.protocol.throughput import Paces, PacesAre
from gleaner.actors.rollout.dispatch import published_balancing
from gleaner.actors.rollout.dispatch.devices import crowds
from gleaner.actors.rollout.dispatch.placement import Balancer, Instance, InstanceKind
from gleaner.actors.rollout.dispatch.rebalancer import Load, Requests, decide
from gleaner.actors.rollout.dispatch.retracted_counts import RetractedCounts
from gleaner.actors.rollout.dispatch.throughput_table import Profiles, instance_pace, plausible
from gleaner.supervisor import Actor, Refused, handles

SPEEDS_S = 1.0
"""Seconds between two comparisons of the instances' speeds; each one looks at all instances."""


class LoadBalancer(Actor):
    """Joins the shortest queue, with delayed dispatch at Θ = `max_pending`; decides on request which requests
    to move. `published`: both by the paper's Algorithm 2 as printed."""

    def __init__(self, max_pending: int, *, published: bool = False) -> None:
        self._max_pending, self._published = max_pending, published
        self._balancer = Balancer(max_pending)
        self._profiles = Profiles()
        self._retracted = RetractedCounts()
        self._compared_s = 0.0
        self._moves = 0

    @handles(ForgetAll)
    async def forget_all(self, message: ForgetAll) -> None:
        self._balancer = Balancer(self._max_pending)

    @handles(InstanceUp)
    async def up(self, message: InstanceUp) -> None:
        if message.kind not in set(InstanceKind) or message.slots < 1:
            raise Refused(f"{message.instance}: {message.slots} slots of kind {message.kind!r} are none")
        if message.pending < 0 or message.executing < 0:
            raise Refused(f"{message.instance}: {message.pending} pending, {message.executing} executing")
        self._balancer.joined(
            message.instance,
            message.incarnation,
            InstanceKind(message.kind),
            message.slots,
            pending=message.pending,
            executing=message.executing,
            device=message.device,
            engines=message.engines,
        )

    @handles(InstanceDown)
    async def down(self, message: InstanceDown) -> None:
        if self._balancer.gone(message.instance, message.incarnation):
            self._profiles.forget(message.instance)
            self._retracted.forget(message.instance)

    @handles(InstanceServes)
    async def serves(self, message: InstanceServes) -> None:
        self._balancer.serving(message.instance, message.incarnation, message.version, message.root)

    @handles(InstanceSuspected)
    async def suspected(self, message: InstanceSuspected) -> None:
        self._balancer.suspected(message.instance, message.incarnation, message.suspected)

    @handles(InstanceHalved)
    async def halved(self, message: InstanceHalved) -> None:
        self._balancer.halved(message.instance, message.incarnation, message.half)

    @handles(LoadChanged)
    async def changed(self, message: LoadChanged) -> None:
        for change in message.changes:
            instance, incarnation = change.instance, change.incarnation
            if change.dispatched:
                self._balancer.dispatched(instance, incarnation, change.dispatched)
            if change.started:
                self._balancer.started(instance, incarnation, change.started)
            if change.ended_executing:
                self._balancer.ended(instance, incarnation, True, change.ended_executing)
            if change.ended_pending:
                self._balancer.ended(instance, incarnation, False, change.ended_pending)

    @handles(Place)
    async def place(self, message: Place) -> Placed:
        if message.count == 1 and self._balancer.has_room(message.preferred, message.roots):
            return Placed(instances=[message.preferred])
        placed = [self._still(name, message) for name in message.moved]
        count = message.count - sum(map(bool, placed))
        others = iter(self._select(message.roots, count))
        return Placed(instances=[*(name or next(others, "") for name in placed), *others])

    def _select(self, roots: dict[int, bytes], count: int) -> list[str]:
        if self._published:
            known = self._balancer.instances.values()
            return published_balancing.select(known, roots, count, self._max_pending)
        return self._balancer.select(roots, count)

    def _still(self, name: str, place: Place) -> str:
        """An instance that a request is being moved to, if it may take it; otherwise ""."""
        known = self._balancer.instances.get(name)
        return name if known is not None and known.serves(place.roots) else ""

    # -- how fast they are, and what should move --

    @handles(EngineMeasured)
    async def measured(self, message: EngineMeasured) -> None:
        instance = self._balancer.instances.get(message.instance)
        if instance is None or instance.incarnation != message.incarnation:
            return
        if not all(map(plausible, message.sums)) or message.retracted < 0:
            raise Refused(f"{message.instance} measured what no engine does: {message.sums}")
        if not instance.half:  # plans and moves go by whole instances
            self._profiles.add(instance.id, _hardware(instance), message.sums)
        self._retracted.add(instance.id, instance.incarnation, str(instance.kind), message.retracted)
        now = self.ctx.now()
        if now - self._compared_s >= SPEEDS_S:
            self._compared_s = now
            self._balancer.speeds(self._tokens_s())

    @handles(Paces)
    async def paces(self, message: Paces) -> PacesAre:
        known = {kind.value: self._profiles.of_kind(str(kind)) for kind in InstanceKind}
        return PacesAre(
            instances={kind: instance_pace(model) for kind, model in known.items() if model is not None},
            retracted=dict(self._retracted.by_kind),
        )

    @handles(Rebalance)
    async def rebalance(self, message: Rebalance) -> Moves:
        instances = self._balancer.instances
        held = [
            (instance, holding)
            for holding in message.holdings
            if (instance := instances.get(holding.instance)) is not None
            and instance.incarnation == holding.incarnation
        ]
        decoding = {instance.id: instance.device for instance, holding in held if holding.movable}
        loads = [self._load(instance, holding, message.gates, decoding) for instance, holding in held]
        moves = [
            MoveOrder(
                source=move.source,
                source_incarnation=instances[move.source].incarnation,
                target=move.target,
                target_incarnation=instances[move.target].incarnation,
                tickets=move.tickets,
                executing=move.executing,
            )
            for move in (published_balancing.decide(loads) if self._published else decide(loads))
        ]
        self._moves += sum(len(move.tickets) for move in moves)
        return Moves(moves=moves)

    def _load(
        self,
        instance: Instance,
        holding: Holding,
        gates: list[dict[int, bytes]],
        decoding: dict[str, Device | None],
    ) -> Load:
        """`decoding`: instances that have requests, and their devices. Raises Refused if the columns do not
        form one table."""
        count = len(holding.movable)
        wide = holding.tickets, holding.context, holding.expected, holding.gate
        if len(holding.executing) != count or any(len(column) != 8 * count for column in wide):
            raise Refused(f"{holding.instance}: the columns of its requests differ in length")
        held = Requests(
            tickets=np.frombuffer(holding.tickets, np.int64),
            context=np.frombuffer(holding.context, np.float64),
            expected=np.frombuffer(holding.expected, np.float64),
            gate=np.frombuffer(holding.gate, np.int64),
            movable=np.frombuffer(holding.movable, np.bool_),
        )
        executing = np.frombuffer(holding.executing, np.bool_)
        return Load(
            id=instance.id,
            slots=instance.slots,
            gates=frozenset(number for number, roots in enumerate(gates) if instance.serves(roots)),
            pending=held.only(~executing),
            executing=held.only(executing),
            speed=instance.pace,
            model=None if instance.half else self._profiles.model(instance.id, _hardware(instance)),
            stays=instance.kind is InstanceKind.PREEMPTIBLE,
            busy=holding.busy or instance.suspected,
            device="" if instance.device is None else instance.device.name,
            crowded=crowds(decoding | {instance.id: instance.device}, instance.device),
        )

    def _tokens_s(self) -> dict[str, float]:
        """Tokens a second of the instances whose speed is known, at the current context of the requests."""
        context = self._profiles.mean_context()
        speeds: dict[str, float] = {}
        for instance in self._balancer.instances.values():
            model = self._profiles.model(instance.id, _hardware(instance))
            if model is not None:
                speeds[instance.id] = model.speed(context, instance.slots)
        return speeds

    def summary(self) -> dict[str, str | int | float]:
        instances = self._balancer.instances.values()
        return {
            "instances": len(self._balancer.instances),
            "pending": sum(instance.pending for instance in instances),
            "executing": sum(instance.executing for instance in instances),
            "moves_decided": self._moves,
            **self._measures(),
        }

    def _measures(self) -> dict[str, int | float]:
        """Measurements for the summary: the plateau B and the tokens a second there, over instances."""
        context = self._profiles.mean_context()
        known = [
            (model.plateau(context, instance.slots), model.speed(context, instance.slots))
            for instance in self._balancer.instances.values()
            if (model := self._profiles.model(instance.id, _hardware(instance))) is not None
        ]
        if not known:
            return {"profiled": 0}
        return {
            "profiled": len(known),
            "plateau_least": min(plateau for plateau, _ in known),
            "plateau_most": max(plateau for plateau, _ in known),
            "tokens_s_least": round(min(speed for _, speed in known), 1),
            "tokens_s_most": round(max(speed for _, speed in known), 1),
        }


def _hardware(instance: Instance) -> str:
    """The key of the table that an instance may share: nothing else is known of its hardware. Instances of
    another width have another number of engines."""
    return f"{instance.kind}/{instance.slots}/{instance.engines}"
