"""The step model with half of the engines gone early, against its definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.cluster.step_model import Machines, Work, _trained, predict
from gleaner.actors.protocol.throughput import EnginePace

PACE = EnginePace(step_s=0.02, row_s=0.0002, context_s=1e-7, slots=64)
MACHINES = Machines(reserved=PACE, preemptible=PACE, engines=4.0, instance_engines=1.0, start_s=1.0)


def work(train_token_s: float) -> Work:
    lengths = [[30 + 40 * group + 7 * sample for sample in range(4)] for group in range(12)]
    return Work(lengths, 12, 4, prompt_tokens=10.0, train_token_s=train_token_s, update_s=0.5)


times_s = st.floats(0, 50).map(lambda value: round(value, 2))


@given(st.lists(times_s, min_size=1, max_size=8), times_s, times_s)
def test_training_on_half_is_a_queue_served_at_half_the_rate(
    complete_s: list[float], window_s: float, stair_s: float
) -> None:
    stair_s = min(stair_s, window_s)
    groups = [[100]] * len(complete_s)
    one = Work(groups, len(groups), 1, prompt_tokens=0.0, train_token_s=0.02, update_s=0.25)
    now, each = stair_s, 100 * one.train_token_s
    for done_s in sorted(complete_s):
        now = max(now, done_s)
        on_half = max(0.0, min(each, (window_s - now) / 2))
        now += 2 * on_half + (each - on_half if now + 2 * on_half >= window_s else 0.0)
    done = np.array([complete_s])
    ends = _trained(one, groups, done, np.array([window_s]), np.array([stair_s]))
    np.testing.assert_allclose(ends, [now + 0.25], atol=1e-6)


def test_stair_at_the_end_of_the_window_changes_nothing() -> None:
    windows, counts = np.array([3.0, 6.0, 9.0]), np.array([1.0, 2.0, 3.0])
    plain = predict(work(2e-4), MACHINES, windows, counts)
    for stairs in (windows, np.full(3, np.inf)):
        same = predict(work(2e-4), MACHINES, windows, counts, stairs)
        np.testing.assert_array_equal(same.end_s, plain.end_s)
        np.testing.assert_array_equal(same.rolled_s, plain.rolled_s)


def test_stair_slows_rollout_and_pays_where_training_is_long() -> None:
    stairs, none = np.array([1.0, 3.0, 6.0]), np.zeros(3)
    for train_token_s, pays in ((2e-6, False), (2e-3, True)):
        alone = predict(work(train_token_s), MACHINES, none, none)
        halved = predict(work(train_token_s), MACHINES, none, none, stairs)
        assert (halved.rolled_s >= alone.rolled_s).all()
        assert (halved.end_s.min() < alone.end_s.min()) == pays
