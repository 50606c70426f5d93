"""Pool: runs cells in worker processes that keep their imports from cell to cell.

Owns the processes: they end with this one, at a Ctrl-C at once. A worker's unfinished cell is lost then;
finished ones were handed over.
"""

import gc
import logging
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from bench.evaluation.cells import Cell
from bench.evaluation.setups import Around
from bench.evaluation.simulated import CellResult, simulate

LOOK_S = 1.0
CELL_S = 7200.0  # wall: a cell takes a minute, and may be paused; one that takes longer hangs
CELLS_EACH = 24  # of one process; then a fresh one, so that no leak adds up


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    cell: Cell | None = None
    since_s: float = 0.0
    done: int = 0


class Failed(RuntimeError):
    """A worker died, or hung; the text names the cell."""


def run(
    cells: Sequence[Cell], around: Around, code: str, workers: int, finished: Callable[[CellResult], None]
) -> None:
    """Run all of them, in order, `workers` at a time; `finished` is called for each one. Raises Failed."""
    waiting = deque(cells)
    crew = [_start(around, code) for _ in range(min(workers, len(cells)))]
    try:
        while waiting or any(worker.cell for worker in crew):
            for number, worker in enumerate(crew):
                if worker.cell is None and waiting:
                    if worker.done >= CELLS_EACH:
                        _end(worker)
                        worker = crew[number] = _start(around, code)
                    worker.cell, worker.since_s = waiting.popleft(), time.monotonic()
                    worker.pipe.send(worker.cell)
            wait([worker.pipe for worker in crew if worker.cell], LOOK_S)
            for worker in crew:
                if worker.cell is not None:
                    _look(worker, finished)
    finally:
        for worker in crew:
            _end(worker)


def _look(worker: _Worker, finished: Callable[[CellResult], None]) -> None:
    name = worker.cell.name if worker.cell else ""
    if worker.pipe.poll():
        try:
            result: CellResult = worker.pipe.recv()
        except EOFError:
            raise Failed(f"the worker of {name} died") from None
        worker.cell = None
        worker.done += 1
        finished(result)
    elif not worker.process.is_alive():
        raise Failed(f"the worker of {name} died with {worker.process.exitcode}")
    elif time.monotonic() - worker.since_s > CELL_S:
        raise Failed(f"{name} is not over after {CELL_S:.0f} s")


def _start(around: Around, code: str) -> _Worker:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(theirs, around, code), daemon=True
    )
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _end(worker: _Worker) -> None:
    worker.process.terminate()
    worker.process.join(5.0)
    worker.pipe.close()


def _serve(pipe: Connection, around: Around, code: str) -> None:
    """A worker: receives cells, sends results."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
    gc.set_threshold(100_000, 20, 50)  # a cluster has a million long-lived objects
    logging.disable(logging.CRITICAL)  # of thousands of simulated processes
    while True:
        try:
            cell = pipe.recv()
        except EOFError:
            return
        pipe.send(simulate(cell, around, code))
