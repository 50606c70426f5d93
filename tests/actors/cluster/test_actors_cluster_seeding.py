"""SeedingPolicy (Algorithm 1 of RLBoost): steps worked out by hand, and its laws."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.cluster.seeding import SeedingPolicy, SeedingState
from gleaner.actors.protocol.step_times import StepTimes
from gleaner.configs.schema import Seeding


def policy(
    eta: float = 4.0, initial_s: float = 10.0, max_s: float = 60.0, n_reserved: int = 2, memory: bool = True
) -> SeedingPolicy:
    settings = Seeding(eta=eta, initial_s=initial_s, min_s=0.0, max_s=max_s, memory=memory)
    return SeedingPolicy(settings, n_reserved=n_reserved, n_prem_max=8)


def times(
    train_wait_s: float = 0.0,
    remote_wait_s: float = 0.0,
    train_s: float = 30.0,
    remote_s: float = 40.0,
    mean_prem: float = 3.0,
    next_prem: int = 3,
) -> StepTimes:
    return StepTimes(
        train_wait_s=train_wait_s,
        remote_wait_s=remote_wait_s,
        train_s=train_s,
        remote_s=remote_s,
        mean_prem=mean_prem,
        next_prem=next_prem,
    )


def state(t_seed_s: float = 10.0, n_prem: int = 2, **memory: float) -> SeedingState:
    return SeedingState(
        t_seed_s=t_seed_s, n_prem=n_prem, memory={int(key[1:]): value for key, value in memory.items()}
    )


def test_first_step_uses_t_init_and_reserved_count() -> None:
    assert policy().initial() == SeedingState(t_seed_s=10.0, n_prem=2, memory={})


def test_waiting_trainer_seeds_longer() -> None:
    # line 9: 10 + (8 - 2) / 4 = 11.5; line 10: (40 * 3 + 11.5 * 2) / 30 = 4.77 -> 5; line 12: M[3] = 11.5
    after = policy().next(state(), times(train_wait_s=8.0, remote_wait_s=2.0))
    assert after == SeedingState(t_seed_s=11.5, n_prem=5, memory={3: 11.5})


def test_waiting_remote_instances_shorten_seeding() -> None:
    # line 9: 10 + (0 - 12) / 4 = 7; line 10: (40 * 3 + 7 * 2) / 30 = 4.47 -> 5
    after = policy().next(state(), times(remote_wait_s=12.0))
    assert after == SeedingState(t_seed_s=7.0, n_prem=5, memory={3: 7.0})


def test_changing_instances_retrieve_but_do_not_store_windows() -> None:
    # line 9: 10 + 4/4 = 11; line 10: (40*3.4 + 22)/30 = 5.27 -> 6; line 11: 3.4 != 5; line 14: M[5] = 6
    before = state(m5=6.0, m3=10.0)
    after = policy().next(before, times(train_wait_s=4.0, mean_prem=3.4, next_prem=5))
    assert after == SeedingState(t_seed_s=6.0, n_prem=6, memory={5: 6.0, 3: 10.0})


def test_unknown_instance_count_uses_the_tuned_window() -> None:
    after = policy().next(state(m3=10.0), times(train_wait_s=4.0, mean_prem=3.4, next_prem=4))
    assert (after.t_seed_s, after.memory) == (11.0, {3: 10.0})


def test_later_step_replaces_the_remembered_window() -> None:
    after = policy().next(state(m3=25.0), times(train_wait_s=4.0))
    assert (after.t_seed_s, after.memory) == (11.0, {3: 11.0})


def test_mean_that_differs_by_rounding_counts_as_equal() -> None:
    mean = sum([0.1] * 30)  # 3 instances in tenths of a step: 3.0000000000000013
    assert mean != 3
    assert policy().next(state(), times(mean_prem=mean)).memory == {3: 10.0}


def test_job_without_preemptible_instances_keeps_working() -> None:
    # line 10: (0 * 0 + 10 * 2) / 30 = 0.67 -> 1: one instance would help
    after = policy().next(state(), times(remote_s=0.0, mean_prem=0.0, next_prem=0))
    assert after == SeedingState(t_seed_s=10.0, n_prem=1, memory={0: 10.0})


def test_fleet_never_shrinks_to_none_for_good() -> None:
    after = policy().next(state(t_seed_s=0.0), times(remote_s=0.0, mean_prem=0.0, next_prem=0))
    assert (after.t_seed_s, after.n_prem) == (0.0, 1)
    none_allowed = SeedingPolicy(Seeding(), n_reserved=1, n_prem_max=0)
    assert none_allowed.next(none_allowed.initial(), times()).n_prem == 0


def test_plan_wants_no_more_than_shared_devices_carry() -> None:
    busy = times(train_s=10.0, remote_s=400.0)
    assert policy().next(state(), busy).n_prem == 8
    assert policy().next(state(), msgspec.structs.replace(busy, carried_prem=2)).n_prem == 2
    idle = msgspec.structs.replace(busy, train_s=0.0, carried_prem=2)
    assert policy().next(state(n_prem=5), idle).n_prem == 2


def test_float_error_does_not_round_up_whole_numbers() -> None:
    # (0.1 + 0.2) * 10 = 3.0000000000000004
    after = policy(initial_s=0.0).next(
        state(t_seed_s=0.0), times(train_s=1.0, remote_s=1.0, mean_prem=(0.1 + 0.2) * 10)
    )
    assert after.n_prem == 3


def test_policy_without_memory_stores_and_retrieves_nothing() -> None:
    after = policy(memory=False).next(state(m3=50.0), times(train_wait_s=4.0))
    assert after == SeedingState(t_seed_s=11.0, n_prem=5, memory={3: 50.0})


def test_step_without_training_keeps_the_bound() -> None:
    assert policy().next(state(n_prem=4), times(train_s=0.0)).n_prem == 4


def test_state_survives_the_journal() -> None:
    kept = state(m3=10.5, m0=2.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(kept), type=SeedingState) == kept


def test_fleet_without_reserved_engines_is_refused() -> None:
    with pytest.raises(ValueError, match="n_reserved is 0"):
        SeedingPolicy(Seeding(), n_reserved=0, n_prem_max=2)


seconds = st.floats(0, 1e5)
any_seconds = st.one_of(seconds, st.sampled_from([math.nan, math.inf, -1.0]))
counts = st.integers(0, 8)
steps = st.builds(
    StepTimes,
    train_wait_s=any_seconds,
    remote_wait_s=any_seconds,
    train_s=any_seconds,
    remote_s=any_seconds,
    mean_prem=st.one_of(counts.map(float), st.floats(0, 8)),
    next_prem=counts,
)


@given(st.lists(steps, max_size=30))
def test_every_history_stays_within_the_clamps(history: list[StepTimes]) -> None:
    rule = policy()
    now = rule.initial()
    for step in history:
        now = rule.next(now, step)
        assert 0.0 <= now.t_seed_s <= 60.0
        assert 1 <= now.n_prem <= 8
        assert all(0.0 <= window <= 60.0 for window in now.memory.values())


@given(st.lists(steps, max_size=10), steps)
def test_remembered_instance_count_gets_its_window(history: list[StepTimes], last: StepTimes) -> None:
    rule = policy()
    now = rule.initial()
    for step in [*history, last]:
        now = rule.next(now, step)
    assert now.memory.get(last.next_prem, now.t_seed_s) == now.t_seed_s
    if last.mean_prem == last.next_prem:
        assert last.next_prem in now.memory


@given(seconds, seconds, seconds, counts)
def test_window_follows_the_waits(wait_s: float, more_s: float, other_s: float, prem: int) -> None:
    def window_s(train_wait_s: float, remote_wait_s: float) -> float:
        step = times(train_wait_s, remote_wait_s, mean_prem=float(prem), next_prem=prem)
        return policy().next(state(), step).t_seed_s

    assert window_s(wait_s + more_s, other_s) >= window_s(wait_s, other_s)
    assert window_s(other_s, wait_s + more_s) <= window_s(other_s, wait_s)


@given(seconds, st.floats(0.001, 1e4))
def test_bound_of_instances_covers_the_rollout(remote_s: float, train_s: float) -> None:
    step = times(remote_s=remote_s, train_s=train_s)
    wanted = (remote_s * 3 + 10.0 * 2) / train_s
    n_prem = policy().next(state(), step).n_prem
    assert n_prem in (1, 8) or wanted - 1e-5 <= n_prem < wanted + 1
    assert n_prem >= min(wanted, 8) - 1e-5
