"""Deadlines of work, from the measured durations of its kind.

An actor whose work does not return is ended.
"""

import asyncio
import threading
from pathlib import Path

from gleaner.nodeagent.exit_codes import GAVE_UP, as_cannot_run
from gleaner.supervisor import (
    Actor,
    Supervisor,
    SupervisorFailed,
    WorkDeadlines,
    WorkHung,
    child,
    one_for_one,
)
from gleaner.supervisor.testing import TestSystem


def test_first_work_of_a_kind_has_own_limit() -> None:
    deadlines = WorkDeadlines(60.0, 1800.0)
    deadlines.took("load", 2.0)
    assert deadlines.deadline_s("load") == 60.0
    assert deadlines.deadline_s("train") == 1800.0


def test_deadline_follows_largest_measured_duration_above_the_floor() -> None:
    deadlines = WorkDeadlines(60.0, 1800.0)
    for seconds in (9.0, 30.0, 1.0):
        deadlines.took("train", seconds)
    assert deadlines.deadline_s("train") == 300.0


def test_hung_text_names_work_time_and_expectation() -> None:
    deadlines = WorkDeadlines(60.0, 1800.0)
    assert deadlines.hung("train", 1800.2) == "no progress in train for 1800 s, its first"
    deadlines.took("train", 3.25)
    assert deadlines.hung("train", 60.0) == "no progress in train for 60 s, expected 3.25 s"


class Computing(Actor):
    """Computes a first piece, and then one that does not return."""

    def __init__(self, release: threading.Event) -> None:
        self._release = release

    async def on_start(self) -> None:
        deadlines = WorkDeadlines(0.2, 60.0)
        await self.ctx.offload_within(deadlines, self._release.wait, 0.0)
        self.ctx.background(self._compute(deadlines), "computing")

    async def _compute(self, deadlines: WorkDeadlines) -> None:
        await self.ctx.offload_within(deadlines, self._release.wait, 60.0)


async def test_endless_work_ends_its_whole_process(tmp_path: Path) -> None:
    """Its supervisor gives up at once, as the thread is taken; the exit code allows a new process."""
    release, over = threading.Event(), asyncio.Event()
    failed: list[Exception] = []

    def gave_up(problem: Exception) -> None:
        failed.append(problem)
        over.set()

    async with TestSystem(tmp_path) as test:
        tree = Supervisor(
            test.system, one_for_one(child("computing", lambda: Computing(release))), on_failure=gave_up
        )
        await tree.start()
        try:
            async with asyncio.timeout(30.0):
                await over.wait()
        finally:
            release.set()
    (problem,) = failed
    assert isinstance(problem, SupervisorFailed)
    assert isinstance(problem.first, WorkHung)
    assert "no progress in Event.wait for 0 s, expected" in str(problem)
    known = as_cannot_run(problem)
    assert known is not None
    assert known.code == GAVE_UP
