"""SimLoop: one clock and one queue for a whole simulated system.

Everything that can run runs in turn, then time jumps. Owns virtual time, the order of turns (first come,
first served, as asyncio promises) and of timers (by time, ties by age), the wall clocks of the hosts, and
unexpected errors. Each process sees it through a loop of its own (`process_loop.ProcessLoop`); what is no
process (the network between them, faults) runs as `world`. Nothing here is random without an order seed; with
one, turns of a process take time, and what is ready together runs in a drawn order (`turn_order`).
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import logging
import math
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple, Unpack

from gleaner.sim.forbidden_calls import NotSimulated
from gleaner.sim.process_loop import Problem, ProcessLoop
from gleaner.sim.ready_queue import AnyTurn, ReadyCallback, ReadyTimer
from gleaner.sim.trace import Trace
from gleaner.sim.turn_order import TurnOrder

__all__ = ["Finding", "NotSimulated", "ProcessLoop", "SimLoop", "SpinsForever", "Stalled"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

WALL_START_MS = 1_767_225_600_000
"""Every host's clock at the beginning, in ms since 1970: 2026-01-01. Incarnations are derived from it."""
MAX_TURNS_AT_ONCE = 5_000_000
"""Turns at one and the same instant; beyond this some code polls without letting time pass."""
FEWEST_CANCELLED = 256  # cancelled timers that are kept before the heap is rebuilt


class SpinsForever(RuntimeError):
    """Turn follows turn, and time does not advance: some code waits in a loop without a delay."""


class Stalled(RuntimeError):
    """The awaited event did not happen by its deadline."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An unexpected exception: when (virtual seconds), in which process, and asyncio's text."""

    at_s: float
    process: str
    what: str
    problem: BaseException | None


class SimLoop:
    """Time and order of one run.

    Args:
        sink: gets the trace as text, line by line.
        order_seed: of the order and pace of all turns; 0: first come, first served, and turns take no time.
    """

    def __init__(self, sink: Callable[[str], None] | None = None, order_seed: int = 0) -> None:
        self.order_seed = order_seed
        self.now_s = 0.0
        """Virtual seconds since the beginning."""
        self.trace = Trace(lambda: self.now_s, sink)
        self.findings: list[Finding] = []
        self.turns = 0
        """Callbacks that had their turn: two runs of one history have had equally many."""
        self.processes: list[ProcessLoop] = []
        """All processes that were ever started, in that order."""
        self.current: ProcessLoop | None = None
        """The process that has the turn."""
        # For the loops of the processes, which share them:
        self.ready: deque[AnyTurn] = deque()
        self.timers: dict[float, list[ReadyTimer]] = {}  # by the instant at which they are due, by age
        self.instants: list[float] = []  # the heap of those; numbers alone compare four times as fast
        self.cancelled = 0  # of the timers
        self._until_s = math.inf
        self._wall_offset_ms: dict[str, int] = {}
        self._closed = False
        self.world = ProcessLoop(self, "world", "", 0)  # type: ignore[abstract]  # the rest is refused
        self._nothing = ReadyCallback(_nothing, (), self.world, contextvars.Context())
        self._nothing.cancel()

    # -- processes --

    def spawn(self, name: str, host: str) -> ProcessLoop:
        """A process without any task yet: `create_task` of what this returns begins its main one."""
        number = len(self.processes) + 1
        order = TurnOrder(f"{self.order_seed}/order/{number}") if self.order_seed else None
        process = ProcessLoop(self, name, host, number, order)  # type: ignore[abstract]
        self.processes.append(process)
        self.trace.note("spawn", name, host, process.number)
        return process

    def alive_on(self, host: str) -> list[ProcessLoop]:
        """The processes that live there, the oldest first."""
        return [process for process in self.processes if process.alive and process.host == host]

    def wall_ms(self, host: str) -> int:
        """The clock of `host`, in ms since 1970."""
        return WALL_START_MS + int(self.now_s * 1000) + self._wall_offset_ms.get(host, 0)

    def jump_wall(self, host: str, seconds: float) -> None:
        """Set that clock forward, or back where `seconds` is negative."""
        self.trace.note("clock jumps", host, seconds)
        self._wall_offset_ms[host] = self._wall_offset_ms.get(host, 0) + int(seconds * 1000)

    # -- the world's own timers --

    def call_soon(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> ReadyCallback:
        """Run `callback`, of no process, in turn."""
        return self.world.call_soon(callback, *args)

    def call_later(self, delay_s: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> ReadyTimer:
        """The same in `delay_s`."""
        return self.world.call_at(self.now_s + delay_s, callback, *args)

    def call_at(self, when_s: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> ReadyTimer:
        """The same at `when_s`."""
        return self.world.call_at(when_s, callback, *args)

    # -- running --

    def run(self, until_s: float = math.inf) -> None:
        """Run until `until_s` (everything due by then has run, and the clock shows it), until nothing is left
        to run, or until `stop`. Call it outside of any event loop. Raises SpinsForever."""
        if self._closed or asyncio._get_running_loop() is not None:
            raise RuntimeError("a simulation runs outside of other event loops, before its close")
        self._until_s = until_s
        collects = gc.isenabled()
        gc.disable()  # a collection runs callbacks, which would belong to no process's turn
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, self._let_go)
        try:
            self._run()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            self.current = None
            asyncio._set_running_loop(None)
            if collects:
                gc.enable()

    def _let_go(self, generator: AsyncGenerator[object, None]) -> None:
        """An asynchronous generator has no reference left: close it as asyncio does. Those of dead processes
        are not closed, since no line of these runs any more."""
        process = self.current
        if not self._closed and process is not None and process.alive:
            process.create_task(generator.aclose())

    def stop(self) -> None:
        """Let `run` return when everything that can run at this instant has run."""
        self._until_s = -math.inf

    def complete(self, process: ProcessLoop, work: Coroutine[object, object, T], within_s: float) -> T:
        """Run until `work`, a task of `process`, has ended; return or raise its result.

        Raises Stalled if that takes more than `within_s` (virtual).
        """
        task = process.create_task(work)
        task.add_done_callback(lambda _: self.stop())
        self.run(self.now_s + within_s)
        if not task.done():
            raise Stalled(
                f"{getattr(work, '__qualname__', work)} of {process!r} takes more than {within_s} s"
            )
        return task.result()

    def close(self) -> None:
        """The end of the run: unseen failures become findings, then every coroutine is released. Nothing that
        happens in here is part of the history."""
        if self._closed:
            return
        for process in self.processes:
            for task in process.unseen():
                if process.alive:
                    process.call_exception_handler(
                        {
                            "message": "its exception was never retrieved",
                            "task": task,
                            "exception": task.exception(),
                        }
                    )
        self._closed = True
        disabled = logging.root.manager.disable
        logging.disable()  # log lines of a `finally` in here are not part of the history
        try:
            for process in [*self.processes, self.world]:
                self.current = process
                asyncio._set_running_loop(process)
                process.close()
        finally:
            self.current = None
            asyncio._set_running_loop(None)
            logging.disable(disabled)
        self.ready.clear()
        self.timers.clear()
        self.instants.clear()

    def _run(self) -> None:
        ready, timers, instants = self.ready, self.timers, self.instants
        next_turn, now_runs = ready.popleft, asyncio._set_running_loop
        at_once = 0  # turns since time moved on
        while True:
            before = at_once
            while ready:
                batch = len(ready)
                at_once += batch
                if at_once > MAX_TURNS_AT_ONCE:
                    raise SpinsForever(
                        f"{at_once} turns at {self.now_s} s, and no end: {ready[0]._loop!r} spins, "
                        f"in {ready[0]._callback!r}"
                    )
                for _ in range(batch):
                    turn = next_turn()
                    if turn._cancelled:
                        continue
                    process = turn._loop
                    if process is not self.current:
                        self.current = process
                        now_runs(process)
                    try:
                        turn._context.run(turn._callback, *turn._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as problem:  # noqa: BLE001 (as asyncio: the loop goes on)
                        process.call_exception_handler({"message": "a callback failed", "exception": problem})
            self.turns += at_once - before
            if self.cancelled > FEWEST_CANCELLED and 2 * self.cancelled > len(timers):
                self._drop_cancelled()
            if not instants or instants[0] > self._until_s:
                break
            if instants[0] > self.now_s:
                self.now_s, at_once = instants[0], 0
            while instants and instants[0] <= self.now_s:
                for due in timers.pop(heapq.heappop(instants)):
                    due._scheduled = False
                    if due._cancelled:
                        self.cancelled -= 1
                    else:
                        due._loop._queue.append(due)
        if math.isfinite(self._until_s):
            self.now_s = max(self.now_s, self._until_s)

    # -- for the loops of the processes --

    def take_from_ready(self, process: ProcessLoop) -> list[AnyTurn]:
        """The due turns of `process`, in order; they are removed from the queue."""
        taken = []
        for index, turn in enumerate(list(self.ready)):
            if turn._loop is process and turn is not self._nothing:
                taken.append(turn)
                self.ready[index] = self._nothing
        return taken

    def found(self, process: ProcessLoop, context: Problem) -> None:
        """An unexpected error occurred."""
        problem = context.get("exception")
        task = context.get("task") or context.get("future")
        task_name = f" ({task.get_name()})" if isinstance(task, asyncio.Task) else ""
        finding = Finding(
            self.now_s,
            process.name,
            f"{context.get('message', 'an exception')}{task_name}",
            problem if isinstance(problem, BaseException) else None,
        )
        self.findings.append(finding)
        self.trace.note("finding", process.name, finding.what, type(problem).__name__)

    def _drop_cancelled(self) -> None:
        for instant, due in list(self.timers.items()):
            left = [timer for timer in due if not timer._cancelled]
            if left:
                self.timers[instant] = left
            else:
                del self.timers[instant]
        self.instants[:] = self.timers
        heapq.heapify(self.instants)
        self.cancelled = 0


def _nothing() -> None:
    """Replaces the callback of a taken turn."""
