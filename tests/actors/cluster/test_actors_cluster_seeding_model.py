"""ModelPolicy in a toy cluster: near the best step, quick after a change, safe."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.cluster.planner import planner_of
from gleaner.actors.cluster.seeding import SeedingPolicy, SeedingState
from gleaner.actors.cluster.seeding_model import ModelPolicy
from gleaner.actors.cluster.step_model import Machines, Work, predict
from gleaner.actors.cluster.step_statistics import POOLED_STEPS, StepStatistics, coming, learn
from gleaner.actors.protocol.step_times import Seen, StepTimes
from gleaner.actors.protocol.throughput import EnginePace
from gleaner.configs.load import load
from gleaner.configs.schema import Config, Prices, Seeding

RESERVED_ENGINES, MOST = 4, 8


def policy(
    prices: Prices | None = None,
    max_s: float = 1000.0,
    n_prem_max: int = MOST,
    time_weight: float = 0.0,
    stairs: Literal["off", "model"] = "off",
) -> ModelPolicy:
    chosen = Seeding(
        controller="model",
        initial_s=10.0,
        min_s=0.0,
        max_s=max_s,
        eta=3.0,
        time_weight=time_weight,
        stairs=stairs,
    )
    rule = SeedingPolicy(chosen, n_reserved=RESERVED_ENGINES, n_prem_max=n_prem_max)
    return ModelPolicy(rule, chosen, prices or Prices(), 1)


@dataclass
class Toy:
    """A cluster that behaves as the model of a step, with engines `off` times as slow as they appear.

    The best window is therefore known, and the controller has something to learn."""

    lengths: list[list[int]]
    off: float = 1.0
    noise: float = 0.0
    seed: int = 1
    train_token_s: float = 1.5e-4

    def __post_init__(self) -> None:
        self.pace = EnginePace(step_s=0.01, context_s=3e-7, slots=64, cache_tokens=60_000)
        self.rng = np.random.default_rng(self.seed)

    def drawn(self) -> list[list[int]]:
        """The lengths of one step."""
        return [
            [max(1, round(length * math.exp(self.rng.normal(0, self.noise)))) for length in group]
            for group in self.lengths
        ]

    def end_s(self, lengths: list[list[int]], window_s: float, count: int) -> tuple[float, float]:
        """The times of the last response and of the end of training."""
        found = predict(self.work(lengths), self.machines, np.array([window_s]), np.array([float(count)]))
        return float(found.rolled_s[0]), float(found.end_s[0])

    def work(self, lengths: list[list[int]]) -> Work:
        return Work(
            lengths=lengths,
            groups=64,
            samples=4,
            prompt_tokens=100.0,
            train_token_s=self.train_token_s,
            update_s=2.0,
        )

    @property
    def machines(self) -> Machines:
        return Machines(
            reserved=self.pace,
            preemptible=self.pace,
            engines=RESERVED_ENGINES,
            instance_engines=1.0,
            start_s=3.0,
            pace=self.off,
        )

    def times(self, state: SeedingState, count: int, coming: int | None = None) -> StepTimes:
        """The measurements of a step under this plan."""
        lengths = self.drawn()
        work = self.work(lengths)
        rolled_s, end_s = self.end_s(lengths, state.t_seed_s, count)
        tokens = sum(length + 100 for group in lengths for length in group) * 64 / len(lengths)
        train_s = tokens * work.train_token_s + work.update_s
        seeding_s = min(state.t_seed_s, rolled_s) if count else rolled_s
        return StepTimes(
            train_wait_s=max(0.0, end_s - seeding_s - train_s),
            remote_wait_s=end_s - rolled_s if count else 0.0,
            train_s=train_s,
            remote_s=rolled_s if count else 0.0,
            mean_prem=float(count),
            next_prem=count if coming is None else coming,
            reserved_engines=RESERVED_ENGINES,
            seen=Seen(
                step_s=end_s,
                seeding_s=seeding_s,
                update_s=work.update_s,
                rolled_s=rolled_s,
                start_s=3.0,
                reserved=self.pace,
                preemptible=self.pace if count else None,
                requests=256,
                groups=64,
                limit=8000,
                lengths=lengths,
                prompt_tokens=100.0,
            ),
        )

    def best_s(self, count: int) -> float:
        """The shortest step with any window."""
        windows_s = np.arange(0.0, 400.0, 5.0)
        counts = np.full(len(windows_s), float(count))
        return float(predict(self.work(self.lengths), self.machines, windows_s, counts).end_s.min())


@pytest.fixture(scope="module")
def toy() -> Toy:
    rng = np.random.default_rng(7)
    shared = rng.normal(0, 0.6, 16)
    groups = [
        sorted(round(min(8000, 2500 * math.exp(one + rng.normal(0, 0.4)))) for _ in range(4))
        for one in shared
    ]
    return Toy(sorted(groups, key=lambda group: group[-1]))


def after(policy: ModelPolicy, toy: Toy, counts: list[int]) -> SeedingState:
    """The plan after steps with these counts of instances; the last is for the count of the last step."""
    state = policy.initial(RESERVED_ENGINES)
    for at, count in enumerate(counts):
        following = counts[at + 1] if at + 1 < len(counts) else count
        state = policy.next(state, toy.times(state, count, following))
    return state


@pytest.mark.parametrize("count", [2, 6])
def test_one_measured_step_gives_nearly_the_best_step(toy: Toy, count: int) -> None:
    state = after(policy(), toy, [count])
    assert toy.end_s(toy.lengths, state.t_seed_s, count)[1] <= 1.03 * toy.best_s(count)
    assert state.predicted_s == pytest.approx(toy.end_s(toy.lengths, state.t_seed_s, count)[1], rel=0.03)


def test_slower_engines_than_apparent_are_learned(toy: Toy) -> None:
    slow = replace(toy, off=1.4)
    state = after(policy(), slow, [3] * 4)
    assert slow.end_s(toy.lengths, state.t_seed_s, 3)[1] <= 1.03 * slow.best_s(3)
    assert state.learnt is not None
    assert state.learnt.pace == pytest.approx(1.4, rel=0.05)


def test_varying_lengths_stay_within_five_percent(toy: Toy) -> None:
    noisy = replace(toy, noise=0.15)
    chosen, state = policy(), policy().initial(RESERVED_ENGINES)
    worse = []
    for _ in range(6):
        state = chosen.next(state, noisy.times(state, 4))
        worse.append(toy.end_s(toy.lengths, state.t_seed_s, 4)[1])
    assert sum(worse) / len(worse) <= 1.05 * toy.best_s(4)


def test_settled_model_is_better_than_settled_algorithm_1(toy: Toy) -> None:
    rule = policy().fallback
    settled = rule.initial(RESERVED_ENGINES)
    for _ in range(25):
        settled = rule.next(settled, toy.times(settled, 2))
    of_rule = toy.end_s(toy.lengths, settled.t_seed_s, 2)[1]
    of_model = toy.end_s(toy.lengths, after(policy(), toy, [2] * 4).t_seed_s, 2)[1]
    assert of_model < 0.98 * of_rule


def test_changed_instances_change_the_window_at_once(toy: Toy) -> None:
    fewer = after(policy(), toy, [6, 6, 2])  # the second step ends with two instances left
    more = after(policy(), toy, [2, 2, 6])
    state = policy().initial(RESERVED_ENGINES)
    planned = policy().next(state, toy.times(state, 6, coming=2))
    assert fewer.t_seed_s > more.t_seed_s + 5.0
    assert toy.end_s(toy.lengths, planned.t_seed_s, 2)[1] <= 1.04 * toy.best_s(2)


def test_growing_lengths_are_expected_to_grow(toy: Toy) -> None:
    state, chosen = policy().initial(RESERVED_ENGINES), policy()
    for step in range(10):
        longer = [[round(length * 1.04**step) for length in group] for group in toy.lengths]
        state = chosen.next(state, replace(toy, lengths=longer).times(state, 4))
    assert state.learnt is not None
    expected = sum(map(sum, coming(state.learnt))) / sum(map(len, coming(state.learnt)))
    newest = sum(map(sum, longer)) / sum(map(len, longer))
    assert 0.98 * newest < expected < 1.08 * newest


def test_slower_engines_are_learned_while_one_kind_alone_is_measured(toy: Toy) -> None:
    learnt = after(policy(), replace(toy, off=1.4), [0] * 6).learnt
    assert learnt is not None
    assert learnt.pace == pytest.approx(1.4, rel=0.05)


def test_job_without_instances_runs_colocated_and_requests_some(toy: Toy) -> None:
    state = after(policy(), toy, [0] * 3)
    assert 0.0 <= state.t_seed_s <= 1000.0
    assert state.n_prem >= 1
    assert state.learnt is not None
    assert state.learnt.pace == pytest.approx(1.0, rel=0.05)  # steps without an instance teach as well
    assert after(policy(n_prem_max=0), toy, [0] * 3).n_prem == 0


def test_stair_is_planned_where_it_shortens_a_step(toy: Toy) -> None:
    without, planned = (after(policy(stairs=stairs), toy, [0, 0]) for stairs in ("off", "model"))
    assert without.stair_s is None
    assert planned.stair_s is not None
    assert planned.predicted_s < 0.995 * without.predicted_s
    rolled_s, _ = toy.end_s(toy.lengths, math.inf, 0)
    assert 0 <= planned.stair_s < rolled_s


def test_stair_is_not_planned_where_training_is_short(toy: Toy) -> None:
    quick = after(policy(stairs="model"), replace(toy, train_token_s=1e-7), [0, 0])
    assert quick.predicted_s > 0
    assert quick.stair_s is None


def test_instance_that_shortens_no_step_is_not_wanted(toy: Toy) -> None:
    cheap = after(policy(Prices(reserved_per_hour=80.0, preemptible_per_hour=0.01)), toy, [4] * 3)
    dear = after(policy(Prices(reserved_per_hour=80.0, preemptible_per_hour=40.0)), toy, [4] * 3)
    fair = after(policy(Prices(reserved_per_hour=80.0, preemptible_per_hour=5.0)), toy, [4] * 3)
    assert dear.n_prem < fair.n_prem <= cheap.n_prem <= MOST
    hasty = Prices(reserved_per_hour=80.0, preemptible_per_hour=5.0)
    assert after(policy(hasty, time_weight=3.0), toy, [4] * 3).n_prem >= fair.n_prem


def test_wanted_count_gives_the_cheapest_token(toy: Toy) -> None:
    prices = Prices(reserved_per_hour=80.0, preemptible_per_hour=5.0)
    wanted = after(policy(prices), toy, [4] * 3).n_prem
    cost = {count: (80.0 + 5.0 * count) * toy.best_s(count) for count in range(1, MOST + 1)}
    assert cost[wanted] <= 1.03 * min(cost.values())


def test_algorithm_1_decides_while_data_is_missing(toy: Toy) -> None:
    chosen = policy()
    state = chosen.initial(RESERVED_ENGINES)
    bare = msgspec.structs.replace(toy.times(state, 3), seen=None)
    rule = chosen.fallback.next(state, bare)
    planned = chosen.next(state, bare)
    assert (planned.t_seed_s, planned.n_prem, planned.memory) == (rule.t_seed_s, rule.n_prem, rule.memory)
    assert planned.predicted_s == 0.0


def test_steps_of_a_few_seconds_are_left_to_algorithm_1(toy: Toy) -> None:
    chosen = policy()
    state = chosen.initial(RESERVED_ENGINES)
    times = toy.times(state, 3)
    assert times.seen is not None
    short = msgspec.structs.replace(times, seen=msgspec.structs.replace(times.seen, step_s=2.0))
    assert chosen.next(state, short).t_seed_s == chosen.fallback.next(state, short).t_seed_s
    assert chosen.next(state, times).t_seed_s != chosen.fallback.next(state, times).t_seed_s


def measured_step(start_s: float = 1.0) -> StepTimes:
    """A step with two instances, in which the trainer never waited."""
    seen = Seen(
        step_s=100.0, seeding_s=50.0, update_s=1.0, rolled_s=60.0, start_s=start_s, reserved=None,
        preemptible=None, requests=4, groups=2, limit=0, lengths=[[5, 5], [5, 5]], prompt_tokens=1.0,
    )  # fmt: skip
    return StepTimes(
        train_wait_s=0.0, remote_wait_s=9.0, train_s=50.0, remote_s=9.0, mean_prem=2.0, next_prem=2, seen=seen
    )


def test_window_shrinks_without_waits_and_grows_with_them() -> None:
    quiet = measured_step()
    waits = msgspec.structs.replace(quiet, train_wait_s=20.0)
    shares = [0.0]
    learnt = StepStatistics()
    for times in (quiet, quiet, waits, waits, waits, waits, waits):
        learnt = learn(learnt, times, 4)
        shares.append(learnt.trim)
    assert shares == pytest.approx([0.0, 0.04, 0.08, 0.06, 0.04, 0.02, 0.0, 0.0])
    for _ in range(30):
        learnt = learn(learnt, quiet, 4)
    assert learnt.trim == 0.5


def test_start_of_instances_is_learned_from_steps_in_which_they_decoded() -> None:
    used, unused = measured_step(start_s=8.0), measured_step(start_s=0.0)
    learnt = learn(StepStatistics(), used, 4)
    assert learnt.start_s == 8.0
    for nothing in ({"remote_s": 0.0}, {"mean_prem": 0.0}, {"remote_s": 0.0, "mean_prem": 0.0}):
        assert learn(learnt, msgspec.structs.replace(unused, **nothing), 4).start_s == 8.0
    assert learn(learnt, unused, 4).start_s == 4.0


def test_algorithm_1_continues_with_its_own_window(toy: Toy) -> None:
    chosen = policy()
    state = chosen.initial(RESERVED_ENGINES)
    alone = state
    for _ in range(3):
        times = toy.times(state, 3)
        state, alone = chosen.next(state, times), chosen.fallback.next(alone, times)
    assert state.memory == alone.memory
    assert state.rule_s == alone.t_seed_s


def test_learned_state_survives_a_restart(toy: Toy) -> None:
    state = after(policy(), toy, [3] * 3)
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=SeedingState)
    assert kept == state
    assert policy().next(kept, toy.times(kept, 3)) == policy().next(state, replace(toy).times(state, 3))


def test_learned_state_is_bounded(toy: Toy) -> None:
    state = after(policy(), toy, [3] * 5)
    assert state.learnt is not None
    assert len(state.learnt.lengths) == POOLED_STEPS
    assert len(msgspec.msgpack.encode(state)) < 4000


def test_state_from_before_the_model_is_read() -> None:
    old = msgspec.msgpack.encode({"t_seed_s": 5.0, "n_prem": 2, "memory": {3: 4.0}})
    assert msgspec.msgpack.decode(old, type=SeedingState) == SeedingState(
        t_seed_s=5.0, n_prem=2, memory={3: 4.0}
    )


def test_settings_name_the_controller_and_default_to_model() -> None:
    assert isinstance(planner_of(load("quickstart", ["seeding.controller=feedback"])), SeedingPolicy)
    assert isinstance(planner_of(load("quickstart", ["seeding.controller=model"])), ModelPolicy)
    assert isinstance(planner_of(Config()), ModelPolicy)


strange = st.one_of(st.floats(0, 1e4), st.sampled_from([-1.0, math.nan, math.inf, 1e300, 0.0]))
paces = st.one_of(
    st.none(),
    st.builds(
        EnginePace,
        step_s=st.floats(0, 10),
        context_s=st.floats(0, 1),
        slots=st.integers(0, 99),
        cache_tokens=st.integers(0, 9999),
    ),
)
measured = st.builds(
    StepTimes,
    train_wait_s=strange,
    remote_wait_s=strange,
    train_s=strange,
    remote_s=strange,
    mean_prem=st.floats(0, 9),
    next_prem=st.integers(0, 9),
    reserved_engines=st.integers(0, 8),
    instance_engines=st.floats(0, 8),
    seen=st.builds(
        Seen,
        step_s=st.floats(0, 1e4),
        seeding_s=st.floats(0, 1e4),
        update_s=st.floats(0, 100),
        rolled_s=st.floats(0, 1e4),
        start_s=st.floats(0, 1e3),
        reserved=paces,
        preemptible=paces,
        requests=st.integers(1, 64),
        groups=st.integers(1, 16),
        limit=st.integers(0, 500),
        lengths=st.lists(st.lists(st.integers(0, 500), max_size=3), max_size=4),
        prompt_tokens=st.floats(0, 100),
    ),
)


@settings(deadline=None, max_examples=30)
@given(st.lists(measured, min_size=1, max_size=3), st.floats(0, 100))
def test_plan_stays_within_its_limits_for_any_measurement(steps: list[StepTimes], max_s: float) -> None:
    chosen = policy(max_s=max(max_s, 10.0))
    state = chosen.initial(RESERVED_ENGINES)
    for times in steps:
        state = chosen.next(state, times)
        assert 0.0 <= state.t_seed_s <= max(max_s, 10.0)
        assert 1 <= state.n_prem <= MOST
        assert 0.0 <= state.predicted_s < math.inf
        learnt = state.learnt or StepStatistics()
        assert 0.0 < learnt.pace < 10.0
        assert math.isfinite(learnt.log_mean + learnt.growth + learnt.train_token_s + learnt.rest_s)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=SeedingState) == state
