"""LocalWorkers: the reward workers of the proxy's own host, as `HostLink`."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.blob_transfer import BlobTransfer
from gleaner.actors.reward.item_dispatch import ItemDispatch
from gleaner.actors.reward.pool import PoolFailed
from gleaner.actors.reward.stage_pools import StagePools
from gleaner.supervisor import Context


class LocalWorkers:
    """See the module.

    Args:
        name: of the host.
        pools: its workers.
        blobs: fetches those of other hosts.
        failed: called when a pool has ended; no item is scored any more.
    """

    def __init__(
        self,
        ctx: Context,
        name: str,
        pools: StagePools,
        dispatch: ItemDispatch,
        blobs: BlobTransfer,
        failed: Callable[[PoolFailed], None],
    ) -> None:
        self._ctx, self._name, self._pools = ctx, name, pools
        self._dispatch, self._blobs, self._failed = dispatch, blobs, failed
        self._running: dict[str, tuple[int, asyncio.Task[None]]] = {}  # attempt and task of each item

    def give(self, stage: str, items: Sequence[RewardItem]) -> None:
        """See `HostLink`."""
        for item in items:
            task = self._ctx.background(self._score(stage, item, item.attempts), "score")
            self._running[item.id] = item.attempts, task
            task.add_done_callback(partial(self._ended, item.id))

    def cancel(self, items: Sequence[str], attempts: Mapping[str, int] | None = None) -> None:
        """See `HostLink`: what waits here is dropped, and a call of a service ends. A worker of which nothing
        is needed any more is killed, unless it ends soon (`WorkerPool`)."""
        for item in items:
            attempt, task = self._running.get(item, (0, None))
            if task is not None and attempt <= (attempts or {}).get(item, attempt):
                task.cancel()

    def _ended(self, item: str, task: "asyncio.Task[None]") -> None:
        if self._running.get(item, (0, None))[1] is task:
            del self._running[item]

    def resize(self, stage: str, workers: int) -> None:
        """See `HostLink`."""
        self._pools.resize(stage, workers)

    async def _score(self, stage: str, item: RewardItem, attempt: int) -> None:
        fetch = partial(self._blobs.fetch, "" if item.made_on == self._name else item.made_on)
        try:
            verdict, took_s = await self._pools.verdict(
                self._ctx, stage, item.work, item.carried, fetch, item.batch
            )
        except PoolFailed as problem:
            self._failed(problem)
            return
        self._dispatch.result(self._name, item.id, stage, verdict, took_s, attempt=attempt)
