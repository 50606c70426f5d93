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
        world: has the timer of the passes: a slow process does not slow its time.
        let_out: takes the turns that may run now.
    """

    def __init__(
        self,
        pass_s: Callable[[], float],
        arranged: Callable[[list[AnyTurn]], list[AnyTurn]],
        world: ProcessLoop,
        let_out: Callable[[list[AnyTurn]], None],
    ) -> None:
        super().__init__()
        self._pass_s = pass_s
        self._arranged = arranged
        self._world = world
        self._let_out = let_out
        self._pass = self._new_pass()
        self._under_way = False  # a pass ends later, by `_pass`

    def append(self, turn: AnyTurn) -> None:
        """It waits, at most for one pass."""
        super().append(turn)
        if not self._under_way:
            self._under_way = True
            self._world.again_later(self._pass, self._pass_s())

    def let_out(self) -> None:
        """Now."""
        self._let_out(self._arranged(self.taken()))

    def taken(self) -> list[AnyTurn]:
        """The waiting turns, in the order of their arrival; they wait here no longer."""
        if self._under_way:
            self._under_way = False
            self._pass.cancel()
            self._pass = self._new_pass()
        turns = list(self)
        self.clear()
        return turns

    def _new_pass(self) -> ReadyTimer:
        """The timer of all passes, until one of them is cut short."""
        timer = ReadyTimer(0.0, self._over, (), self._world, contextvars.Context())
        timer._scheduled = False
        return timer

    def _over(self) -> None:
        """The pass is over."""
        self._under_way = False
        turns = list(self)
        self.clear()
        self._let_out(turns if len(turns) < 2 else self._arranged(turns))
