"""Instances: those registered with this incarnation of the manager.

Soft state: rebuilt from registrations. The balancer owns load, the token log owns tickets.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from gleaner.actors.protocol.balancer import (
    InstanceDown,
    InstanceServes,
    InstanceSuspected,
    InstanceUp,
)
from gleaner.actors.protocol.batches import BatchSubmitted
from gleaner.actors.protocol.device import Device
from gleaner.actors.protocol.instances import RegisterInstance, Serving
from gleaner.actors.rollout.dispatch.devices import carried
from gleaner.supervisor import Address


@dataclass(slots=True)
class Instance:
    """One registered incarnation. `version`: what it serves, with this root; None: it gets no requests.
    `leaving`: drained for good, as far as its host knows; `spared`: drained for now; `announcement`: version
    and root that it could serve meanwhile; `withdrawn`: the number of its own newest withdrawal. `heard_s`:
    time of its last frame or the commit of it, of its registration, or of the end of the last dispatch to it.
    """

    name: str
    kind: str
    slots: int
    worker: Address
    heard_s: float
    epoch: str
    version: int | None = None
    root: bytes = b""
    leaving: bool = False
    spared: bool = False
    announcement: tuple[int, bytes] | None = None
    withdrawn: int = 0
    engines: int = 1
    cache_tokens: int = 0
    weight_tokens: int = 0
    device: Device | None = None
    sending: list[asyncio.Task[None]] = field(default_factory=list)
    order: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def incarnation(self) -> int:
        """The incarnation of its worker."""
        return self.worker.incarnation

    @property
    def taking(self) -> bool:
        """Whether a dispatch to it waits for its commit, or for the instance to take it."""
        return any(not task.done() for task in self.sending)

    @property
    def idle(self) -> bool:
        """Whether it gets no new requests because its host leaves, or may leave."""
        return self.leaving or self.spared

    def up(self, pending: int, executing: int) -> InstanceUp:
        """For the balancer: it is registered."""
        return InstanceUp(
            instance=self.name,
            incarnation=self.incarnation,
            kind=self.kind,
            slots=self.slots,
            pending=pending,
            executing=executing,
            device=self.device,
            engines=self.engines,
        )

    def down(self) -> InstanceDown:
        """For the balancer: it is gone."""
        return InstanceDown(instance=self.name, incarnation=self.incarnation)

    def suspected(self, suspected: bool) -> InstanceSuspected:
        """For the balancer: it may be dead, or answers again."""
        return InstanceSuspected(instance=self.name, incarnation=self.incarnation, suspected=suspected)

    def serves(self, version: int | None, root: bytes = b"") -> InstanceServes:
        """For the balancer: it serves these weights."""
        return InstanceServes(instance=self.name, incarnation=self.incarnation, version=version, root=root)


class Instances(dict[str, Instance]):
    """Registered instances by name. `pulled`: see `RolloutFigures.weights_pulled`."""

    def __init__(self) -> None:
        super().__init__()
        self.pulled: Counter[str] = Counter()

    def serves(self, instance: Instance, message: Serving) -> None:
        """Set the weights that it serves from now on. A repeated report is not counted again."""
        pulled = message.pulled
        if pulled is not None and (instance.version, instance.root) != (message.version, message.root):
            way = "delta" if pulled.deltas else "whole"
            self.pulled += Counter({f"{way}_versions": 1, f"{way}_bytes": pulled.nbytes})
            self.pulled["image_bytes"] += pulled.image_bytes
        instance.version, instance.root = message.version, message.root
        instance.cache_tokens = message.cache_tokens or instance.cache_tokens
        instance.weight_tokens = message.weight_tokens or instance.weight_tokens

    def register(self, message: RegisterInstance, epoch: str, now_s: float) -> Instance:
        """Record a registration. Messages still being sent to an earlier one are void: they are cancelled."""
        known = self.get(message.instance)
        leaving = spared = False
        if known is not None:
            for task in known.sending:
                task.cancel()
            if known.worker == message.worker:
                leaving, spared = known.leaving, known.spared
        self[message.instance] = instance = Instance(
            message.instance,
            message.kind,
            message.slots,
            message.worker,
            now_s,
            epoch,
            leaving=leaving,
            spared=spared,
            engines=message.engines,
            cache_tokens=message.cache_tokens,
            device=message.device,
        )
        return instance

    def remove(self, name: str, incarnation: int) -> Instance | None:
        """Forget exactly this incarnation."""
        known = self.get(name)
        if known is None or known.incarnation != incarnation:
            return None
        return self.pop(name)

    def answered(self, name: str, now_s: float) -> None:
        """Record the time of a frame, or of its commit."""
        known = self.get(name)
        if known is not None:
            known.heard_s = now_s

    def preemptible(self) -> list[Instance]:
        """The instances that pull weights."""
        return [instance for instance in self.values() if instance.kind == "preemptible"]

    def present(self) -> int:
        """Preemptible instances that do not leave, whatever they serve at the moment."""
        return sum(not instance.leaving for instance in self.preemptible())

    def carried(self) -> int:
        """How many preemptible instances their devices run side by side; 0: no bound."""
        return carried(instance.device for instance in self.preemptible())

    def engines(self, kind: str) -> int:
        """Engines of all instances of `kind`."""
        return sum(instance.engines for instance in self.values() if instance.kind == kind)

    def serving(self, kind: str, batch: BatchSubmitted | None) -> int:
        """How many of `kind` serve a version that this batch admits (None: any version)."""
        return sum(
            instance.kind == kind
            and instance.version is not None
            and (batch is None or batch.admits(instance.version))
            for instance in self.values()
        )
