"""Interrupt: user signals in long commands; the first asks, the second hurries.

Owns the signals of `rlctl` while it drives a run. The component that can end faster registers what hurrying
does.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import TypeVar

from gleaner.rlctl.errors import INTERRUPTED, CommandError
from gleaner.rlctl.signals import SIGNALS

T = TypeVar("T")


class Interrupt(asyncio.Event):
    """Set when the user requested an end (Ctrl-C, SIGTERM, a closed terminal)."""

    def __init__(self) -> None:
        super().__init__()
        self._hurry: list[Callable[[], None]] = []

    def listen(self) -> None:
        """Take the signals from now on; one that is ignored (`nohup`) is left so."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._asked)

    def hurried(self, hurry: Callable[[], None]) -> None:
        """Have `hurry` called at every signal after the first."""
        self._hurry.append(hurry)

    def _asked(self) -> None:
        if self.is_set():
            for hurry in self._hurry:
                hurry()
        self.set()

    async def unless(self, work: Coroutine[object, object, T]) -> T:
        """The result of `work`. Raises CommandError (INTERRUPTED) where the user requests an end first."""
        doing = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait([doing, asked], return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise stopped()
            return doing.result()
        finally:
            asked.cancel()
            if not doing.done():
                doing.cancel()
                await asyncio.wait([doing])


def stopped() -> CommandError:
    """The error for an end that the user requested."""
    return CommandError(INTERRUPTED, "stopped on request")
