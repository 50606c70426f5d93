"""WeightTrials: load results of instances, and trials of weights before publication.

Owns the running trial: one instance alone receives the weights, and they are published when it serves them.
Weights that instances could not load (`failed_loads`) are marked so in the journal; an instance that tried
them receives the weights to serve instead.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gleaner.actors.names import CONTROLLER
from gleaner.actors.protocol.instances import NotLoaded, ServeNow, ServeWeights, Serving
from gleaner.actors.protocol.rollout import NotPublished, Weights, WeightsFailed
from gleaner.actors.protocol.weights import DropVersion
from gleaner.actors.rollout.fleet.failed_loads import FailedLoads, Key
from gleaner.actors.rollout.fleet.instance_table import Instance, Instances
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.supervisor import Context, Deadline, Deferred, Done, Refused

TRIAL_S = 600.0
"""Seconds for one instance to load; big checkpoints are read from slow disks."""
MAX_WHY = 1000
"""Characters of a reason that are kept."""


@dataclass(slots=True)
class _Trial:
    """Weights that `instance` is to load; the caller that waits for the result, and until when."""

    weights: Weights
    instance: str
    incarnation: int
    deferred: Deferred
    until: Deadline

    @property
    def key(self) -> Key:
        return self.weights.version, self.weights.root


class WeightTrials:
    """See the module.

    Args:
        publish: have all instances serve these weights. Raises Refused.
        tell: send the newest weights to the instances; they have changed.
    """

    def __init__(
        self,
        ctx: Context,
        journaled: JournaledState,
        instances: Instances,
        *,
        publish: Callable[[Weights], Awaitable[None]],
        tell: Callable[[], None],
    ) -> None:
        self._ctx, self._journaled, self._instances = ctx, journaled, instances
        self._publish, self._tell = publish, tell
        self._loads = FailedLoads()
        self._trial: _Trial | None = None

    def begin(self, weights: Weights) -> Deferred:
        """Have one instance try these weights; answered when they are published, or rejected. Raises
        Refused."""
        trial, deferred = self._trial, Deferred()
        if trial is not None:
            if trial.key != (weights.version, weights.root):
                raise Refused(f"version {trial.weights.version} is being loaded: publish one after the other")
            trial.deferred.answer(Refused(f"version {weights.version} was published again"))
            trial.deferred = deferred
            return deferred
        free = [one for one in self._instances.preemptible() if not one.idle]
        if not free:
            why = "no instance is there to load it"
            deferred.answer(NotPublished(version=weights.version, why=why, lost=True))
            return deferred
        streams = self._journaled.state.streams

        def burden(one: Instance) -> tuple[bool, int, str]:
            stream = streams.alive(one.name, one.incarnation)
            return one.version is None, stream.held if stream is not None else 0, one.name

        chosen = min(free, key=burden)
        until = Deadline.after(TRIAL_S, self._ctx.turn_time())
        self._trial = _Trial(weights, chosen.name, chosen.incarnation, deferred, until)
        self._say(chosen, weights)
        return deferred

    async def serving(self, instance: Instance, message: Serving) -> None:
        """An instance serves these weights: if they were on trial, publish them."""
        key, trial = (message.version, message.root), self._trial
        self._loads.served(key, instance.kind)
        if trial is None or (trial.instance, trial.key) != (instance.name, key):
            return
        self._trial = None
        try:
            await self._publish(trial.weights)
        except Refused as refusal:
            trial.deferred.answer(refusal)
            self._back(instance)
        else:
            trial.deferred.answer(Done())

    async def not_loaded(self, message: NotLoaded) -> ServeNow:
        """Record the failed load and return the weights to serve now. Raises Refused."""
        name, stream = message.instance, self._journaled.state.streams.get(message.instance)
        if stream is None or stream.incarnation != message.incarnation:
            raise Refused(f"{name}#{message.incarnation} is not registered")
        key, trial = (message.version, message.root), self._trial
        if trial is not None and (trial.instance, trial.key) == (name, key):
            self._end_trial(message.why[:MAX_WHY], lost=False)
        else:
            await self._count(message, key)
        return ServeNow(weights=self._due(message.kind, key))

    async def _count(self, message: NotLoaded, key: Key) -> None:
        version, root, kind = *key, message.kind
        why = message.why[:MAX_WHY]
        known = self._journaled.state.versions.known.get(version)
        if known is None or known.root != root:
            return  # it was given up already, or is lost
        self._loads.failed(key, message.instance, kind, died=message.died)
        present = sum(one.kind == kind and not one.leaving for one in self._instances.values())
        if not self._loads.given_up(key, kind, present):
            return
        await self._journaled.fail(version, root, why)
        for source in known.sources:
            if ":" not in source:  # an agent; engines of a gateway read folders by themselves
                await self._ctx.tell(source, DropVersion(version=version, root=root))
        newest = self._journaled.newest_weights()
        left = "there is no other" if newest is None else f"version {newest.version} is served instead"
        self._ctx.log.error(
            "version given up, instances cannot load it: version=%d; %s: %s", version, left, why
        )
        self._tell()
        await self.look()

    def _due(self, kind: str, key: Key) -> Weights | None:
        """The weights to serve for an instance that could not load those of `key`."""
        newest = self._journaled.newest_weights()
        if kind == "preemptible" or newest is None or (newest.version, newest.root) == key:
            return newest
        return None  # a trainer's own device gets the weights of its step, or none

    def gone(self, name: str, cause: str) -> None:
        """An instance ended, or registered again: the weights that it was trying are not published."""
        if self._trial is not None and self._trial.instance == name:
            self._end_trial(f"{name} was lost while it loaded them: {cause}", lost=True)

    async def look(self) -> None:
        """End a trial that takes too long. Notify a job whose trainer published failed weights, until the job
        ends or publishes others."""
        trial = self._trial
        if trial is not None and trial.until.passed(self._ctx.turn_time()):
            self._end_trial(f"{trial.instance} did not load them within {TRIAL_S:g} s", lost=True)
            if (instance := self._instances.get(trial.instance)) is not None:
                self._back(instance)
        state = self._journaled.state
        newest = state.versions.newest
        served = -1 if newest is None else newest.version
        failed = max(state.versions.failed.values(), key=lambda one: one.version, default=None)
        if failed is None or failed.version < served:
            return
        if any(batch.submitted.scored for batch in state.log.batches.values()):
            await self._ctx.tell(CONTROLLER, WeightsFailed(version=failed.version, why=failed.why))

    def _end_trial(self, why: str, *, lost: bool) -> None:
        trial, self._trial = self._trial, None
        assert trial is not None, "it is under way"
        version = trial.weights.version
        self._ctx.log.warning("version not published: version=%d: %s", version, why)
        trial.deferred.answer(NotPublished(version=version, why=why, lost=lost))

    def _back(self, instance: Instance) -> None:
        """Send the instance back to the published weights."""
        if (newest := self._journaled.newest_weights()) is not None:
            self._say(instance, newest)

    def _say(self, instance: Instance, weights: Weights) -> None:
        self._ctx.background(self._send(instance, weights), f"weights for {instance.name}")

    async def _send(self, instance: Instance, weights: Weights) -> None:
        await self._ctx.tell(instance.worker, ServeWeights(weights=weights))
