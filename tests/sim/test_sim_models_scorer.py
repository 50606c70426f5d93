"""Modelled verifiers in production's worker pool, on virtual time.

Verdicts are the same for the same tokens, and every fault leads to a verdict.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from gleaner.actors.reward import pipe
from gleaner.actors.reward.pool import PoolLimits, WorkerPool
from gleaner.actors.reward.scoring import ScoringWorker, WorkerSpec
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.sim.models.scorer import Fault, Problems, ScorerFaults, ScorerLaw, SimScorer
from gleaner.supervisor.virtual_time import VirtualLoop

T = TypeVar("T")
PROBLEMS = Problems(seed=1, vocabulary=500, prompt_rows=(16, 64))


def run(law: ScorerLaw, use: Callable[[WorkerPool, ScorerFaults], Awaitable[T]]) -> T:
    """Apply `use` to a started pool on virtual time."""
    loop, faults, started = VirtualLoop(), ScorerFaults(), iter(range(1000))

    async def start(spec: WorkerSpec) -> ScoringWorker:
        rng = random.Random(f"test/{next(started)}")
        return await SimScorer.start(spec, PROBLEMS, law, rng, faults)

    async def main() -> T:
        pool = WorkerPool(WorkerSpec(), start, PoolLimits(workers=2, deadline_s=5.0, attempts=2))
        pool.start()
        try:
            return await use(pool, faults)
        finally:
            await pool.close()

    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def test_problems_and_scores_follow_from_their_names() -> None:
    async def use(pool: WorkerPool, faults: ScorerFaults) -> tuple[list[list[int]], list[Verdict]]:
        prompts = [(await pool.problem("train", index)).prompt_tokens for index in range(8)]
        return prompts, [await pool.score("train", index, [1, 2, 3]) for index in range(8)]

    prompts, verdicts = run(ScorerLaw(), use)
    assert (prompts, verdicts) == run(ScorerLaw(median_s=1.0), use)
    assert all(16 <= len(prompt) <= 64 for prompt in prompts)
    assert len({tuple(prompt) for prompt in prompts}) == 8
    assert {verdict.status for verdict in verdicts} == {"ok"}


def test_words_of_a_response_take_little_time_where_verifiers_are_slow() -> None:
    async def use(pool: WorkerPool, faults: ScorerFaults) -> tuple[float, float]:
        loop, begun_s = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        await pool.read(pipe.ReadItem("train", 0, [1, 2, 3]))
        read_s = loop.time()
        await pool.score("train", 0, [1, 2, 3])
        return read_s - begun_s, loop.time() - read_s

    read_s, scored_s = run(ScorerLaw(start_s=0.0, median_s=1.0), use)
    assert read_s < 0.1 * scored_s


def test_problems_differ_in_their_solve_rate() -> None:
    rates = [sum(PROBLEMS.score("train", index, [n]) for n in range(200)) / 200 for index in range(40)]
    assert min(rates) < 0.3
    assert max(rates) > 0.7


def test_chance_of_a_right_answer_falls_with_the_length() -> None:
    falling = Problems(seed=1, vocabulary=500, prompt_rows=(16, 64), halving_rows=100.0)
    samples = [(index, n) for index in range(400) for n in range(8)]

    def rate(problems: Problems, tokens: int) -> float:
        scores = [problems.score("train", index, [n, *[7] * (tokens - 1)]) for index, n in samples]
        return sum(scores) / len(scores)

    error = 4.5 * 0.5 / len(samples) ** 0.5
    for tokens in (1, 100, 300):
        assert abs(rate(falling, tokens) - rate(PROBLEMS, tokens) * 0.5 ** (tokens / 100)) < 2 * error
    for index, n in samples:  # a length takes from the chance and adds nothing
        assert falling.score("train", index, [n, 7]) <= PROBLEMS.score("train", index, [n, 7])


def test_length_that_halves_a_chance_must_be_positive() -> None:
    with pytest.raises(ValueError, match="halving_rows: expected more than 0 tokens, got 0"):
        Problems(seed=1, vocabulary=500, prompt_rows=(16, 64), halving_rows=0.0)


def test_each_ordered_fault_costs_a_worker_not_the_item() -> None:
    async def use(pool: WorkerPool, faults: ScorerFaults) -> list[Verdict]:
        verdicts = []
        for fault in (Fault.HANG, Fault.CRASH, Fault.GARBAGE):
            faults.order(fault)
            verdicts.append(await pool.score("train", 1, [5]))
        assert pool.deaths == {"timeout": 1, "crashed": 2}
        assert faults.done == {Fault.HANG: 1, Fault.CRASH: 1, Fault.GARBAGE: 1}
        return verdicts

    verdicts = run(ScorerLaw(), use)
    assert verdicts == [Verdict(PROBLEMS.score("train", 1, [5]), "ok")] * 3


def test_lying_worker_gives_an_error_or_another_score() -> None:
    async def use(pool: WorkerPool, faults: ScorerFaults) -> list[Verdict]:
        faults.order(Fault.WRONG_KIND)
        faults.order(Fault.WRONG_KIND)  # of the second attempt
        faults.order(Fault.WRONG_SCORE)
        return [await pool.score("train", 1, [5]) for _ in range(3)]

    wrong_kind, wrong, right = run(ScorerLaw(), use)
    assert (wrong_kind.status, wrong_kind.score) == ("verifier_failed", None)
    assert wrong.score == 1.0 - right.score


def test_faults_occur_with_their_probability() -> None:
    law = ScorerLaw(chances=((Fault.CRASH, 0.2), (Fault.HANG, 0.1)))

    async def use(pool: WorkerPool, faults: ScorerFaults) -> dict[Fault, int]:
        for index in range(300):
            await pool.score("train", index, [1])
        return faults.done

    done = run(law, use)
    assert 40 <= done[Fault.CRASH] <= 110
    assert 15 <= done[Fault.HANG] <= 65


def test_scorer_that_takes_too_long_to_start_is_reported() -> None:
    async def use(pool: WorkerPool, faults: ScorerFaults) -> str:
        try:
            await pool.score("train", 1, [1])
        except RuntimeError as problem:
            return str(problem)
        return ""

    assert "no worker could be started" in run(ScorerLaw(start_s=100.0), use)
