"""StagePools: the reward workers of one host, a pool of processes for each stage.

Where a service scores for the job, its only stage has calls of the service for workers. Owns the pools and
the host's blobs. An item whose blob is on another host waits until that is here. Both ends
of an item use it: the proxy for its own host, `RewardHost` for any other.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from gleaner.actors.reward import pipe
from gleaner.actors.reward.assignment.hosts import MOST_AHEAD
from gleaner.actors.reward.blobs import BlobFolder, Blobs
from gleaner.actors.reward.carried import BadCarried, unpacked
from gleaner.actors.reward.pool import PoolLimits, Wait, WorkerPool, pool_limits
from gleaner.actors.reward.scoring import StartWorker, WorkerSpec
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.service_pool import READ_S, MakeService, ServicePool
from gleaner.actors.reward.stages import Pipelines
from gleaner.actors.reward.verdicts import BLOB_LOST, OVERLOADED, VERIFIER_FAILED
from gleaner.configs.schema import Reward
from gleaner.supervisor import Context, Overloaded

Fetch = Callable[[str], Awaitable[bytes | None]]
"""The bytes of a blob, by its digest; None where they cannot be had."""
MakeBlobs = Callable[[], Blobs]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostParts:
    """What the pools of a host are made with, beside their processes.

    make_blobs: the blobs of this host, where items have several stages. make_service: the service that scores
    for the job; None: the workers score.
    """

    make_blobs: MakeBlobs = BlobFolder
    make_service: MakeService | None = None


OWN_PARTS = HostParts()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLimits:
    """Limits of the pools of one host.

    workers: of each stage, one at least. pool: of each pool, whatever its number of workers. limits_s: of a
    worker for one item, by stage. verdict_s: of one verdict, with everything that may happen to workers;
    later ones are reported. staged: whether items pass several stages, on this host or elsewhere. read_s: of
    the worker that makes a text, where a service scores; calls: of it at a time, at most.
    """

    workers: Mapping[str, int]
    pool: PoolLimits
    verdict_s: float
    limits_s: Mapping[str, float] = field(default_factory=dict)
    staged: bool = False
    read_s: float = READ_S
    calls: int = 1

    @staticmethod
    def of(reward: Reward, pipelines: Pipelines, workers: Mapping[str, int]) -> "StageLimits":
        """Those of the settings."""
        return StageLimits(
            workers=workers,
            pool=pool_limits(reward),
            verdict_s=reward.verdict_s,
            limits_s={name: pipelines.limit_s(name) for name in pipelines.names},
            staged=reward.stages.separate,
            read_s=min(reward.problem_s, READ_S),
            calls=reward.share.max_calls,
        )


class StagePools:
    """See the module.

    Args:
        limits: of the pools.
        spec: of a worker; with several stages each gets its own, and the folder of the blobs.
        start_worker: starts a process that scores.
        parts: what else they are made with.
    """

    def __init__(
        self,
        limits: StageLimits,
        spec: WorkerSpec,
        start_worker: StartWorker,
        parts: HostParts = OWN_PARTS,
    ) -> None:
        self.most_ahead = 1 if parts.make_service is not None else MOST_AHEAD
        self.staged, self.served = limits.staged, parts.make_service is not None
        self.most = dict.fromkeys(limits.workers, limits.calls) if self.served else dict(limits.workers)
        self._verdict_s = limits.verdict_s
        self.blobs = parts.make_blobs() if limits.staged else None
        self._processes = {
            stage: WorkerPool(
                self._spec(spec, stage),
                start_worker,
                _own_limits(limits, stage, served=parts.make_service is not None),
            )
            for stage in limits.workers
        }
        self.pools: Mapping[str, WorkerPool | ServicePool] = self._processes
        if (make := parts.make_service) is not None:
            self.pools = {
                stage: ServicePool(pool, make(self.most[stage]), self.most[stage])
                for stage, pool in self._processes.items()
            }

    def _spec(self, spec: WorkerSpec, stage: str) -> WorkerSpec:
        if not self.staged:
            return spec
        assert self.blobs is not None
        folder = str(self.blobs.directory)
        return replace(spec, config={**(spec.config or {}), "stage": stage, "blobs": folder})

    @property
    def first(self) -> WorkerPool:
        """The processes that give problems and run programs of clients: any can."""
        return next(iter(self._processes.values()))

    @property
    def calls(self) -> int:
        """Calls under way at the service that scores for the job."""
        return sum(service.calls for service in self._services)

    @property
    def _services(self) -> list[ServicePool]:
        """The pools whose items a service scores."""
        return [pool for pool in self.pools.values() if isinstance(pool, ServicePool)]

    @property
    def alive(self) -> int:
        """Workers that have loaded their scorer."""
        return sum(pool.alive for pool in self.pools.values())

    @property
    def deaths(self) -> Counter[str]:
        """Workers that ended, by cause."""
        return sum((pool.deaths for pool in self.pools.values()), Counter[str]())

    @property
    def cancelled(self) -> int:
        """Workers that were killed because their items were cancelled."""
        return sum(pool.cancelled for pool in self._processes.values())

    def start(self, wait: Wait) -> None:
        """Start the workers."""
        for pool in self.pools.values():
            pool.start(wait)

    async def close(self) -> None:
        """End the workers, and remove the blobs."""
        for pool in self.pools.values():
            await pool.close()
        if self.blobs is not None:
            self.blobs.close()

    def resize(self, stage: str, workers: int) -> None:
        """Have so many workers of a stage, at most those that it began with."""
        if (pool := self.pools.get(stage)) is not None:
            pool.resize(min(workers, self.most[stage]))

    def opened(self, batch: str, items: int, kind: str = "") -> None:
        """A batch begins, of about so many responses: a service that scores for the job gets a hint. kind: of
        its round."""
        for service in self._services:
            service.opened(batch, items, kind)

    def ended(self, batch: str) -> None:
        """No verdict of a batch is needed any more: neither are those of such a service."""
        for service in self._services:
            service.ended(batch)

    async def verdict(
        self, ctx: Context, stage: str, work: bytes, carried: bytes, fetch: Fetch, batch: str = ""
    ) -> tuple[Verdict, float]:
        """One stage of an item, and the seconds that a worker took for it. work: packed; carried: see
        `gleaner.actors.reward.carried`; batch: of the item, for a service that scores. Raises PoolFailed."""
        pool = self.pools.get(stage)
        if pool is None:
            return Verdict(None, VERIFIER_FAILED, f"there is no worker of stage {stage!r:.40} here"), 0.0
        try:
            item = pipe.item(work[pipe.PREFIX.size :])
        except pipe.BadFrame as problem:
            return Verdict(None, VERIFIER_FAILED, str(problem)), 0.0
        if not isinstance(item, pipe.Scorable):
            return Verdict(None, VERIFIER_FAILED, f"{type(item).__name__} is nothing to score"), 0.0
        if self.staged and (missing := await self._missing(carried, fetch)) is not None:
            return missing, 0.0
        whole = pipe.StageItem(stage, item, carried) if self.staged else item
        late_s = self._verdict_s * (1 + pool.queued // pool.workers)
        try:
            async with ctx.wait("a verdict", on=stage, deadline_s=late_s, go_on=True):
                if isinstance(pool, ServicePool):
                    return await pool.scored(whole, batch)
                return await pool.scored(whole)
        except Overloaded as full:  # its queue is longer than any credit: a defect, and no verdict
            return Verdict(None, OVERLOADED, str(full)), 0.0

    async def _missing(self, carried: bytes, fetch: Fetch) -> Verdict | None:
        """Have the blob that an item needs; why that cannot be, if it cannot."""
        if not carried or self.blobs is None:
            return None
        try:
            digest = unpacked(carried).blob
        except BadCarried as problem:
            return Verdict(None, VERIFIER_FAILED, str(problem))
        if not digest or self.blobs.has(digest):
            return None
        content = await fetch(digest)
        try:
            if content is None or self.blobs.put(content) != digest:
                return Verdict(None, BLOB_LOST, f"blob {digest} could not be fetched")
        except OSError as problem:
            return Verdict(None, OVERLOADED, f"no room for blob {digest}: {problem}")
        return None


def _own_limits(limits: StageLimits, stage: str, *, served: bool) -> PoolLimits:
    """Those of the processes of a stage. served: a service scores, and one process makes its texts."""
    deadline_s = limits.limits_s.get(stage, limits.pool.deadline_s)
    if served:
        return replace(limits.pool, workers=1, deadline_s=min(deadline_s, limits.read_s))
    return replace(limits.pool, workers=limits.workers[stage], deadline_s=deadline_s)
