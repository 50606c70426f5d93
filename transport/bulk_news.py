"""What the thread of a connection tells the loop: all of it, in order, soon, and not each word by itself.

Owns when the loop looks. Waking it costs both sides a system call, and a turn of the interpreter, for which
the thread waits: too much for one that tells of a chunk each millisecond.
"""

import asyncio
from collections import deque
from collections.abc import Callable

LOOK_S = 0.004  # so late may be heard what is told while the loop looks by itself: a relay passes chunks on


class News:
    """Who tells first wakes the loop, which then looks every `LOOK_S` for as long as it finds something. A
    callback that fails is the last one: it is kept in `failed`, and `on_failed` called."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_failed: Callable[[], None]) -> None:
        self.failed: Exception | None = None
        self._loop = loop
        self._on_failed = on_failed
        self._told: deque[Callable[[], None]] = deque()  # as many as a thread tells in LOOK_S
        self._looking = False

    def tell(self, callback: Callable[[], None]) -> None:
        """For the thread."""
        self._told.append(callback)
        if not self._looking:
            self._looking = True
            self._loop.call_soon_threadsafe(self._look)

    def hear(self) -> bool:
        """On the loop: call back all that there is; whether there was anything."""
        heard = bool(self._told)
        while self._told and self.failed is None:
            try:
                self._told.popleft()()
            except Exception as problem:  # noqa: BLE001 (who runs the talk gets it)
                self.failed = problem
                self._on_failed()
        self._told.clear()
        return heard

    def _look(self) -> None:
        if self.hear():
            self._loop.call_later(LOOK_S, self._look)
            return
        self._looking = False
        if self._told:  # told since, to one who was still looking
            self._looking = True
            self._loop.call_soon(self._look)
