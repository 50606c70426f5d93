"""`ThroughputReporter`: an engine's speed as sums of turns, sent to the LoadBalancer.

They are sent at most once a beat. Owns the unsent sums, and the time to send them. An idle worker sends
nothing. A lost message is not sent again, because the next turns give the same information.
"""

import asyncio

from gleaner.actors.engine.worker.port import StepWork
from gleaner.actors.names import BALANCER
from gleaner.actors.protocol.balancer import EngineMeasured
from gleaner.actors.protocol.throughput import NOTHING, Work
from gleaner.supervisor import Context


class ThroughputReporter:
    """Sends the turn times of one worker.

    Args:
        beat_s: at least so long between two messages.
    """

    def __init__(self, ctx: Context, beat_s: float) -> None:
        self._ctx, self._beat_s = ctx, beat_s
        self._measured = UnreportedWork()
        self._next_s = ctx.now() + beat_s
        self._reporting: asyncio.Task[None] | None = None
        self._retracted = 0

    def ended(self, work: StepWork | None, began_s: float) -> None:
        """A turn ended now; None if its host does not report its work. Never blocks: engines decode on while
        the head is away."""
        if work is None:
            return
        self._retracted += work.retracted
        now = self._ctx.now()
        self._measured.add(
            Work(
                seconds=now - began_s,
                steps=work.steps,
                tokens=work.tokens,
                attended=work.attended,
                prefilled=work.prefilled,
            )
        )
        if now >= self._next_s and (self._reporting is None or self._reporting.done()):
            self._next_s = now + self._beat_s
            self._reporting = self._ctx.background(self._tell(), "figures of the engine")

    async def _tell(self) -> None:
        name, incarnation = self._ctx.name, self._ctx.incarnation
        sums = self._measured.take()
        measured = EngineMeasured(
            instance=name, incarnation=incarnation, sums=sums, retracted=self._retracted
        )
        await self._ctx.tell(BALANCER, measured)


class UnreportedWork:
    """Measurements that a worker has not reported yet: sums by bucket."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, int], Work] = {}

    def add(self, work: Work) -> None:
        """Add a turn. One that decoded nothing, or took no time, is ignored."""
        if work.seconds > 0 and work.steps > 0:
            self._sums[work.bucket] = self._sums.get(work.bucket, NOTHING).plus(work)

    def take(self) -> list[Work]:
        """Return and clear all sums, one for each bucket."""
        sums, self._sums = self._sums, {}
        return list(sums.values())
