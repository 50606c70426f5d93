"""LocalWorkers: the reward workers of the proxy's own host, as `HostLink`."""

from collections.abc import Callable, Sequence

from gleaner.actors.reward import pipe
from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.item_dispatch import ItemDispatch
from gleaner.actors.reward.pool import PoolFailed, WorkerPool
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.verdicts import OVERLOADED
from gleaner.supervisor import Context, Overloaded


class LocalWorkers:
    """See the module.

    Args:
        name: of the host.
        pool: its workers.
        verdict_s: deadline of one verdict, with everything that may happen to workers.
        failed: called when the pool has ended; no item is scored any more.
    """

    def __init__(
        self,
        ctx: Context,
        name: str,
        pool: WorkerPool,
        verdict_s: float,
        dispatch: ItemDispatch,
        failed: Callable[[PoolFailed], None],
    ) -> None:
        self._ctx, self._name, self._pool, self._verdict_s = ctx, name, pool, verdict_s
        self._dispatch, self._failed = dispatch, failed

    def give(self, stage: str, items: Sequence[RewardItem]) -> None:
        """See `HostLink`."""
        for item in items:
            self._ctx.background(self._score(stage, item, item.attempts), "score")

    def cancel(self, items: Sequence[str]) -> None:
        """See `HostLink`: what runs ends by itself, within its deadline; its result is dropped."""

    def resize(self, stage: str, workers: int) -> None:
        """See `HostLink`."""
        self._pool.resize(workers)

    async def _score(self, stage: str, item: RewardItem, attempt: int) -> None:
        work = pipe.item(item.work[pipe.PREFIX.size :])
        assert isinstance(work, pipe.Scorable)
        late_s = self._verdict_s * (1 + self._pool.queued // self._pool.workers)
        try:
            async with self._ctx.wait("a verdict", on=self._name, deadline_s=late_s, go_on=True):
                verdict, took_s = await self._pool.scored(work)
        except Overloaded as full:  # its queue is longer than any credit: a defect, and no verdict
            verdict, took_s = Verdict(None, OVERLOADED, str(full)), 0.0
        except PoolFailed as problem:
            self._failed(problem)
            return
        self._dispatch.result(self._name, item.id, stage, verdict, took_s, attempt=attempt)
