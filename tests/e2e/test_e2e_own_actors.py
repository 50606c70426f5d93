"""A user's own actor beside a real job.

A client asks it, its process is killed, and it continues.
"""

import asyncio
import signal
from pathlib import Path

import pytest
from own_tally import AddToTally, TallyIs
from real_runs import OPEN_ENDED, WAIT_S, MakeRun, RealRun

from gleaner.rlctl.client import connect_to_run

pytestmark = [
    pytest.mark.long, pytest.mark.alone, pytest.mark.realprocess, pytest.mark.timeout(600),
]  # fmt: skip


def add(run: RealRun, amount: int) -> TallyIs:
    """Ask it as a user's program does."""

    async def ask() -> TallyIs:
        async with connect_to_run(run.run) as cluster:
            return await cluster.ask(
                "own/Tally", AddToTally(amount=amount), expect=TallyIs, deadline_s=WAIT_S
            )

    return asyncio.run(ask())


def test_own_actor_answers_and_resumes_from_journal_after_kill(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    run = make_run(OPEN_ENDED, 'job.actors=["own_tally:Tally"]')
    run.start()
    process = run.one("own", "head")
    first = add(run, 3)
    assert first.total == 3

    process.signal(signal.SIGKILL)
    run.replaced(process)
    run.wait(lambda: run.restarts("head/own"), "word of its restart")
    second = add(run, 4)
    assert second.total == 7, "the previous life journaled it"
    assert second.life > first.life
    run.until_step_after(max(run.steps(), default=0), "beside it")
    assert run.restarts("head/own") == 1
    run.stops_whole()
