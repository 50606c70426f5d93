"""PatientLoop: an event loop whose clock skips the time in which it got no turn.

On a busy machine, a process that is paused for seconds would find every timer due at once: deadlines pass
that no task had time to keep, and a living peer is declared dead. Here one turn of the loop counts `TURN_S`
at most, however long it took: before much time has passed for one timer, all other tasks on the loop have had
many turns. While a journal of this process works, time almost stops: a disk with a long queue is no silence
either. Otherwise an idle loop keeps real time.

Other processes and threads take real time: a test that waits for them gives them a minute.
"""

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import TypeVar

from gleaner.supervisor.journal.group_commit import GroupCommit

T = TypeVar("T")

TURN_S = 0.01
AWHILE = 50
"""Seconds that count as one while a journal works: an endless wait beside a hung journal ends too."""


class _Looks(selectors.DefaultSelector):
    """Waits for `TURN_S` at most, and calls back before and after."""

    def __init__(self, notify: Callable[[], None]) -> None:
        super().__init__()
        self._notify = notify

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._notify()
        try:
            return super().select(timeout if timeout is None else min(timeout, TURN_S))
        finally:
            self._notify()


class PatientLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._passed_s = 0.0
        self._looked_s = time.monotonic()
        self._left_s = TURN_S
        self._beside = 0
        super().__init__(_Looks(self._turn))

    def time(self) -> float:
        turn_s = min(time.monotonic() - self._looked_s, self._left_s)
        return self._passed_s + (turn_s / AWHILE if self._beside else turn_s)

    def stand_still(self, seconds: float) -> None:
        """Let this much time pass at once, as for a process that was stopped, or waited for its turn."""
        self._passed_s += seconds

    def works_beside(self, done: "asyncio.Future[T]") -> None:
        """Count a journal as working until `done`."""

        def over(_: "asyncio.Future[T]") -> None:
            self._count()
            self._beside -= 1

        self._count()
        self._beside += 1
        done.add_done_callback(over)

    def _count(self) -> None:
        now_s = time.monotonic()
        self._passed_s, self._left_s = self.time(), max(self._left_s - (now_s - self._looked_s), 0.0)
        self._looked_s = now_s

    def _turn(self) -> None:
        self._count()
        self._left_s = TURN_S


class PatientPolicy(asyncio.DefaultEventLoopPolicy):
    """Makes such loops, for `asyncio.run` too."""

    _loop_factory = PatientLoop


def be_patient() -> None:
    """Make all loops from now on patient, and let journals report to them when they work."""
    put = GroupCommit._put

    def reporting(journal: GroupCommit, item: object, done: "asyncio.Future[T]") -> None:
        put(journal, item, done)  # type: ignore[arg-type]
        if isinstance(loop := done.get_loop(), PatientLoop):
            loop.works_beside(done)

    GroupCommit._put = reporting  # type: ignore[assignment, method-assign]
    asyncio.set_event_loop_policy(PatientPolicy())
