"""Keys that are typed into a live view: read at once, without echo."""

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def typed_keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Call `pressed` with the typed keys, unbuffered and without echo; does nothing without a terminal. A
    terminal that was closed gives `q`."""
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    loop = asyncio.get_running_loop()
    tty.setcbreak(terminal)

    def typed() -> None:
        try:
            keys = os.read(terminal, 64)
        except OSError:  # the terminal was closed
            keys = b""
        pressed(keys.decode(errors="ignore") or "q")

    loop.add_reader(terminal, typed)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        with contextlib.suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
