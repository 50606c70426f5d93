"""`WorkerPool`: a verdict for every behaviour of a verifier; real worker processes, real signals."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import hostile_scorer as hostile
import psutil
import pytest
import uvloop
from held_workers import HeldWorkers
from patient_loop import PatientLoop

from gleaner.actors.reward import pipe
from gleaner.actors.reward.case_limits import CaseLimits
from gleaner.actors.reward.pool import (
    NoProblem,
    PoolFailed,
    PoolLimits,
    ProblemLost,
    Restarts,
    Verdict,
    WorkerPool,
)
from gleaner.actors.reward.scoring import WorkerDied, WorkerSpec
from gleaner.actors.reward.scoring_queue import ScoringQueue
from gleaner.actors.reward.unneeded_work import ENDS_S
from gleaner.actors.reward.worker_process import WorkerProcess, how_it_ended
from gleaner.supervisor import Intensity, Overloaded

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
AMPLE_S = 60.0  # longer than anything here; tests of hangs set a shorter deadline
START = WorkerProcess.start


@pytest.fixture(autouse=True)
def _scorer_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{ROOT}")


def spec(marks: Path, **config: object) -> WorkerSpec:
    return WorkerSpec(scorer="hostile_scorer:make", config={"marks": str(marks), **config})


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[WorkerPool]:
    pool = WorkerPool(spec(tmp_path), START, PoolLimits(workers=1, deadline_s=AMPLE_S, attempts=1))
    pool.start()
    yield pool
    await pool.close()


def children() -> list[psutil.Process]:
    """Living workers."""
    alive = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE and "gleaner.actors.reward.worker" in child.cmdline():
                alive.append(child)
    return alive


async def test_answers_are_scored_and_problems_returned(pool: WorkerPool) -> None:
    assert await pool.score("train", 7, [hostile.FINE]) == Verdict(0.7, "ok")
    assert await pool.problem("train", 3) == pipe.ProblemOut("train 3?", [3, 4])
    with pytest.raises(NoProblem, match="problem -1 of 'train': LookupError: no problem -1"):
        await pool.problem("train", -1)


async def test_response_with_limits_is_scored_alone() -> None:
    """Its program may take long, and no other response waits for the end of it."""
    queue = ScoringQueue()
    limits = (None, None, CaseLimits(30.0), CaseLimits(30.0))
    asked = [
        asyncio.create_task(queue.answer(pipe.ScoreItem("train", at, [1], one), AMPLE_S))
        for at, one in enumerate(limits)
    ]
    await asyncio.sleep(0)
    taken = []
    while len(queue):
        first = await queue.take()
        taken.append(1 + len(queue.take_joint(first)))
    assert taken == [2, 1, 1]
    for one in asked:
        one.cancel()


async def test_scorer_without_tests_ignores_their_limits(pool: WorkerPool) -> None:
    verdict = await pool.score("train", 7, [hostile.FINE], limits=CaseLimits(30.0, (2.0,)))
    assert verdict == Verdict(0.7, "ok")


async def test_lost_problem_is_retryable_and_missing_one_is_not(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoProblem) as refused:
        await pool.problem("train", -1)
    assert not isinstance(refused.value, ProblemLost)

    async def lost(*_: object) -> tuple[Verdict, float]:
        return Verdict(0.0, "lost", "no answer within 5 s"), 0.0

    monkeypatch.setattr(pool, "_submit", lost)
    with pytest.raises(ProblemLost, match="problem 3 of 'train': no answer within 5 s"):
        await pool.problem("train", 3)


DEEDS = {
    hostile.RAISE: ("verifier_failed", "ValueError: bad answer"),
    hostile.NAN: ("verifier_failed", "the score is nan"),
    hostile.INFINITE: ("verifier_failed", "the score is -inf"),
    hostile.TEXT: ("verifier_failed", "the score is no number but '0.5'"),
    hostile.NOTHING: ("verifier_failed", "the score is no number but None"),
    hostile.ALLOCATE: ("verifier_failed", "MemoryError"),
    hostile.PRINT: ("ok", ""),
    hostile.HANG: ("lost", "no answer within 0.3 s"),
    hostile.ABORT: ("lost", "signal 6 (SIGABRT)"),
    hostile.SEGFAULT: ("lost", "signal 11 (SIGSEGV)"),
    hostile.EXIT: ("lost", "exit code 3"),
    hostile.CHATTER: ("lost", "garbage"),
}


async def test_any_verifier_behaviour_gives_a_verdict(pool: WorkerPool) -> None:
    for deed, (status, detail) in DEEDS.items():
        verdict = await pool.score("train", 1, [deed], deadline_s=0.3 if deed == hostile.HANG else None)
        assert verdict.status == status
        assert detail in verdict.detail
        assert verdict.score == (0.1 if status == "ok" else None)
        assert await pool.score("train", 2, [hostile.FINE]) == Verdict(0.2, "ok")
    assert pool.deaths == {"timeout": 1, "crashed": 4}


async def test_immediate_failure_is_retried_by_a_living_worker(
    pool: WorkerPool,
) -> None:
    asked = [pool.score("train", index, [hostile.RAISE_ONCE]) for index in range(3)]
    assert await asyncio.gather(*asked) == [Verdict(index / 10, "ok") for index in range(3)]
    assert pool.deaths == {}


async def test_stalled_proxy_does_not_count_workers_as_hung(pool: WorkerPool) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, PatientLoop)
    assert await pool.score("train", 1, [hostile.FINE]) == Verdict(0.1, "ok")
    (worker,) = children()
    worker.suspend()
    asked = asyncio.create_task(pool.score("train", 2, [hostile.FINE]))
    await asyncio.sleep(0.1)
    loop.stand_still(2 * AMPLE_S)  # with the item in the worker's hands
    worker.resume()
    assert await asked == Verdict(0.2, "ok")
    assert not pool.deaths


async def test_items_behind_a_hostile_one_are_unaffected(tmp_path: Path) -> None:
    pool = WorkerPool(spec(tmp_path), START, PoolLimits(workers=2, deadline_s=AMPLE_S, attempts=2))
    pool.start()
    deeds = [hostile.ABORT, *[hostile.FINE] * 10, hostile.EXIT, *[hostile.FINE] * 10]
    verdicts = await asyncio.gather(*(pool.score("train", 5, [deed]) for deed in deeds))
    await pool.close()
    expected = ["lost", *["ok"] * 10, "lost", *["ok"] * 10]
    assert [verdict.status for verdict in verdicts] == expected
    assert 4 <= pool.deaths["crashed"] <= 6, (
        "each hostile item alone twice, after at most one try with others"
    )


async def test_item_that_crashed_once_is_retried(tmp_path: Path) -> None:
    pool = WorkerPool(spec(tmp_path), START, PoolLimits(workers=1, deadline_s=AMPLE_S, attempts=2))
    pool.start()
    assert await pool.score("train", 4, [hostile.ONCE]) == Verdict(0.4, "ok")
    assert pool.deaths["crashed"] == 1
    await pool.close()


async def test_worker_killed_while_idle_is_replaced(pool: WorkerPool) -> None:
    await pool.score("train", 1, [hostile.FINE])
    [worker] = children()
    worker.send_signal(signal.SIGKILL)
    while psutil.pid_exists(worker.pid):  # until it is reaped
        await asyncio.sleep(0.001)
    assert await pool.score("train", 2, [hostile.FINE]) == Verdict(0.2, "ok")


async def test_processes_forked_by_a_hung_verifier_are_killed(pool: WorkerPool, tmp_path: Path) -> None:
    for deadline_s in (1.0, 10.0, 60.0):  # the longer ones are for a slow machine
        assert (await pool.score("train", 1, [hostile.FORK], deadline_s=deadline_s)).status == "lost"
        if (tmp_path / "forked").exists():
            break
    forked = int((tmp_path / "forked").read_text())
    async with asyncio.timeout(60):
        while psutil.pid_exists(forked) and psutil.Process(forked).status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.01)


async def test_full_queue_is_reported_at_once(tmp_path: Path) -> None:
    pool = WorkerPool(spec(tmp_path), START, PoolLimits(workers=1, deadline_s=60, max_queue=2))
    pool.start()
    waiting = [asyncio.create_task(pool.score("train", 1, [hostile.HANG])) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="2 items wait"):
        await pool.score("train", 1, [hostile.FINE])
    await pool.close()
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, PoolFailed)
    with pytest.raises(PoolFailed, match="it was closed"):
        await pool.score("train", 1, [hostile.FINE])
    assert children() == []


async def test_unloadable_scorer_fails_every_item_with_the_reason(tmp_path: Path) -> None:
    pool = WorkerPool(spec(tmp_path, unusable=True), START, PoolLimits(workers=1, deadline_s=AMPLE_S))
    pool.start()
    with pytest.raises(PoolFailed, match="hostile_scorer:make: KeyError: 'the task is not known'"):
        await pool.score("train", 1, [hostile.FINE])
    await pool.close()


async def test_workers_that_die_at_start_end_the_pool(tmp_path: Path) -> None:
    intensity = Intensity(restarts=2, within_s=60.0, backoff_s=0.01)
    pool = WorkerPool(
        spec(tmp_path, stillborn=True), START, PoolLimits(workers=1, deadline_s=AMPLE_S), intensity=intensity
    )
    pool.start()
    with pytest.raises(PoolFailed, match="3 times in a row: exit code 9"):
        await pool.score("train", 1, [hostile.FINE])
    assert pool.deaths["start"] == 3
    await pool.close()


async def test_cancelled_caller_does_not_block_the_next(pool: WorkerPool) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await pool.score("train", 1, [hostile.FINE])
    assert await pool.score("train", 2, [hostile.FINE]) == Verdict(0.2, "ok")


@pytest.fixture
async def held() -> AsyncIterator[tuple[WorkerPool, HeldWorkers]]:
    """A pool with one worker, whose problems 1 to 3 are held."""
    workers = HeldWorkers(1, 2, 3)
    pool = WorkerPool(WorkerSpec(), workers.start, PoolLimits(workers=1, deadline_s=AMPLE_S))
    pool.start()
    yield pool, workers
    await pool.close()


async def begun(workers: HeldWorkers, *indices: int) -> None:
    async with asyncio.timeout(AMPLE_S):
        while not all(workers.begun[index] for index in indices):
            await asyncio.sleep(0.01)


async def test_worker_is_replaced_when_its_only_item_is_cancelled(
    held: tuple[WorkerPool, HeldWorkers],
) -> None:
    """Neither the item nor the worker has failed: no death is counted, and the next one waits for nothing."""
    pool, workers = held
    item = asyncio.create_task(pool.score("train", 1, [1]))
    await begun(workers, 1)
    item.cancel()
    async with asyncio.timeout(AMPLE_S / 2):  # a hung one would take all of its deadline
        assert await pool.score("train", 7, [1]) == Verdict(7.0, "ok")
    assert (pool.cancelled, pool.deaths.total(), workers.scored[1]) == (1, 0, 0)


async def test_worker_goes_on_when_one_of_several_items_is_cancelled(
    held: tuple[WorkerPool, HeldWorkers],
) -> None:
    pool, workers = held
    items = [asyncio.create_task(pool.score("train", index, [1])) for index in (1, 2, 3)]
    await begun(workers, 1)
    workers.let_go(1)
    await begun(workers, 2)  # these two together
    items[1].cancel()
    await asyncio.sleep(2 * ENDS_S)
    workers.let_go(2, 3)
    assert await items[2] == Verdict(3.0, "ok")
    assert (pool.cancelled, workers.begun[3]) == (0, 1)


async def test_worker_stays_when_a_cancelled_item_ends_soon(held: tuple[WorkerPool, HeldWorkers]) -> None:
    pool, workers = held
    item = asyncio.create_task(pool.score("train", 1, [1]))
    await begun(workers, 1)
    item.cancel()
    await asyncio.sleep(0)
    workers.let_go(1)
    assert await pool.score("train", 7, [1]) == Verdict(7.0, "ok")
    assert (pool.cancelled, workers.scored[1]) == (0, 1)


def test_ask_of_a_worker_whose_pipe_is_closed_finds_it_dead() -> None:
    """uvloop's transport raises RuntimeError then, which would end the pool with every item in it."""

    async def run() -> None:
        process = await asyncio.create_subprocess_exec(
            "sleep", "600", stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        worker = WorkerProcess(process)
        try:
            assert process.stdin is not None
            process.kill()
            async with asyncio.timeout(AMPLE_S):
                while not process.stdin.is_closing():
                    await asyncio.sleep(0.01)
            with pytest.raises(WorkerDied, match="SIGKILL"):
                await worker.ask(pipe.pack(pipe.ProblemItem("train", 1)), AMPLE_S)
        finally:
            await worker.kill()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


PARENT = """
import asyncio, sys
from gleaner.actors.reward.pool import PoolLimits, WorkerPool
from gleaner.actors.reward.scoring import WorkerSpec
from gleaner.actors.reward.unneeded_work import ENDS_S
from gleaner.actors.reward.worker_process import WorkerProcess

async def main():
    spec = WorkerSpec("hostile_scorer:make", {"marks": "."})
    pool = WorkerPool(spec, WorkerProcess.start, PoolLimits(workers=1, deadline_s=60))
    pool.start()
    await pool.problem("train", 1)
    print("ready", flush=True)
    await pool.score("train", 1, [1])

asyncio.run(main())
"""


def test_workers_die_with_the_pool_process() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        workers = psutil.Process(parent.pid).children()
        assert len(workers) == 1
        parent.kill()
        parent.wait(60)
        _, alive = psutil.wait_procs(workers, timeout=60)
        assert alive == []
    finally:
        parent.kill()
        parent.wait(60)
        parent.stdout.close() if parent.stdout else None


def test_restarts_beyond_the_intensity_back_off() -> None:
    restarts = Restarts(Intensity(restarts=2, within_s=10.0, backoff_s=0.5))
    assert [restarts.delay_s(now) for now in (0.0, 0.1, 0.2, 0.3, 0.4)] == [0.0, 0.0, 0.5, 1.0, 2.0]
    assert restarts.delay_s(5.0) == 4.0
    assert restarts.delay_s(5.1) == 5.0, "the delay has a maximum"
    assert restarts.delay_s(30.0) == 0.0, "old restarts are forgotten"


def test_process_ends_have_names() -> None:
    assert how_it_ended(-11) == "signal 11 (SIGSEGV)"
    assert how_it_ended(-9) == "signal 9 (SIGKILL)"
    assert how_it_ended(0) == "exit code 0"


def test_frames_that_no_worker_accepts_are_refused() -> None:
    with pytest.raises(pipe.BadFrame, match="announced"):
        pipe.length(b"\xff\xff\xff\xff")
    with pytest.raises(pipe.BadFrame, match="no frame"):
        pipe.answer(b"\xc1\x80")
    with pytest.raises(pipe.BadFrame, match="are sent"):
        pipe.pack(pipe.ScoreItem("train", 1, [2**31] * 4_000_000))
