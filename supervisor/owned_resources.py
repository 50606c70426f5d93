"""Belongings of an actor: background tasks, timers, resources closed at its end.

Made only for actors that use one of them, since most actors of a large system have none.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from gleaner.supervisor.delivery import Delivery
from gleaner.supervisor.mailbox import Lane
from gleaner.supervisor.message import Message

if TYPE_CHECKING:
    from gleaner.supervisor.cell import Cell

IN_HAND: contextvars.ContextVar[Cell | None] = contextvars.ContextVar("IN_HAND", default=None)
"""The actor whose message the running task handles: what it sends inherits that message's deadline and trace.
Background work of the actor has none."""


class OwnedResources:
    """Belongings of one incarnation, `cell`."""

    __slots__ = ("_cell", "_closers", "_last_timer", "_tasks", "_timers")

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._tasks: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._last_timer = 0
        self._closers: list[Callable[[], Coroutine[object, object, None]]] = []

    def background(self, work: Coroutine[object, object, None], what: str) -> asyncio.Task[None]:
        """See `Context.background`."""
        context = contextvars.copy_context()
        context.run(IN_HAND.set, None)
        name = f"{self._cell.address.name}: {what}"
        task = asyncio.get_running_loop().create_task(work, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._background_done)
        return task

    def every(self, period_s: float, message: Message) -> None:
        """See `Context.every`."""
        loop = asyncio.get_running_loop()
        timer = self._new_timer()

        def beat() -> None:
            self._offer(message, Lane.USER)
            self._timers[timer] = loop.call_later(period_s, beat)

        self._timers[timer] = loop.call_later(period_s, beat)

    def after(self, delay_s: float, message: Message, lane: Lane) -> asyncio.TimerHandle:
        """See `Context.after`."""
        timer = self._new_timer()

        def fire() -> None:
            self._timers.pop(timer, None)
            self._offer(message, lane)

        handle = self._timers[timer] = asyncio.get_running_loop().call_later(delay_s, fire)
        return handle

    def at_end(self, close: Callable[[], Coroutine[object, object, None]]) -> None:
        """See `Context.at_end`."""
        self._closers.append(close)

    def release(self, finish: Callable[[Coroutine[object, object, None]], None]) -> None:
        """The end: cancel tasks and timers, and have `finish` run the closing coroutines, newest first."""
        for task in list(self._tasks):
            task.cancel()
        for timer in self._timers.values():
            timer.cancel()
        for close in reversed(self._closers):
            finish(close())

    def _background_done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and isinstance(problem := task.exception(), Exception):
            self._cell.crash(problem)

    def _offer(self, message: Message, lane: Lane) -> None:
        """A message to oneself; one that finds the mailbox full is skipped."""
        self._cell.take(Delivery(message, source=self._cell.address.name), lane)

    def _new_timer(self) -> int:
        self._last_timer += 1
        return self._last_timer
