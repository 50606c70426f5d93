"""Observer: view of a manager's death by the instances of one process.

It is asked before the death, and answers after it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from bench.recovery.worker import ModelledWorker
from gleaner.supervisor import Actor, Deferred, Message, handles

LOOK_S = 0.005
KEPT_S = 30.0  # for so long the time of a frame is remembered


class WatchReturn(Message, frozen=True):
    """Reply when, after the death at `killed_s` on the machine's monotonic clock, new frames are
    acknowledged.

    Answered when every instance has one that was made after it, or at `until_s`.
    """

    killed_s: float
    until_s: float


class ReturnSeen(Message, frozen=True):
    """Seconds from the death to the first acknowledgement of a frame that was made after it, one an instance,
    shortest first; `instances`: their number. `resent`: frames that were sent again; `resent_age_s`: how long
    before the death the oldest of them was made. `rows`: requests that are decoded here."""

    back_s: list[float]
    instances: int
    resent: int
    resent_age_s: float


class Observer(Actor):
    """Polls the streams of its process every few milliseconds."""

    def __init__(self, workers: Sequence[ModelledWorker]) -> None:
        self._workers = workers
        self._made: list[deque[tuple[float, int]]] = [deque() for _ in workers]

    async def on_start(self) -> None:
        self.ctx.background(self._look(), "look")

    async def _look(self) -> None:
        """Record the time of each frame."""
        while True:
            now = time.monotonic()
            for worker, made in zip(self._workers, self._made, strict=True):
                if not made or worker.made > made[-1][1]:
                    made.append((now, worker.made))
                while now - made[0][0] > KEPT_S and len(made) > 1:
                    made.popleft()
            await asyncio.sleep(LOOK_S)

    @handles(WatchReturn)
    async def watch(self, message: WatchReturn) -> Deferred:
        """See `WatchReturn`."""
        deferred = Deferred()
        self.ctx.background(self._follow(message, deferred), "follow")
        return deferred

    async def _follow(self, order: WatchReturn, deferred: Deferred) -> None:
        await asyncio.sleep(max(0.0, order.killed_s - time.monotonic()))
        made = [worker.made for worker in self._workers]
        before = [worker.resent for worker in self._workers]
        back: dict[int, float] = {}
        ages = [0.0]
        again = list(before)
        while len(back) < len(self._workers) and time.monotonic() < order.until_s:
            for number, worker in enumerate(self._workers):
                if worker.resent > again[number]:
                    again[number] = worker.resent
                    ages.append(order.killed_s - self._made_at(number, worker.acked + 1))
                if number not in back and worker.acked > made[number]:
                    back[number] = time.monotonic() - order.killed_s
            await asyncio.sleep(LOOK_S)
        resent = sum(now - then for now, then in zip(again, before, strict=True))
        deferred.answer(
            ReturnSeen(
                back_s=sorted(back.values()),
                instances=len(self._workers),
                resent=resent,
                resent_age_s=max(ages),
            )
        )

    def _made_at(self, number: int, seq: int) -> float:
        return next((at for at, made in self._made[number] if made >= seq), time.monotonic())
