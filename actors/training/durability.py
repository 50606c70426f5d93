"""`Durability`: how far the loop may run ahead of its checkpoints.

It also decides when the samples of a step may be dropped.

Owns the newest step that is known to be in a checkpoint.
"""

import asyncio

from gleaner.actors.names import MANAGER, STATE
from gleaner.actors.protocol.cluster import LatestState, StateIs
from gleaner.actors.protocol.rollout import ReleaseBatch
from gleaner.actors.training.job_journal import JobProgress
from gleaner.actors.training.retrying_ask import RetryingAsk
from gleaner.supervisor import Context, Done, WorkDeadlines

MAX_UNDURABLE = 4  # steps ahead of the newest durable checkpoint; then the loop waits for the disk
DISK_LATE_S = 120.0  # a checkpoint that takes longer, and much longer than the last ones, is logged
FIRST_DISK_LATE_S = 600.0  # the same for the first one: the state of a large model takes minutes
LOOK_S = 2.0  # polling period for a lost durability message of the StateManager


class Durability:
    """See the module."""

    def __init__(self, ctx: Context, retrying_ask: RetryingAsk, standing: JobProgress) -> None:
        self._ctx, self._retrying_ask, self._standing = ctx, retrying_ask, standing
        self.step = 0
        self._released = 0  # batches of all steps up to it are released
        self._releasing = asyncio.Lock()
        self._usual = WorkDeadlines(DISK_LATE_S, FIRST_DISK_LATE_S)
        self._saved = asyncio.Event()

    def saved(self, step: int) -> None:
        """A checkpoint of this step is on the disk."""
        self.step = max(self.step, step)
        self._saved.set()

    async def release(self) -> None:
        """Drop batches whose step is recorded here and in a checkpoint before the newest. A damaged newest
        checkpoint then costs one step, which is done again from the samples of its batch."""
        async with self._releasing:
            state = await self._retrying_ask.ask(STATE, LatestState(), StateIs)
            self.step = max(self.step, state.durable_step)
            last = min(state.kept_step, self._standing.finished)
            for step in range(max(1, last - 2 * MAX_UNDURABLE, self._released + 1), last + 1):
                await self._retrying_ask.ask(MANAGER, ReleaseBatch(batch=f"step-{step}"), Done)
                self._released = step

    async def until(self, step: int) -> None:
        """Wait for the disk to have this step."""
        if self.step >= step:
            return
        late_s, begin_s = self._usual.deadline_s("checkpoint"), self._ctx.now()
        async with self._ctx.wait("a checkpoint", on=STATE, deadline_s=late_s, go_on=True) as wait:
            while self.step < step:
                self._saved.clear()
                state = await self._retrying_ask.ask(STATE, LatestState(), StateIs)
                self.step = max(self.step, state.durable_step)
                if self.step < step:
                    await wait.look(self._saved, LOOK_S)
        self._usual.took("checkpoint", self._ctx.now() - begin_s)
