"""StallTimer: the end of a wait for bytes of a simulated connection.

Owns the deadline of one direction, and its timer. In reality the bytes of connections that share a card
arrive in turn, a few packets of each. Here whole pieces queue, so a piece may take longer than a stall
allows, while its bytes would have arrived all the time. So a wait does not end while a piece is under way
that others hold up.
"""

from __future__ import annotations

import asyncio
import math
from typing import Protocol


class Moves(Protocol):
    """A direction of a connection."""

    def held_up_by_others(self, within_s: float) -> bool:
        """See `Pipe`."""


class StallTimer:
    """See the module. The timer is lazy: one that fires before the deadline is set again.

    Args:
        process: the loop of the waiting process.
        flow: the direction whose bytes are waited for.
    """

    __slots__ = ("_by_s", "_flow", "_process", "_stall_s", "_timer", "_waiter")

    def __init__(self, process: asyncio.AbstractEventLoop, flow: Moves) -> None:
        self._process = process
        self._flow = flow
        self._by_s = math.inf
        self._stall_s = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None

    def allow(self, stall_s: float) -> None:
        """Waits from now on, until `stop`, end with TimeoutError after `stall_s`."""
        self._stall_s = stall_s
        self._by_s = by_s = self._process.time() + stall_s
        if self._timer is not None and self._timer.when() > by_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._process.call_at(by_s, self._due)

    def stop(self) -> None:
        """Waits end no more."""
        self._by_s = math.inf

    def close(self) -> None:
        """The connection is closed."""
        self._by_s = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def wait(self, waiter: asyncio.Future[None]) -> None:
        """Wait for it. Raises TimeoutError."""
        self._waiter = waiter
        await waiter

    def _due(self) -> None:
        self._timer = None
        by_s, now_s = self._by_s, self._process.time()
        if by_s == math.inf:
            return
        if by_s <= now_s:
            if not self._flow.held_up_by_others(self._stall_s):
                if self._waiter is not None and not self._waiter.done():
                    self._waiter.set_exception(TimeoutError())
                return
            self._by_s = by_s = now_s + self._stall_s
        self._timer = self._process.call_at(by_s, self._due)
