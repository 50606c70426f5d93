"""The model of a step: cases worked out by hand, and the laws of every step."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.cluster import step_model
from gleaner.actors.cluster.step_model import Machines, Predicted, Work, predict
from gleaner.actors.protocol.throughput import EnginePace


def machines(
    context_s: float = 0.0, engines: float = 1.0, start_s: float = 0.0, slots: int = 0, cache: int = 0
) -> Machines:
    """Engines with a decode step of 10 ms."""
    pace = EnginePace(step_s=0.01, context_s=context_s, slots=slots, cache_tokens=cache)
    return Machines(reserved=pace, preemptible=pace, engines=engines, instance_engines=1.0, start_s=start_s)


def work(lengths: list[list[int]], train_token_s: float = 0.001, groups: int = 0) -> Work:
    return Work(
        lengths=lengths,
        groups=groups or len(lengths),
        samples=len(lengths[0]),
        prompt_tokens=0.0,
        train_token_s=train_token_s,
        update_s=2.0,
    )


def ends(work: Work, machines: Machines, *pairs: tuple[float, float]) -> Predicted:
    """The predicted steps with these windows and numbers of instances."""
    return predict(
        work, machines, np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])
    )


def test_lone_host_completes_the_rollout_then_trains() -> None:
    found = ends(work([[1000, 1000], [1000, 1000]]), machines(), (0.0, 0.0))
    assert found.rolled_s[0] == pytest.approx(10.0, rel=0.02)  # 1,000 steps of 10 ms, all requests together
    assert found.end_s[0] == pytest.approx(10.0 + 4.0 + 2.0, rel=0.02)  # 4,000 tokens, and the optimizer


def test_training_without_window_begins_with_first_complete_group() -> None:
    found = ends(work([[1000, 1000], [4000, 4000]]), machines(), (0.0, 1.0))
    # The first group is complete at 10 s and trained at 12, the second one at 40 and 48. Then the optimizer.
    assert found.rolled_s[0] == pytest.approx(40.0, rel=0.02)
    assert found.end_s[0] == pytest.approx(40.0 + 8.0 + 2.0, rel=0.03)


def test_window_beyond_the_rollout_ends_with_it() -> None:
    found = ends(work([[1000], [1000]]), machines(), (500.0, 1.0), (12.0, 1.0))
    assert found.end_s[0] == pytest.approx(found.end_s[1])


def test_training_waits_for_the_window() -> None:
    found = ends(work([[1000], [3000]]), machines(), (25.0, 1.0))
    assert found.end_s[0] == pytest.approx(max(25.0 + 4.0, 30.0 + 3.0) + 2.0, rel=0.03)


def test_instances_wait_for_their_weights() -> None:
    found = ends(work([[1000]]), machines(start_s=7.0), (0.0, 1.0))
    assert found.rolled_s[0] == pytest.approx(17.0, rel=0.02)


def test_engines_with_few_slots_take_requests_in_turn() -> None:
    found = ends(work([[1000]] * 4), machines(slots=2), (0.0, 1.0), (0.0, 2.0))
    assert found.rolled_s == pytest.approx([20.0, 10.0], rel=0.03)


def test_full_cache_lets_the_first_requests_continue() -> None:
    found = ends(work([[1000]] * 4), machines(cache=2000), (0.0, 1.0))
    # All four reach 500 tokens (5 s), two of them their end (10 s), and then the others from where they were.
    assert found.rolled_s[0] == pytest.approx(15.0, rel=0.03)


def test_sample_of_the_groups_represents_all_groups() -> None:
    rng = np.random.default_rng(1)
    groups = np.sort(rng.integers(200, 2000, (64, 4)), axis=1).tolist()
    engines = machines(context_s=1e-6, slots=32)
    whole = ends(work(groups), engines, (3.0, 2.0))
    sample = ends(work(sorted(groups, key=max)[1::4], groups=64), engines, (3.0, 2.0))
    assert sample.rolled_s[0] == pytest.approx(whole.rolled_s[0], rel=0.1)
    assert sample.end_s[0] == pytest.approx(whole.end_s[0], rel=0.1)


def test_empty_rollout_takes_no_time() -> None:
    nothing = Work(lengths=[], groups=0, samples=0, prompt_tokens=0, train_token_s=1, update_s=0)
    assert ends(nothing, machines(), (1.0, 1.0)).end_s.tolist() == [0.0]


lengths = st.lists(st.lists(st.integers(1, 5000), min_size=2, max_size=2), min_size=1, max_size=8)


@settings(deadline=None, max_examples=25)
@given(lengths, st.floats(0, 1e-5), st.floats(0, 20), st.integers(0, 64), st.floats(0, 100))
def test_step_takes_at_least_training_and_longest_response(
    groups: list[list[int]], context_s: float, start_s: float, slots: int, window_s: float
) -> None:
    job_model = machines(context_s, 2.0, start_s, slots)
    found = ends(work(groups), job_model, (window_s, 3.0), (window_s, 0.0), (0.0, 1.0))
    tokens, longest = sum(map(sum, groups)), max(map(max, groups))
    assert np.isfinite(found.end_s).all()
    assert (found.end_s >= tokens * 0.001 + 2.0 - 1e-6).all()
    assert (found.rolled_s >= longest * 0.01 * 0.98 - 1e-6).all()
    assert (found.end_s >= found.rolled_s).all()


@settings(deadline=None, max_examples=15)
@given(lengths, st.floats(1e-8, 1e-5))
def test_more_instances_never_make_steps_much_longer(groups: list[list[int]], context_s: float) -> None:
    job_model = machines(context_s)
    found = ends(work(groups * 4), job_model, *[(0.0, float(count)) for count in (1, 2, 4, 8)])
    assert (np.diff(found.end_s) <= 0.05 * found.end_s[:-1]).all()


def drawn(seed: int) -> tuple[Work, Machines]:
    """A batch with a long tail, and machines with few slots or caches or with enough of both."""
    rng = np.random.default_rng(seed)
    groups = np.ceil(rng.lognormal(5.0, 1.0, (rng.integers(2, 16), 4))).astype(int).tolist()
    job = dataclasses.replace(
        work(groups, float(rng.uniform(0, 1e-3))), prompt_tokens=50.0, surplus=int(rng.integers(0, 4))
    )
    slots, cache = int(rng.choice([0, 8])), int(rng.choice([0, 4000]))
    return job, machines(float(rng.uniform(0, 1e-5)), 4.0, float(rng.uniform(0, 2)), slots, cache)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_earliest_end_is_the_least_of_all_candidates(seed: int, count: int) -> None:
    job, engines = drawn(seed)
    windows_s, counts = np.linspace(0.0, 10.0, 5), np.full(5, float(count))
    every = predict(job, engines, windows_s, counts)
    assert predict(job, engines, windows_s, counts, earliest=True).end_s.min() == pytest.approx(
        every.end_s.min(), rel=1e-9
    )


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.booleans())
def test_what_is_complete_changes_nothing_when_it_is_left_out(seed: int, stairs: bool) -> None:
    job, engines = drawn(seed)
    windows_s, counts = np.linspace(0.0, 10.0, 5), np.array([1.0, 0.0, 2.0, 4.0, 1.0])
    stairs_s = np.linspace(0.0, 5.0, 5) if stairs else None
    found = predict(job, engines, windows_s, counts, stairs_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_model._Rollout, "forget", lambda run: None)
        every = predict(job, engines, windows_s, counts, stairs_s)
    assert found.rolled_s == pytest.approx(every.rolled_s, rel=1e-9)
    assert found.end_s == pytest.approx(every.end_s, rel=1e-9)


def test_candidates_that_cannot_end_earliest_are_not_followed() -> None:
    job, engines = work([[1000]] * 8), machines(slots=1)
    windows_s, counts = np.zeros(2), np.array([1.0, 8.0])  # 80 s and 10 s of decoding
    with pytest.MonkeyPatch.context() as patch:
        slices: list[float] = []
        decode = step_model._Rollout.slice
        patch.setattr(step_model._Rollout, "slice", lambda run: (slices.append(run.now_s), decode(run))[1])
        predict(job, engines, windows_s, counts)
        followed = len(slices)
        slices.clear()
        predict(job, engines, windows_s, counts, earliest=True)
    assert len(slices) < followed / 2
