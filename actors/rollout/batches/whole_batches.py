"""WholeBatches: reports to the controller that batches are whole and no request is left anywhere.

Owns what was reported last. From then on engines have nothing to do until the next batch, so the controller
has their width decided (`PlanWidth`), and a relaunch moves no request.
"""

from gleaner.actors.names import CONTROLLER
from gleaner.actors.protocol.rollout import BatchesWhole
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.rollout.state.token_log import Batch
from gleaner.supervisor import Context


class WholeBatches:
    """See the module. wanted: whether the controller has a use for it."""

    def __init__(self, ctx: Context, state: RolloutState, *, wanted: bool) -> None:
        self._ctx, self._state, self._wanted = ctx, state, wanted
        self._reported: tuple[str, ...] = ()

    def look(self) -> None:
        """A group was completed, or a request has left its instance or was dropped."""
        if not self._wanted:
            return
        whole = tuple(filter(self._whole, self._state.log.batches)) if self._idle() else ()
        news = whole and whole != self._reported
        self._reported = whole
        if news:
            self._ctx.background(self._report(whole), "whole batches")

    def _idle(self) -> bool:
        """No request waits, of any batch or caller, and no instance has one: also none that is aborted."""
        streams = self._state.streams.values()
        return not self._state.log.waiting and not any(one.held for one in streams if not one.gone)

    def _whole(self, name: str) -> bool:
        batch: Batch = self._state.log.batches[name]
        return batch.submitted.scored and len(batch.due_but(())) >= batch.wanted

    async def _report(self, whole: tuple[str, ...]) -> None:
        await self._ctx.tell(CONTROLLER, BatchesWhole(batches=whole))
