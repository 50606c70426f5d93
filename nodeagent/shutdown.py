"""Shutdown: the first signal requests an ordered end, the second one ends at once.

Owns the signals of a process of ours, and the last steps of an end without order: every process below it is
killed, and what would outlive it (shared memory, the file with its address) is freed.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from types import FrameType

import psutil

from gleaner.nodeagent.exit_codes import CUT_SHORT

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""SIGHUP is sent when a terminal closes; `nohup` ignores it, and that stays so."""
GONE_S = 2.0  # for killed processes to be gone; the kernel needs milliseconds, a big one some hundred

log = logging.getLogger("nodeagent")


class Shutdown(asyncio.Event):
    """Set when the process must end in order."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._undo: list[Callable[[], None]] = []
        self.signal = ""

    def at_once(self, undo: Callable[[], None]) -> None:
        """Have `undo` called where the process ends without order: quick, and twice does no harm."""
        self._undo.append(undo)

    def listen(self) -> None:
        """Take the signals of this process from now on."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._asked, number)

    def _asked(self, number: signal.Signals) -> None:
        self.signal = number.name
        log.info("%s: ending in order; a second signal ends at once", number.name)
        self.set()
        loop = asyncio.get_running_loop()
        for each in SIGNALS:
            if loop.remove_signal_handler(each):
                # Not by the loop any more: a hung loop would not handle it.
                signal.signal(each, self._again)

    def _again(self, number: int, frame: FrameType | None) -> None:
        try:
            self.clean_up()
        finally:  # whatever this interrupted, and whatever failed
            text = f"{self._name}: {signal.Signals(number).name} again: ended at once, without order\n"
            with contextlib.suppress(OSError):
                os.write(2, text.encode())
            os._exit(CUT_SHORT)

    def clean_up(self) -> None:
        """Kill every process below this one and free what would outlive it."""
        with contextlib.suppress(psutil.Error):
            below = psutil.Process().children(recursive=True)
            for process in below:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(below, timeout=GONE_S)
        for undo in reversed(self._undo):
            try:
                undo()
            except OSError as problem:
                log.warning("not cleaned up: %s", problem)
