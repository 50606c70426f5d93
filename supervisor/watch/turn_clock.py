"""Turn clock: the time in which this process's loop ran, to judge others' silence.

A process that was stopped (SIGSTOP, a suspended machine, no processor for a while) received nothing
meanwhile, and that is no silence of others. The clock ticks, and the lateness of a tick does not count: a
pause of any length counts as `TICK_S` at most. Where the machine measures the pauses itself, as a simulated
one does, none of them counts, and the clock ticks only for `each_tick`.

Code that judges another process by its silence, or by a limit of its own, uses this clock. A promise to
another party (the deadline of a request, a preemption notice, a lease that another process may take over)
uses the loop's time, which goes on.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType

TICK_S = 0.5
"""Well below the silences that are judged (seconds), and rare enough to cost nothing measurable."""
MEASURED_TICK_S = 10 * TICK_S
"""The same where the machine measures the pauses."""


class TurnClock:
    """One a process, on its running loop; it ticks between `start` and `close`, and is the loop's time before
    and after, less the time not counted by then.

    Args:
        paused_s: the seconds so far in which this process did not run, where its machine measures them.
    """

    def __init__(self, paused_s: Callable[[], float] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None  # of the next tick
        self._tick_s = TICK_S if paused_s is None else MEASURED_TICK_S
        self._paused_s = paused_s
        self._away_s = 0.0
        self.each_tick: list[Callable[[float], None]] = []
        """Called at every tick, with the seconds by which it is late: for what a process does all the time,
        so that it wakes up once."""

    def start(self) -> None:
        """Begin to tick; call once."""
        self._timer = self._loop.call_later(self._tick_s, self._tick)

    def close(self) -> None:
        """No more ticks."""
        if self._paused_s is None:
            self._away_s += self._late_s(self._loop.time())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def now(self) -> float:
        """Seconds; never runs backward, and no faster than the loop's time."""
        now_s = self._loop.time()
        if self._paused_s is not None:
            return now_s - self._paused_s()
        return now_s - self._away_s - self._late_s(now_s)

    def _late_s(self, now_s: float) -> float:
        return max(now_s - self._timer.when(), 0.0) if self._timer is not None else 0.0

    def _tick(self) -> None:
        late_s = max(self._loop.time() - self._timer.when(), 0.0) if self._timer is not None else 0.0
        if self._paused_s is None:
            self._away_s += late_s
        self._timer = self._loop.call_later(self._tick_s, self._tick)
        for call in self.each_tick:
            call(late_s)


class timeout_in_turns:
    """`asyncio.timeout` for a wait that judges another process: a stretch in which this loop got no turn does
    not count, and messages that arrived meanwhile are read before the time is over. Raises TimeoutError."""

    __slots__ = ("_countdown", "_seconds", "_timeout")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __aenter__(self) -> asyncio.Timeout:
        self._timeout = timeout = asyncio.timeout(None)
        await timeout.__aenter__()
        self._countdown = _Countdown(timeout, self._seconds)
        return timeout

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._countdown.timer.cancel()
        await self._timeout.__aexit__(kind, problem, trace)


class _Countdown:
    """Ends `timeout` after so many seconds of turns."""

    def __init__(self, timeout: asyncio.Timeout, left_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout, self._left_s = timeout, left_s
        self._begin()

    def _begin(self) -> None:
        self._step_s = max(min(self._left_s, TICK_S), 0.0)
        self._due_s = (
            self._loop.time() + self._step_s
        )  # uvloop has no `when` for a moment that is almost there
        self.timer = self._loop.call_later(self._step_s, self._step)

    def _step(self) -> None:
        # otherwise this loop was stalled: it does not count
        if self._loop.time() - self._due_s < TICK_S:
            self._left_s -= self._step_s
        if self._left_s > 0:
            self._begin()
        else:
            self._timeout.reschedule(self._loop.time())
