"""Waiting: one wait of an actor, from its start to its end or its deadline.

The register of all waits is `waits`.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import TYPE_CHECKING

from gleaner.supervisor.deadline import Deadline
from gleaner.supervisor.errors import WaitTimeout

if TYPE_CHECKING:
    from gleaner.supervisor.waits import Wait, Waits


class Waiting:
    """`async with` around an await: registered inside, `WaitTimeout` at the deadline."""

    def __init__(self, waits: Waits, who: str, what: str, on: str, deadline_s: float, go_on: bool) -> None:
        if not deadline_s >= 0:
            raise ValueError(f"a wait for {what} needs a deadline of 0 s or more, not {deadline_s!r}")
        self._waits = waits
        self._words = (who, what, on)
        self._deadline_s = deadline_s
        self._go_on = go_on
        self._wait: Wait | None = None
        self._timeout: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None  # of the deadline as it was when the timer was set

    async def __aenter__(self) -> Waiting:
        deadline = Deadline.after(self._deadline_s, asyncio.get_running_loop().time())
        renew_s = self._deadline_s if self._go_on else 0.0
        self._wait = self._waits.begin(*self._words, deadline, renew_s=renew_s)
        if not self._go_on:
            self._timeout = asyncio.timeout(None)
            await self._timeout.__aenter__()
            self._look_at(deadline)
        return self

    def _look_at(self, deadline: Deadline) -> None:
        self._timer = asyncio.get_running_loop().call_at(deadline.at_s, self._due)

    def _due(self) -> None:
        wait, timeout, now = self._wait, self._timeout, asyncio.get_running_loop().time()
        assert wait is not None
        assert timeout is not None
        if self._waits.is_late(wait, now):
            timeout.reschedule(now)
        else:
            self._look_at(wait.deadline)

    def progress(self) -> None:
        """The other side made progress: the whole deadline is granted again."""
        assert self._wait is not None, "progress() outside of `async with`"
        self._waits.grant(self._wait, self._deadline_s)

    async def look(self, event: asyncio.Event, within_s: float | None = None) -> bool:
        """Within this wait: wait until `event` is set or `within_s` have passed; returns whether it is
        set."""
        return await idle(event, within_s)

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        wait = self._wait
        assert wait is not None
        self._waits.end(wait)
        if self._timeout is None or self._timer is None:
            return
        self._timer.cancel()
        try:
            await self._timeout.__aexit__(kind, problem, trace)
        except TimeoutError:
            self._waits.passed(wait)
            who, what, on = self._words
            waited_s = asyncio.get_running_loop().time() - wait.since_s
            raise WaitTimeout(f"{who} waited {waited_s:.1f} s for {what} on {on}") from None


async def idle(event: asyncio.Event, at_most_s: float | None = None) -> bool:
    """See `Context.idle`. (Not by `asyncio.wait_for`, which before Python 3.12 may swallow a
    cancellation.)"""
    if event.is_set() or at_most_s is None:
        await event.wait()
        return True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await event.wait()
    return event.is_set()
