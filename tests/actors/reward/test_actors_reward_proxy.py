"""Reward proxy: a verdict for bad answers and crashing verifiers; no caller waits for ever."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import hostile_scorer as hostile
import pytest

from gleaner.actors.protocol.reward import GetProblems, Problems, Score, Verdict
from gleaner.actors.reward.pipe import ProblemOut
from gleaner.actors.reward.pool import ProblemLost, WorkerPool
from gleaner.actors.reward.proxy import RewardProxy
from gleaner.actors.reward.scoring import WorkerSpec
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward.worker_process import WorkerProcess
from gleaner.configs.load import from_tree
from gleaner.supervisor import Refused
from gleaner.supervisor.testing import TestSystem

HERE = Path(__file__).parent
CONFIG = from_tree({"reward": {"deadline_s": 0.25, "attempts": 1, "workers": 2}}, "test")


@pytest.fixture
async def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TestSystem]:
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{HERE.parents[2]}")
    scorer = WorkerSpec(scorer="hostile_scorer:make", config={"marks": str(tmp_path)})
    async with TestSystem(tmp_path) as system:
        system.spawn(
            "reward/proxy",
            lambda: RewardProxy(RewardSettings.of(CONFIG), str(tmp_path), WorkerProcess.start, scorer),
        )
        yield system


def score(request: str, deed: int, index: int = 5) -> Score:
    return Score(
        request=request, split="train", index=index, tokens=array("I", [deed]).tobytes(), batch="step-1"
    )


async def ask(system: TestSystem, message: Score) -> Verdict:
    return await system.ask("reward/proxy", message, Verdict, deadline_s=60)


async def test_every_response_gets_its_own_verdict(
    system: TestSystem,
) -> None:
    deeds = [hostile.FINE, hostile.ABORT, hostile.HANG, hostile.RAISE, hostile.FINE]
    verdicts = await asyncio.gather(*(ask(system, score(f"r{n}", deed)) for n, deed in enumerate(deeds)))
    assert [verdict.status for verdict in verdicts] == ["ok", "lost", "lost", "verifier_failed", "ok"]
    assert [verdict.score for verdict in verdicts] == [0.5, None, None, None, 0.5]
    assert [verdict.request for verdict in verdicts] == [f"r{n}" for n in range(5)]
    assert (await ask(system, score("after", hostile.FINE))).status == "ok"
    proxy = system.system.cell("reward/proxy")
    assert proxy is not None
    assert "anchors" not in proxy.actor.summary(), "timeouts do not adapt by default"


async def test_problems_follow_their_indices_or_fail_with_reason(system: TestSystem) -> None:
    wanted = GetProblems(split="train", indices=[7, 2, 5])
    problems = await system.ask("reward/proxy", wanted, Problems, deadline_s=60)
    assert problems.prompts == [[7, 8], [2, 3], [5, 6]]
    with pytest.raises(Refused, match="no problem -1"):
        await system.ask("reward/proxy", GetProblems(split="train", indices=[1, -1]), Problems, deadline_s=60)


async def test_problem_lost_with_its_worker_is_requested_again(
    system: TestSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job waits for this problem and must not fail without it."""
    asked = 0
    whole = WorkerPool.problem

    async def problem(pool: WorkerPool, split: str, index: int, deadline_s: float) -> ProblemOut:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ProblemLost("problem 7 of 'train': signal 9")
        return await whole(pool, split, index, deadline_s=deadline_s)

    monkeypatch.setattr(WorkerPool, "problem", problem)
    wanted = GetProblems(split="train", indices=[7])
    problems = await system.ask("reward/proxy", wanted, Problems, deadline_s=60)
    assert problems.prompts == [[7, 8]]
    assert asked == 2


async def test_lost_problem_cancels_the_others_of_its_request(
    system: TestSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated request must not wait behind work that was given up."""
    asked: list[int] = []
    given_up: list[int] = []
    whole = WorkerPool.problem

    async def problem(pool: WorkerPool, split: str, index: int, deadline_s: float) -> ProblemOut:
        asked.append(index)
        if asked == [7, 8]:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                given_up.append(index)
                raise
        if asked == [7]:
            await asyncio.sleep(0.01)
            raise ProblemLost("problem 7 of 'train': no answer within 1 s")
        return await whole(pool, split, index, deadline_s=deadline_s)

    monkeypatch.setattr(WorkerPool, "problem", problem)
    wanted = GetProblems(split="train", indices=[7, 8])
    problems = await system.ask("reward/proxy", wanted, Problems, deadline_s=60)
    assert problems.prompts == [[7, 8], [8, 9]]
    assert (asked, given_up) == ([7, 8, 7, 8], [8])


async def test_bytes_that_are_no_tokens_are_refused(system: TestSystem) -> None:
    with pytest.raises(Refused, match="3 bytes are no u32 tokens"):
        await ask(system, Score(request="r", split="train", index=1, tokens=b"abc", batch="step-1"))
