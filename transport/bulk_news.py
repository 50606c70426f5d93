"""News: batched callbacks from a connection's thread to the loop, in order.

Owns when the loop polls. Each wake-up of the loop costs both sides a system call and a turn of the
interpreter, for which the thread waits. That is too much for a thread that reports a chunk each millisecond.
"""

import asyncio
from collections import deque
from collections.abc import Callable

LOOK_S = 0.004  # poll interval, so the delay of a report; small, because a relay forwards chunks


class News:
    """The first report wakes the loop, which then polls every `LOOK_S` for as long as it finds reports. After
    a callback that fails no other one runs: the error is kept in `failed`, and `on_failed` is called."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_failed: Callable[[], None]) -> None:
        self.failed: Exception | None = None
        self._loop = loop
        self._on_failed = on_failed
        self._callbacks: deque[Callable[[], None]] = deque()  # at most the reports of one LOOK_S
        self._looking = False

    def tell(self, callback: Callable[[], None]) -> None:
        """Called by the thread: add a callback for the loop."""
        self._callbacks.append(callback)
        if not self._looking:
            self._looking = True
            self._loop.call_soon_threadsafe(self._look)

    def hear(self) -> bool:
        """On the loop: call back all that there is; whether there was anything."""
        pending = bool(self._callbacks)
        while self._callbacks and self.failed is None:
            try:
                self._callbacks.popleft()()
            except Exception as problem:  # noqa: BLE001 (the owner of the talk raises it)
                self.failed = problem
                self._on_failed()
        self._callbacks.clear()
        return pending

    def _look(self) -> None:
        if self.hear():
            self._loop.call_later(LOOK_S, self._look)
            return
        self._looking = False
        if self._callbacks:  # reported since, while `_looking` was still set
            self._looking = True
            self._loop.call_soon(self._look)
