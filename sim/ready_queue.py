"""Turn and PassQueue: waiting callbacks of a simulated system.

A turn is a callback of one process; turns of a process whose passes take time wait in its lane. Owns their
form. `loop` decides when a turn runs, `process_loop` whether it runs.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gleaner.sim.process_loop import ProcessLoop


class ReadyCallback(asyncio.Handle):
    """A callback that waits for its turn. Made without `Handle.__init__`, which would double its price."""

    __slots__ = ()
    _repr = None  # on the class: a slot less to fill
    _source_traceback = None
    _callback: Callable[..., object]
    _args: tuple[object, ...]
    _context: contextvars.Context
    _loop: ProcessLoop

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: ProcessLoop,
        context: contextvars.Context,
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False


class ReadyTimer(asyncio.TimerHandle):
    """The same, due at `when`."""

    __slots__ = ()
    _repr = None
    _source_traceback = None
    _callback: Callable[..., object]
    _args: tuple[object, ...]
    _context: contextvars.Context
    _loop: ProcessLoop
    _when: float
    _scheduled: bool

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: ProcessLoop,
        context: contextvars.Context,
    ) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._scheduled = True

    def cancel(self) -> None:
        """See asyncio. One call where asyncio makes five: every deadline that is met is cancelled."""
        if not self._cancelled:
            self._cancelled = True
            self._callback = self._args = None  # type: ignore[assignment]  # as asyncio: releases what they hold
            if self._scheduled:
                self._loop.timer_cancelled()


AnyTurn = ReadyCallback | ReadyTimer
Queue = deque[AnyTurn]


class PassQueue(deque[AnyTurn]):
    """Turns of a process whose passes take time: turns that arrive together run together, a while later.

    Args:
        pass_s: gives the seconds of the next pass.
        arranged: gives the turns of a pass in the order in which they run.
        call_later: of the world, whose time a slow process does not slow.
        let_out: takes the turns that may run now.
    """

    def __init__(
        self,
        pass_s: Callable[[], float],
        arranged: Callable[[list[AnyTurn]], list[AnyTurn]],
        call_later: Callable[[float, Callable[[], None]], asyncio.TimerHandle],
        let_out: Callable[[list[AnyTurn]], None],
    ) -> None:
        super().__init__()
        self._pass_s = pass_s
        self._arranged = arranged
        self._call_later = call_later
        self._let_out = let_out
        self._due: asyncio.TimerHandle | None = None

    def append(self, turn: AnyTurn) -> None:
        """It waits, at most for one pass."""
        super().append(turn)
        if self._due is None:
            self._due = self._call_later(self._pass_s(), self.let_out)

    def let_out(self) -> None:
        """Now."""
        self._let_out(self._arranged(self.taken()))

    def taken(self) -> list[AnyTurn]:
        """The waiting turns, in the order of their arrival; they wait here no longer."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        turns = list(self)
        self.clear()
        return turns
