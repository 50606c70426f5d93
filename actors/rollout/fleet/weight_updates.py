"""WeightUpdates: sends the newest weights to each preemptible instance, independently.

Owns the sends in progress, one per instance: an instance that does not take its message delays no other. When
it does, it gets the newest version, never an older one after that. A lost send costs only time: the answer to
a registration names the newest weights too."""

from gleaner.actors.protocol.instances import ServeWeights
from gleaner.actors.protocol.rollout import Weights
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.supervisor import Context


class WeightUpdates:
    """See the module."""

    def __init__(self, ctx: Context, journaled: JournaledState, instances: Instances) -> None:
        self._ctx, self._journaled, self._instances = ctx, journaled, instances
        self._under_way: set[str] = set()

    def tell(self) -> None:
        """Send the newest weights to every instance that serves others."""
        for instance in self._instances.preemptible():
            name = instance.name
            if name not in self._under_way and self._due(name, None) is not None:
                self._under_way.add(name)
                self._ctx.background(self._tell(name), f"weights for {name}")

    def _due(self, name: str, last_sent: Weights | None) -> Weights | None:
        """The weights to send to this instance now."""
        instance, newest = self._instances.get(name), self._journaled.newest_weights()
        if instance is None or newest is None or instance.leaving or newest == last_sent:
            return None
        serves = (instance.version, instance.root)
        return None if serves == (newest.version, newest.root) else newest

    async def _tell(self, name: str) -> None:
        last_sent: Weights | None = None
        try:
            while (weights := self._due(name, last_sent)) is not None:
                last_sent = weights
                await self._ctx.tell(self._instances[name].worker, ServeWeights(weights=weights))
        finally:
            self._under_way.discard(name)
