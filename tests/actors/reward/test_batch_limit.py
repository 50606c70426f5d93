"""Batches of which a reward proxy keeps something, and which of them go first."""

import hypothesis.strategies as st
from hypothesis import given

from gleaner.actors.reward.batch_limit import MOST_BATCHES, job_of, surplus_batches


@given(st.lists(st.sampled_from(["a/", "b/", "c/", ""]), max_size=3 * MOST_BATCHES))
def test_surplus_leaves_the_limit_and_the_newest_of_each_job(jobs: list[str]) -> None:
    batches = [f"{job}step-{number}" for number, job in enumerate(jobs)]
    gone = surplus_batches(batches)
    kept = [batch for batch in batches if batch not in gone]
    assert len(kept) == min(len(batches), MOST_BATCHES)
    for job in {job_of(batch) for batch in batches}:
        own = [batch for batch in batches if job_of(batch) == job]
        lost = [batch for batch in own if batch in gone]
        assert lost == own[: len(lost)], "the oldest go first"


@given(st.integers(1, MOST_BATCHES // 2), st.integers(0, 3 * MOST_BATCHES))
def test_surplus_is_of_the_job_with_the_most(few: int, many: int) -> None:
    batches = [f"few/step-{number}" for number in range(few)]
    batches += [f"many/step-{number}" for number in range(many)]
    assert all(job_of(batch) == "many" for batch in surplus_batches(batches))


def test_batches_within_the_limit_stay() -> None:
    assert surplus_batches([f"step-{number}" for number in range(MOST_BATCHES)]) == []
