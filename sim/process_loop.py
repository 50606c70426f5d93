"""ProcessLoop: the event loop of one simulated process.

It is asyncio's interface over the common clock and queue. Owns the state of the process (running, frozen,
slow, dead) and its tasks. Owns neither time nor order: `loop.SimLoop` has both. A frozen process gets its
turns later and in their order, as after SIGCONT. A dead process gets no more turns, so no `finally` of it
runs and it sends nothing, as after SIGKILL. Calls that need threads, files or other processes are refused.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack

from gleaner.sim.forbidden_calls import REFUSED, refusing
from gleaner.sim.ready_queue import AnyTurn, PassQueue, Queue, ReadyCallback, ReadyTimer

if TYPE_CHECKING:
    from gleaner.sim.loop import SimLoop
    from gleaner.sim.turn_order import TurnOrder

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Problem = dict[str, object]
"""The argument of asyncio's exception handlers."""

TURN_S = 100e-6
"""A turn of a busy process's loop: its messages read, its handlers run. Assumed; it only scales `slow`."""
TASKS_LOOKED_AT = 64  # number of tasks that are kept before finished ones are released
_copied = contextvars.copy_context  # looked up for every turn
CLOSES_TRIED = 16  # for a coroutine whose `finally` waits: one for each wait


class ProcessLoop(asyncio.AbstractEventLoop):
    """Made by `SimLoop.spawn`.

    Args:
        master: whose time and queue it shares.
        name, host: of the process; a later life may have the same.
        number: differs between all processes of a run, in the order of their start.
        order: of its turns; None: first come, first served, and a turn takes no time.
    """

    def __init__(
        self, master: SimLoop, name: str, host: str, number: int, order: TurnOrder | None = None
    ) -> None:
        self.name, self.host, self.number = name, host, number
        self.alive = True
        self.slowness = 1.0
        """Factor on the duration of everything that the process does."""
        self.slow_until_s = 0.0
        """When the work ends that began while it was slow: it keeps its pace."""
        self._master = master
        self._order = order
        self._lane: Queue = self._usual_lane()  # where its turns wait while it runs
        self._parked: Queue | None = None  # its turns while it is frozen
        self._queue: Queue = self._lane  # the one of the two that counts
        self._tasks: list[asyncio.Task[object]] = []
        self._look_at = TASKS_LOOKED_AT
        self._task_number = 0
        self._at_death: list[Callable[[], None]] = []
        self._at_freeze: list[Callable[[bool], None]] = []
        self._frozen_s = 0.0  # so far, without the present freeze
        self._frozen_at_s = 0.0

    def __repr__(self) -> str:
        return f"<process {self.name} on {self.host}, number {self.number}>"

    # -- what asyncio and the actors use --

    def time(self) -> float:
        """Virtual seconds since the beginning of the run; the same in every process."""
        return self._master.now_s

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> ReadyCallback:
        """Run `callback` after everything scheduled before."""
        if context is None:  # nothing of another process's context may pass over
            context = _copied() if self._master.current is self else contextvars.Context()
        turn = ReadyCallback(callback, args, self, context)
        self._queue.append(turn)
        return turn

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> ReadyTimer:
        """Run it in `delay` seconds."""
        master = self._master  # as `call_at`, whose call would cost as much as its work
        if context is None:
            context = _copied() if master.current is self else contextvars.Context()
        when = master.now_s + delay
        turn = ReadyTimer(when, callback, args, self, context)
        if self.alive:
            if (due := master.timers.get(when)) is None:
                master.timers[when] = [turn]
                heapq.heappush(master.instants, when)
            else:
                due.append(turn)
        return turn

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> ReadyTimer:
        """Run it at the time `when`; of several that are due at once, the first scheduled one runs first."""
        master = self._master
        if context is None:
            context = _copied() if master.current is self else contextvars.Context()
        turn = ReadyTimer(when, callback, args, self, context)
        if self.alive:
            if (due := master.timers.get(when)) is None:
                master.timers[when] = [turn]
                heapq.heappush(master.instants, when)
            else:
                due.append(turn)
        return turn

    def again_later(self, timer: ReadyTimer, delay: float) -> None:
        """Run a timer of this loop again, in `delay` seconds: one that has run, or was never scheduled."""
        master = self._master
        timer._when = when = master.now_s + delay
        timer._scheduled = True
        if (due := master.timers.get(when)) is None:
            master.timers[when] = [timer]
            heapq.heappush(master.instants, when)
        else:
            due.append(timer)

    def timer_cancelled(self) -> None:
        """One of its timers in the heap will do nothing when it is due."""
        self._master.cancelled += 1

    def create_future(self) -> asyncio.Future[T]:
        """See asyncio."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        """See asyncio. A task without a name is numbered in the process: asyncio's own count continues from
        run to run."""
        if name is None:
            self._task_number += 1
            name = f"{self.name}-{self._task_number}"
        if context is None and self._master.current is not self:
            context = contextvars.Context()
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        if len(self._tasks) >= self._look_at:
            self._let_go()
        return task

    def call_exception_handler(self, context: Problem) -> None:
        """Everything that asyncio would log is a finding; a dead process has none."""
        if self.alive:
            self._master.found(self, context)

    def world_failed(self, what: str, problem: Exception) -> None:
        """Code of the simulator failed in a turn of this process: a finding, dead or alive."""
        self._master.found(self._master.world, {"message": what, "exception": problem})

    def get_debug(self) -> bool:
        """False: asyncio's own debugging costs more than the run."""
        return False

    def is_running(self) -> bool:
        """Whether it may run."""
        return self.alive

    def is_closed(self) -> bool:
        """Whether it is over."""
        return not self.alive

    # -- what happens to processes --

    @property
    def frozen(self) -> bool:
        """Whether it is stopped, and may go on later."""
        return self.alive and self._parked is not None

    @property
    def runs_freely(self) -> bool:
        """Whether due turns run now: it lives, is not frozen, and its passes take no time."""
        return self._queue is self._master.ready

    def awake_s(self) -> float:
        """Seconds so far in which it was not frozen; they grow while it runs."""
        now_s = self._master.now_s if self._parked is None or not self.alive else self._frozen_at_s
        return now_s - self._frozen_s

    def paused_s(self) -> float:
        """Seconds so far in which it was frozen."""
        if self._parked is None or not self.alive:
            return self._frozen_s
        return self._frozen_s + self._master.now_s - self._frozen_at_s

    def freeze(self) -> None:
        """SIGSTOP: nothing of it runs until `thaw`; incoming events wait in order."""
        if self.alive and self._parked is None:
            self._master.trace.note("freeze", self.name, self.number)
            waiting = self._lane.taken() if isinstance(self._lane, PassQueue) else []
            self._parked = self._queue = deque([*self._master.take_from_ready(self), *waiting])
            self._frozen_at_s = self.time()
            for call in self._at_freeze:
                call(True)

    def thaw(self) -> None:
        """SIGCONT: what waited runs, the oldest first; deadlines that passed meanwhile have passed."""
        if self.alive and self._parked is not None:
            self._master.trace.note("thaw", self.name, self.number)
            parked, self._parked = self._parked, None
            self._frozen_s += self.time() - self._frozen_at_s
            self._queue = self._lane
            for turn in parked:
                self._queue.append(turn)
            for call in self._at_freeze:
                call(False)

    def slow(self, factor: float) -> None:
        """Let every turn of its loop take `factor` times as long; 1 is its usual pace. Models of work read
        `slowness`."""
        if factor < 1:
            raise ValueError(f"a process can be slowed by 1 and more, not {factor}")
        if not self.alive:
            return
        master, before = self._master, self._lane
        master.trace.note("slow", self.name, self.number, factor)
        self.slowness = factor
        self._lane = self._usual_lane()
        if self._parked is None:
            self._queue = self._lane
        if isinstance(before, PassQueue):
            before.let_out()

    def kill(self) -> None:
        """SIGKILL: not one line of it runs any more, and it sends nothing. Its coroutines stay where they are
        until the run is over. Where it kills itself, only the callback in hand runs to its end."""
        if not self.alive:
            return
        self._master.trace.note("kill", self.name, self.number)
        self._die()
        calls, self._at_death = self._at_death, []
        for call in calls:
            call()

    def at_death(self, call: Callable[[], None]) -> None:
        """Call this when the process dies, after it was muted: for effects of its death on others (its
        connections break, its writes are cut off). Calls run in the order of registration."""
        if self.alive:
            self._at_death.append(call)
        else:
            call()

    def at_freeze(self, call: Callable[[bool], None]) -> None:
        """Call this with True after it was frozen, with False after it was thawed."""
        self._at_freeze.append(call)

    def close(self) -> None:
        """After the run: release its coroutines. Their `finally` blocks run without visible effect; tasks
        that those begin are released too."""
        self._die()
        for _ in range(CLOSES_TRIED):
            tasks, self._tasks = self._tasks, []
            for task in tasks:
                coroutine = task.get_coro()
                if not task.done() and coroutine is not None:
                    _close(coroutine)

    def unseen(self) -> list[asyncio.Task[object]]:
        """Failed tasks whose exception was not retrieved."""
        return [task for task in self._tasks if _unseen(task)]

    # -- the inside --

    def _die(self) -> None:
        self.alive = False
        self._master.take_from_ready(self)
        self._parked = None
        self._lane = self._queue = deque(maxlen=0)

    def _usual_lane(self) -> Queue:
        master, order, slower_s = self._master, self._order, (self.slowness - 1) * TURN_S
        if order is not None:
            pass_s, slowness = order.pass_s, self.slowness
            slowed = pass_s if slowness == 1.0 else lambda: pass_s() * slowness + slower_s
            return PassQueue(slowed, order.arranged, master.world, self._let_out)
        if slower_s > 0:
            return PassQueue(lambda: slower_s, _as_they_came, master.world, self._let_out)
        return master.ready

    def _let_out(self, turns: list[AnyTurn]) -> None:
        """These turns of a slow process may run now."""
        if self.alive:
            (self._master.ready if self._parked is None else self._parked).extend(turns)

    def _let_go(self) -> None:
        """Release finished tasks. The run has no garbage collector, so the other tasks stay alive without a
        reference, but they must be found at the end."""
        self._tasks = [task for task in self._tasks if not task.done() or _unseen(task)]
        self._look_at = max(2 * len(self._tasks), TASKS_LOOKED_AT)


def _as_they_came(turns: list[AnyTurn]) -> list[AnyTurn]:
    return turns


def _unseen(task: asyncio.Task[object]) -> bool:
    return task.done() and bool(getattr(task, "_log_traceback", False))  # asyncio's own mark


def _close(coroutine: Coroutine[Any, Any, object] | Generator[Any, None, object]) -> None:
    for _ in range(CLOSES_TRIED):
        try:
            coroutine.close()
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 (its `finally` failed or waits: it is over)
            continue
        return


for _name in REFUSED:
    setattr(ProcessLoop, _name, refusing(_name))
