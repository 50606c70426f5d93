"""BatchSubmission: open batches under their weights, and publish versions.

Owns the checks before a batch is open, and the effects of a new version of the weights. `JournaledState` owns
the open batches and their weights.
"""

from collections.abc import Callable, Sequence

from gleaner.actors.protocol.batches import BatchSubmitted
from gleaner.actors.protocol.rollout import SubmitBatch, Weights
from gleaner.actors.rollout.fleet.step_metrics import StepMetrics
from gleaner.actors.rollout.fleet.weight_updates import WeightUpdates
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.admission import TokenLimits, unfit
from gleaner.actors.rollout.state.effects import Effects
from gleaner.supervisor import Context, Refused, Suspended


class BatchSubmission:
    """See the module.

    Args:
        limits: of the prompts and responses of a batch.
        act: acts on a committed event.
    """

    def __init__(
        self,
        ctx: Context,
        journaled: JournaledState,
        *,
        weight_updates: WeightUpdates,
        step_metrics: StepMetrics,
        limits: TokenLimits,
        act: Callable[[Effects], None],
    ) -> None:
        self._ctx, self._journaled, self._weight_updates, self._step_metrics = (
            ctx,
            journaled,
            weight_updates,
            step_metrics,
        )
        self._limits, self._act = limits, act
        self._state = journaled.state

    async def submit(self, message: SubmitBatch) -> None:
        """Publish the weights of a batch and open it. Idempotent. Raises Refused or Suspended."""
        refusal = self._state.refusal(message.batch)
        if refusal is not None:
            raise Refused(refusal)
        name = message.batch.batch
        longest = self._limits.prompt
        if message.batch.experts:  # its prompt may hold a response, whose experts are computed again
            longest += self._limits.response
        if fault := unfit(message.batch.prompts, longest):
            raise Refused(f"batch {name}: a prompt {fault}")
        if message.batch.max_new_tokens > self._limits.response:
            raise Refused(
                f"batch {name}: max_new_tokens is {message.batch.max_new_tokens}, "
                f"rollout.max_new_tokens is {self._limits.response}"
            )
        opened = self._journaled.weights.get(name)
        if message.batch.min_version is None and opened is not None and opened.root != message.weights.root:
            # no instance will serve those again
            raise Refused(_lost_weights(f"batch {name}", opened.version))
        await self._note(message.weights)
        await self.open(message.batch, message.weights)
        self._weight_updates.tell()
        self._step_metrics.there()

    def known(self, weights: Weights) -> bool:
        """Whether this version is known already. Raises Refused if it cannot be published."""
        self._require_ascending(weights)
        known = self._state.versions.known.get(weights.version)
        return known is not None and known.root == weights.root

    def _require_ascending(self, weights: Weights) -> None:
        versions, version, root = self._state.versions, weights.version, weights.root
        if fault := versions.failure(version, root) or versions.does_not_ascend(version, root):
            raise Refused(fault)

    async def publish(self, weights: Weights, *, ascending: bool = False) -> None:
        """Publish a newer version; `ascending`: it must be newer. Raises Refused."""
        if ascending:
            versions = self._state.versions
            self._require_ascending(weights)
            if versions.newest is not None and versions.newest.version > weights.version:
                return  # a repeated message, after newer versions
        await self._note(weights)
        self._weight_updates.tell()
        self._step_metrics.there()

    async def open(self, batch: BatchSubmitted, weights: Weights) -> None:
        """Open a batch that is not open yet. Raises Refused or Suspended."""
        if batch.batch not in self._state.log.batches:
            if refusal := self._state.refusal(batch):
                raise Refused(refusal)
            if full := self._ctx.journal.refuses():
                raise Suspended(f"no new batches: {full}")
            self._step_metrics.opened(batch.batch)
            self._act(await self._journaled.submit(batch, weights))

    async def close(self, names: Sequence[str]) -> None:
        """Release those of these batches that are open."""
        open = self._state.log.batches
        batches = [open[name] for name in names if name in open]
        if not batches:
            return
        changes = await self._journaled.release(*batches)
        for batch, changed in zip(batches, changes, strict=True):
            self._step_metrics.released(batch.name)
            self._act(changed)

    async def _note(self, weights: Weights) -> None:
        """Record the newest weights. The same version with another root is a different one: no instance will
        ever continue what was started under the lost one."""
        if fault := self._state.versions.failure(weights.version, weights.root):
            raise Refused(fault)
        if self._state.begun_under_others(weights.version, weights.root):
            raise Refused(_lost_weights("an open batch", weights.version))
        await self._journaled.publish(weights)


def _lost_weights(what: str, version: int) -> str:
    return (
        f"{what} was begun under other weights of version {version} than there are now: the state that made "
        "them is lost; begin another run from the last checkpoint (model.path)"
    )
