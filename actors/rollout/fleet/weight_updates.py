"""Flipping: sends the newest weights to each preemptible instance, independently.

Owns the sends in progress, one per instance: an instance that does not take its message delays no other. When
it does, it gets the newest version, never an older one after that. A lost send costs only time: the answer to
a registration names the newest weights too."""

from gleaner.actors.protocol.instances import ServeWeights
from gleaner.actors.protocol.rollout import Weights
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.journal.journaled_state import Books
from gleaner.supervisor import Context


class Flipping:
    """See the module."""

    def __init__(self, ctx: Context, books: Books, instances: Instances) -> None:
        self._ctx, self._books, self._instances = ctx, books, instances
        self._under_way: set[str] = set()

    def tell(self) -> None:
        """Send the newest weights to every instance that serves others."""
        for instance in self._instances.preemptible():
            name = instance.name
            if name not in self._under_way and self._due(name, None) is not None:
                self._under_way.add(name)
                self._ctx.background(self._tell(name), f"weights for {name}")

    def _due(self, name: str, told: Weights | None) -> Weights | None:
        """The weights to send to this instance now."""
        instance, newest = self._instances.get(name), self._books.newest_weights()
        if instance is None or newest is None or instance.leaving or newest == told:
            return None
        serves = (instance.version, instance.root)
        return None if serves == (newest.version, newest.root) else newest

    async def _tell(self, name: str) -> None:
        told: Weights | None = None
        try:
            while (weights := self._due(name, told)) is not None:
                told = weights
                await self._ctx.tell(self._instances[name].worker, ServeWeights(weights=weights))
        finally:
            self._under_way.discard(name)
