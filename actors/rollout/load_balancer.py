"""LoadBalancer: an actor around `balancer.Balancer`. Owns nothing durable; the manager feeds it again after
a restart."""

import msgspec

from actors.rollout.balancer import Balancer, InstanceKind
from supervisor import Actor, Message, handles


class InstanceUp(Message, frozen=True):
    """An incarnation of an instance may get requests once it serves; with the load that it has already."""

    instance: str
    incarnation: int
    kind: str
    slots: int
    pending: int
    executing: int


class InstanceDown(Message, frozen=True):
    """An incarnation died or left."""

    instance: str
    incarnation: int


class InstanceServes(Message, frozen=True):
    """Which weights an instance serves now; None: it gets nothing."""

    instance: str
    incarnation: int
    version: int | None
    root: bytes = b""


class InstanceSuspected(Message, frozen=True):
    """An incarnation may be dead, or is heard again."""

    instance: str
    incarnation: int
    suspected: bool


class LoadChange(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to requests of an instance since the last report."""

    instance: str
    incarnation: int
    dispatched: int = 0
    started: int = 0
    ended_executing: int = 0
    ended_pending: int = 0


class LoadChanged(Message, frozen=True):
    """Reports of the manager, in order."""

    changes: list[LoadChange]


class Place(Message, frozen=True):
    """Where should the next `count` requests go? `roots`: the versions that may make them, with their
    roots."""

    roots: dict[int, bytes]
    count: int


class Placed(Message, frozen=True):
    """One instance a request, in order; fewer than asked when every queue is at its threshold."""

    instances: list[str]


class ForgetAll(Message, frozen=True):
    """A new manager begins: what the old one said is void."""


class LoadBalancer(Actor):
    """Joins the shortest queue, with delayed dispatch at Θ = `max_pending`."""

    def __init__(self, max_pending: int) -> None:
        self._max_pending = max_pending
        self._balancer = Balancer(max_pending)

    @handles(ForgetAll)
    async def forget_all(self, message: ForgetAll) -> None:
        self._balancer = Balancer(self._max_pending)

    @handles(InstanceUp)
    async def up(self, message: InstanceUp) -> None:
        self._balancer.joined(
            message.instance,
            message.incarnation,
            InstanceKind(message.kind),
            message.slots,
            pending=message.pending,
            executing=message.executing,
        )

    @handles(InstanceDown)
    async def down(self, message: InstanceDown) -> None:
        self._balancer.gone(message.instance, message.incarnation)

    @handles(InstanceServes)
    async def serves(self, message: InstanceServes) -> None:
        self._balancer.serving(message.instance, message.incarnation, message.version, message.root)

    @handles(InstanceSuspected)
    async def suspected(self, message: InstanceSuspected) -> None:
        self._balancer.suspected(message.instance, message.incarnation, message.suspected)

    @handles(LoadChanged)
    async def changed(self, message: LoadChanged) -> None:
        for change in message.changes:
            instance, incarnation = change.instance, change.incarnation
            if change.dispatched:
                self._balancer.dispatched(instance, incarnation, change.dispatched)
            if change.started:
                self._balancer.started(instance, incarnation, change.started)
            for _ in range(change.ended_executing):
                self._balancer.ended(instance, incarnation, True)
            for _ in range(change.ended_pending):
                self._balancer.ended(instance, incarnation, False)

    @handles(Place)
    async def place(self, message: Place) -> Placed:
        return Placed(instances=self._balancer.select(message.roots, message.count))

    def summary(self) -> dict[str, str | int | float]:
        instances = self._balancer.instances.values()
        return {
            "instances": len(self._balancer.instances),
            "pending": sum(instance.pending for instance in instances),
            "executing": sum(instance.executing for instance in instances),
        }
