"""T_seed by the rule of RLBoost's public artifact."""

import msgspec
import pytest

from gleaner.actors.cluster.artifact_seeding import ArtifactPolicy
from gleaner.actors.cluster.planner import planner_of
from gleaner.actors.cluster.seeding import SeedingPolicy, SeedingState, ThroughputPeak
from gleaner.actors.protocol.step_times import Seen, StepTimes
from gleaner.configs.load import load
from gleaner.configs.schema import Seeding

POLICY = ArtifactPolicy(
    SeedingPolicy(Seeding(initial_s=30.0, min_s=5.0, max_s=100.0, eta=3.0), n_reserved=2, n_prem_max=8)
)


def step(
    train_wait_s: float = 0.0, remote_wait_s: float = 0.0, tokens_s: float = 100.0, coming: int = 3
) -> StepTimes:
    seen = Seen(
        step_s=10.0, seeding_s=5.0, update_s=1.0, rolled_s=9.0, start_s=0.0, reserved=None, preemptible=None,
        requests=10, groups=1, limit=1000, lengths=[[int(tokens_s)]], prompt_tokens=8.0,
    )  # fmt: skip
    return StepTimes(
        train_wait_s=train_wait_s, remote_wait_s=remote_wait_s, train_s=10.0, remote_s=8.0,
        mean_prem=3.0, next_prem=coming, seen=seen,
    )  # fmt: skip


def after(*steps: StepTimes) -> SeedingState:
    state = POLICY.initial()
    for one in steps:
        state = POLICY.next(state, one)
    return state


def test_window_moves_by_a_third_of_the_difference_of_waits() -> None:
    assert after(step(train_wait_s=9.0)).t_seed_s == 33.0
    assert after(step(remote_wait_s=6.0)).t_seed_s == 28.0
    assert after(step(remote_wait_s=600.0)).t_seed_s == 5.0  # not below the shortest


def test_best_window_is_remembered_as_throughput_stops_growing() -> None:
    growing = [step(train_wait_s=9.0, tokens_s=100.0), step(train_wait_s=9.0, tokens_s=200.0)]
    assert after(*growing).memory == {}
    assert after(*growing).peak == ThroughputPeak(count=3, t_seed_s=33.0, tokens_s=200.0)
    stopped = after(*growing, step(train_wait_s=9.0, tokens_s=150.0))
    assert stopped.memory == {3: 33.0}  # the window of the step with 200 tokens a second
    assert stopped.t_seed_s == 39.0


def test_remembered_window_follows_the_newest_best_one() -> None:
    state = SeedingState(
        t_seed_s=50.0, n_prem=3, memory={3: 10.0}, peak=ThroughputPeak(count=3, t_seed_s=20.0, tokens_s=300.0)
    )
    assert POLICY.next(state, step(tokens_s=200.0)).memory == pytest.approx({3: 0.2 * 10 + 0.8 * 20})
    left = POLICY.next(state, step(coming=4))
    assert left.memory == pytest.approx({3: 0.8 * 10 + 0.2 * 20})
    assert left.t_seed_s == 50.0  # nothing is known of four


def test_known_number_of_instances_brings_its_window_back_unmoved() -> None:
    state = SeedingState(
        t_seed_s=50.0, n_prem=3, memory={4: 12.0}, peak=ThroughputPeak(count=3, t_seed_s=20.0, tokens_s=300.0)
    )
    back = POLICY.next(state, step(train_wait_s=30.0, coming=4))
    assert back.t_seed_s == 12.0
    assert back.peak == ThroughputPeak(count=4, t_seed_s=12.0, tokens_s=0.0)
    assert back.memory == {4: 12.0, 3: 20.0}


def test_plan_survives_its_journal_and_is_read_without_the_rule() -> None:
    state = after(step(train_wait_s=9.0))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=SeedingState) == state
    plain = msgspec.msgpack.encode({"t_seed_s": 1.0, "n_prem": 2, "memory": {}})
    assert msgspec.msgpack.decode(plain, type=SeedingState).peak is None


def test_number_of_instances_is_that_of_algorithm_1() -> None:
    rule = SeedingPolicy(Seeding(initial_s=30.0, min_s=5.0, max_s=100.0, eta=3.0), n_reserved=2, n_prem_max=8)
    measured = step(train_wait_s=9.0)
    assert after(measured).n_prem == rule.next(rule.initial(), measured).n_prem


def test_step_without_measurements_counts_as_no_growth() -> None:
    bare = msgspec.structs.replace(step(), seen=None)
    assert after(bare).peak == ThroughputPeak(count=3, t_seed_s=30.0, tokens_s=0.0)


def test_setting_chooses_the_rule() -> None:
    assert isinstance(planner_of(load("quickstart", ["seeding.controller=artifact"])), ArtifactPolicy)
