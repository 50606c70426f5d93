"""RewardNotes: what the manager notifies the reward proxy of, in order.

Which batches begin and end, and which verdicts are not needed. Each is sent once: a lost one costs the proxy
some computation and memory, and no verdict.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from gleaner.actors.names import REWARD
from gleaner.actors.protocol.reward import BatchEnded, CancelScores, RewardHint
from gleaner.supervisor import Context

MOST = 4096
"""Notes that wait while the proxy is away; the oldest is dropped beyond that."""


class RewardNotes:
    """See the module."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._notes: deque[RewardHint | CancelScores | BatchEnded] = deque(maxlen=MOST)
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Send what is added; runs for ever."""
        while True:
            self._wake.clear()
            await self._ctx.idle(self._wake)
            while self._notes:
                await self._ctx.tell(REWARD, self._notes.popleft())

    def opened(self, batch: str, items: int, kind: str) -> None:
        """The rollout of a batch begins: the proxy may prepare for its responses. kind: of its round."""
        self._add(RewardHint(batch=batch, items=items, kind=kind))

    def dropped(self, requests: Sequence[str]) -> None:
        """The verdicts of these requests are not needed."""
        self._add(CancelScores(requests=list(requests)))

    def released(self, batch: str) -> None:
        """No verdict of this batch is requested again."""
        self._add(BatchEnded(batch=batch))

    def _add(self, note: RewardHint | CancelScores | BatchEnded) -> None:
        self._notes.append(note)
        self._wake.set()
