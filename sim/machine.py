"""SimMachine: threads on virtual time, and simulated child processes.

Owns threads: the work of a thread is done inline, in the order of the calls. Its result is delivered after
the virtual seconds that it spent on the process's `Meter`. The cluster decides how a command line becomes a
process on some host, and passes `start`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from gleaner.actors.names import TRAINER
from gleaner.sim.meter import Bill, Meter
from gleaner.sim.process_loop import ProcessLoop
from gleaner.sim.shared_cores import SharedCores
from gleaner.supervisor.machine import Child, OnExit, Worker
from gleaner.supervisor.process import ProcessSpec
from gleaner.supervisor.watch.health import Parent

T = TypeVar("T")
Start = Callable[[ProcessSpec, OnExit], Child]
"""Starts a simulated child process of a simulated process; `on_exit` is called on the parent's loop. Raises
OSError, as a machine that lacks the command, or the memory."""
ROUNDING_S = 1e-9  # of sums of times; no work is so short


class SimMachine:
    """A `gleaner.supervisor.machine.Machine`; one a simulated process.

    Args:
        process: whose machine it is.
        start: starts its child processes.
        meter: what the models in this process spend.
        shared_cores: the processes that share its cores.
        parent: the process that expects its heartbeats.
    """

    def __init__(
        self,
        process: ProcessLoop,
        start: Start,
        meter: Meter,
        shared_cores: SharedCores | None = None,
        parent: Parent | None = None,
    ) -> None:
        self.meter = meter
        self.parent = parent
        self._shared_cores = shared_cores or SharedCores()
        self._process = process
        self._start = start
        self._threads: WeakValueDictionary[str, SimWorker] = WeakValueDictionary()  # the newest of each name

    @property
    def pid(self) -> int:
        """See `Machine`: the same in every run of a seed."""
        return self._process.number

    @property
    def paused_s(self) -> Callable[[], float]:
        """See `Machine`."""
        return self._process.paused_s

    def prepared(self) -> None:
        """See `Machine`: they always do."""

    def start(self, spec: ProcessSpec, on_exit: OnExit) -> Child:
        """See `Machine`."""
        return self._start(spec, on_exit)

    def thread(self, name: str) -> Worker:
        """See `Machine`."""
        worker = SimWorker(self._process, self.meter, self._shared_cores, name)
        if (earlier := self._threads.get(name)) is not None:
            earlier.before(worker)
        self._threads[name] = worker
        return worker


class SimWorker:
    """A `gleaner.supervisor.machine.Worker` on virtual time.

    A piece of work is done the moment it begins. Its result or exception, and its effects (`Meter.then`),
    follow when its seconds have passed, `slowness` times as many in a slow process. If the process is killed
    before that, there is no result and no effect; while it is frozen the work makes no progress.
    """

    def __init__(self, process: ProcessLoop, meter: Meter, shared_cores: SharedCores, name: str) -> None:
        self._process, self._meter, self._name = process, meter, name
        self._shared_cores = shared_cores
        self._trains = name.startswith(TRAINER)
        self._crowds = False  # a piece of ours is among those that are under way
        process.at_death(self._leave)
        self._waiting: deque[_Piece] = deque()
        self._busy = False
        self._closed = False
        self._next_of_name: SimWorker | None = None

    def before(self, later: SimWorker) -> None:
        """The later thread of this name begins when the work of this one is over."""
        if self._busy:
            self._next_of_name, later._busy = later, True

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """See `Worker`. Raises RuntimeError after `close`."""
        if self._closed:
            raise RuntimeError(f"the thread of {self._name} takes no more work")
        piece = _Work(work, self._process.create_future())
        self._waiting.append(piece)
        if not self._busy:
            self._next()
        return piece.done

    def close(self) -> None:
        """See `Worker`."""
        self._closed = True
        while self._waiting:
            self._waiting.popleft().cancel()

    def _next(self) -> None:
        self._busy = False
        while self._waiting and not self._busy:
            piece = self._waiting.popleft()
            if piece.cancelled:
                continue
            self._busy = True
            self._meter.begin()
            piece.do()
            bill = self._meter.end()
            if bill.seconds > 0:
                self._crowds = True
                seconds = (
                    bill.seconds * self._process.slowness * self._shared_cores.enter(trains=self._trains)
                )
                if self._process.slowness > 1:
                    self._process.slow_until_s = max(
                        self._process.slow_until_s, self._process.time() + seconds
                    )
                until_s = self._process.awake_s() + seconds
                self._process.call_later(seconds, self._over, piece, bill, until_s)
            else:
                self._process.call_soon(self._over, piece, bill, 0.0)
        if not self._busy and self._next_of_name is not None:
            later, self._next_of_name = self._next_of_name, None
            later._next()

    def _over(self, piece: _Piece, bill: Bill, until_s: float) -> None:
        left_s = until_s - self._process.awake_s()
        if left_s > ROUNDING_S:  # it was frozen meanwhile
            self._process.call_later(left_s, self._over, piece, bill, until_s)
            return
        self._leave()
        piece.finish(bill)
        self._next()

    def _leave(self) -> None:
        if self._crowds:
            self._crowds = False
            self._shared_cores.leave(trains=self._trains)


class _Piece(Protocol):
    """Work of some result."""

    @property
    def cancelled(self) -> bool:
        """Its caller has stopped waiting."""

    def cancel(self) -> None:
        """It is not to begin."""

    def do(self) -> None:
        """Do the work, and keep its result."""

    def finish(self, bill: Bill) -> None:
        """Its time is over: apply its effects, then deliver its result."""


class _Work(Generic[T]):
    """A `_Piece`. It refers to its result no longer once it is over: no collection runs during a simulation,
    and the result may be an image."""

    def __init__(self, work: Callable[[], T], done: asyncio.Future[T]) -> None:
        self.done = done
        self._work = work
        self._tell: Callable[[], None] | None = None

    @property
    def cancelled(self) -> bool:
        return self.done.cancelled()

    def cancel(self) -> None:
        self.done.cancel()

    def do(self) -> None:
        try:
            result = self._work()
        except Exception as problem:  # noqa: BLE001 (the waiting caller gets it)
            self._fail(problem)
        else:
            self._tell = lambda: self.done.set_result(result)

    def finish(self, bill: Bill) -> None:
        try:
            for effect in bill.effects:
                effect()
        except Exception as problem:  # noqa: BLE001 (the waiting caller gets it)
            self._fail(problem)
        tell, self._tell = self._tell or self.cancel, None
        if not self.done.done():
            tell()

    def _fail(self, problem: Exception) -> None:
        self._tell = lambda: self.done.set_exception(problem)
