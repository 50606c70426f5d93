"""BatchAnnouncements: a job's batches as the reward service that it shares gets them.

Owns the calls that announce a batch and its end: those of one batch in their order, each within a deadline of
its own. A lost one costs the service some computation, and no verdict, so no caller waits for any.
"""

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable

from gleaner.actors.protocol.reward import BATCH_NAME
from gleaner.actors.reward.verifiers.http_calls import Unavailable
from gleaner.actors.reward.verifiers.http_wires import BadAnswer
from gleaner.actors.reward.verifiers.service_verifier import tried

CALL_S = 10.0
"""For one announcement, with the tries while the service is away."""
LAST_S = 1.0
"""At the end of the job, for those that are under way."""
MOST = 64
"""Announcements under way; beyond that none is made."""

log = logging.getLogger("reward")


def named(batch: str) -> str:
    """The name of a batch as a service takes it; "" for one that it would refuse."""
    return batch if re.match(BATCH_NAME, batch) else ""


class BatchAnnouncements:
    """See the module. Use it on one loop.

    Args:
        send: posts the body of an announcement. Raises Unavailable, BadAnswer.
        rng: of the waits between tries.
        call_s: seconds for one.
    """

    def __init__(
        self,
        send: Callable[[dict[str, object]], Awaitable[object]],
        rng: random.Random,
        call_s: float = CALL_S,
    ) -> None:
        self._send, self._rng, self._call_s = send, rng, call_s
        self._last: dict[str, asyncio.Task[None]] = {}  # the newest of each batch
        self._under_way: set[asyncio.Task[None]] = set()

    def opened(self, batch: str, items: int, kind: str = "") -> None:
        """A batch begins, of about so many responses. kind: of its round, "" for none."""
        if items > 0:
            self._add(named(batch), {"expected": items, **({"kind": kind} if kind else {})})

    def ended(self, batch: str) -> None:
        """No verdict of a batch is needed any more."""
        self._add(named(batch), {"ended": True})

    async def close(self) -> None:
        """End what is under way, after a moment for it."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=LAST_S)
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _add(self, batch: str, what: dict[str, object]) -> None:
        if not batch or len(self._under_way) >= MOST:
            return
        task = asyncio.ensure_future(self._announce(batch, what, self._last.get(batch)))
        self._last[batch] = task
        self._under_way.add(task)
        task.add_done_callback(lambda done: self._over(batch, done))

    def _over(self, batch: str, task: "asyncio.Task[None]") -> None:
        self._under_way.discard(task)
        if self._last.get(batch) is task:
            del self._last[batch]

    async def _announce(
        self, batch: str, what: dict[str, object], before: "asyncio.Task[None] | None"
    ) -> None:
        if before is not None:  # an end must not come before its beginning
            await asyncio.wait([before], timeout=2 * self._call_s)
        failures: list[str] = []
        try:
            async with asyncio.timeout(self._call_s):
                await tried(lambda: self._send({"batch": batch, **what}), failures, self._rng)
        except (TimeoutError, Unavailable, BadAnswer) as problem:
            why = failures[-1] if failures else str(problem) or type(problem).__name__
            log.info("the reward service took no announcement of batch %s: %s", batch, why)
