"""Runner: runs the missing cells, keeps each result, and reports progress.

Owns the order of the two, and keeps all finished results after a Ctrl-C.
"""

import sys
import time
from collections import deque
from collections.abc import Sequence

from bench.evaluation import pool
from bench.evaluation.cells import Cell
from bench.evaluation.setups import Around
from bench.evaluation.simulated import CellResult
from bench.evaluation.store import Store


def run(
    wanted: Sequence[Cell], store: Store, around: Around, workers: int, *, fresh: bool, show: bool = False
) -> list[CellResult]:
    """The results of all of these, in order; stored results are not run again unless `fresh`. `show`: nothing
    is run. After a Ctrl-C only the finished ones."""
    there = {} if fresh else {cell: found for cell in wanted if (found := store.read(cell)) is not None}
    missing = [] if show else [cell for cell in wanted if cell not in there]
    progress = _CellProgress(len(there), len(missing), workers)

    def finished(result: CellResult) -> None:
        store.write(result)
        there[result.cell] = result
        progress.finished(result)

    try:
        pool.run(missing, around, store.code, workers, finished)
    except KeyboardInterrupt:
        print("stopped; what was finished is kept", file=sys.stderr)
    return [there[cell] for cell in wanted if cell in there]


class _CellProgress:
    """A line for each cell, with the time left: the next cells are assumed to take as long as the last."""

    def __init__(self, there: int, missing: int, workers: int) -> None:
        self._done, self._all, self._workers = 0, missing, workers
        self._ends = deque([time.monotonic()], maxlen=4 * workers)
        print(f"{missing} cells to run, {there} are there", file=sys.stderr)

    def finished(self, result: CellResult) -> None:
        self._done += 1
        self._ends.append(time.monotonic())
        each_s = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        print(
            f"{self._done}/{self._all} {result.cell.name}: {result.ended}, {len(result.steps)} steps, "
            f"{result.cpu_s:.0f} s of processor; {each_s * (self._all - self._done) / 60:.0f} min left",
            file=sys.stderr,
            flush=True,
        )
