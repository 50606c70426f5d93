"""Plans of a job with rounds: each from the steps of its own kind, N_prem for a period."""

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from gleaner.actors.cluster.planner import planner_of
from gleaner.actors.cluster.round_parts import parts_of
from gleaner.actors.cluster.round_planner import RoundPlanner
from gleaner.actors.cluster.seeding import SeedingPolicy, SeedingState
from gleaner.actors.cluster.seeding_model import ModelPolicy
from gleaner.actors.cluster.step_model import Machines, Work, predict
from gleaner.actors.cluster.step_statistics import TRIM_UP
from gleaner.actors.protocol.step_times import RoundKinds, Seen, StepTimes
from gleaner.actors.protocol.throughput import EnginePace
from gleaner.actors.training.round_draws import RoundDraws
from gleaner.actors.training.rounds import RoundRule
from gleaner.configs.load import load
from gleaner.configs.schema import Prices, Seeding

PACE = EnginePace(step_s=0.01, context_s=3e-7, slots=64, cache_tokens=60_000)
MACHINES = Machines(reserved=PACE, preemptible=PACE, engines=4.0, instance_engines=1.0, start_s=3.0, pace=1.0)
KINDS = ("short", "short", "short", "short", "long")


def works() -> dict[str, Work]:
    """A short round of 64 groups and 16 more, and a long one of 64."""
    rng = np.random.default_rng(3)

    def work(median: float, surplus: int) -> Work:
        lengths = [
            sorted(round(min(8000, median * math.exp(rng.normal(0, 0.5)))) for _ in range(4))
            for _ in range(16)
        ]
        lengths.sort(key=lambda group: group[-1])
        return Work(lengths, 64, 4, 100.0, 1.5e-4, 2.0, surplus)

    return {"short": work(700, 16), "long": work(4500, 0)}


@dataclass
class Job:
    """A job with rounds on machines that behave as the model."""

    policy: RoundPlanner | ModelPolicy | SeedingPolicy
    state: SeedingState
    count: int = 3
    told: bool = True
    kinds: Sequence[str] = KINDS
    machines: Machines = MACHINES

    def step(self, number: int) -> tuple[str, float, float]:
        """The kind of a step, its seconds, and what was predicted; then the next one is planned."""
        kind, ahead = (self.kinds[one % len(self.kinds)] for one in (number, number + 1))
        work, window_s = works()[kind], self.state.t_seed_s
        found = predict(work, self.machines, np.array([window_s]), np.array([float(self.count)]))
        rolled_s, end_s = float(found.rolled_s[0]), float(found.end_s[0])
        predicted_s = self.state.predicted_s
        tokens = sum(map(sum, work.lengths)) / 16 / 4 + 100.0
        train_s = tokens * 256 * 1.5e-4 + 2.0
        times = StepTimes(
            train_wait_s=max(0.0, end_s - window_s - train_s),
            remote_wait_s=max(0.0, end_s - rolled_s),
            train_s=train_s,
            remote_s=max(0.0, rolled_s - 3.0),
            mean_prem=float(self.count),
            next_prem=self.count,
            reserved_engines=4,
            seen=Seen(
                step_s=end_s, seeding_s=window_s, update_s=2.0, rolled_s=rolled_s, start_s=3.0,
                reserved=self.machines.reserved, preemptible=self.machines.preemptible, requests=256,
                groups=64, limit=8000, lengths=work.lengths, prompt_tokens=100.0, surplus=work.surplus,
            ),
            rounds=RoundKinds(done=kind, ahead=ahead, shorts=4.0, surplus=16) if self.told else None,
        )  # fmt: skip
        self.state = self.policy.next(self.state, times)
        return kind, end_s, predicted_s


def model(prices: Prices | None = None) -> ModelPolicy:
    chosen = Seeding(controller="model", initial_s=10.0, min_s=0.0, max_s=1000.0, eta=3.0, time_weight=0.0)
    return ModelPolicy(SeedingPolicy(chosen, n_reserved=4, n_prem_max=8), chosen, prices or Prices(), 1)


def planned(*, told: bool) -> list[tuple[str, float, float]]:
    policy = RoundPlanner(model())
    job = Job(policy, policy.initial(4), told=told)
    return [job.step(number) for number in range(15)]


def test_both_kinds_are_predicted_from_their_own_steps() -> None:
    for kind, end_s, predicted_s in planned(told=True)[10:]:
        assert predicted_s == pytest.approx(end_s, rel=0.1), kind


def test_kinds_in_common_are_predicted_badly_and_take_longer() -> None:
    own, common = planned(told=True)[10:], planned(told=False)[10:]
    errors = [abs(predicted_s / end_s - 1) for _, end_s, predicted_s in common]
    assert max(errors) > 0.3, "the kinds do not differ: this shows nothing"
    assert sum(end_s for _, end_s, _ in own) < sum(end_s for _, end_s, _ in common)


def test_first_round_of_a_kind_after_rounds_of_another_learns_from_itself_alone() -> None:
    policy = RoundPlanner(model())
    job = Job(policy, policy.initial(4))
    for number in range(4):
        job.step(number)
    assert job.state.kinds.keys() == {"short"}
    assert job.state.predicted_s == 0.0
    before = changed(job.state, "short", {"trim": 0.3})
    job.state = msgspec.structs.replace(before, learnt=before.kinds["short"].learnt)  # of the newest step
    job.step(4)
    assert job.state.kinds.keys() == {"short", "long"}
    learnt = job.state.kinds["long"].learnt
    assert learnt is not None
    assert len(learnt.lengths) == 1, "a long round learns from long rounds only"
    assert learnt.trim <= TRIM_UP
    of_short = before.kinds["short"].learnt
    assert of_short is not None
    assert of_short.trim > TRIM_UP, "nothing was trimmed: this shows nothing"


def test_window_of_one_kind_is_no_best_window_of_the_other_by_the_artifact_rule() -> None:
    config = load("quickstart", ["seeding.controller=artifact", "rounds.mode=tail"])
    policy = planner_of(config)
    assert isinstance(policy, RoundPlanner)
    begun, known = Job(policy, policy.initial(4)), Job(policy, policy.initial(4))
    for number in range(4):
        known.step(number)
    begun.state = msgspec.structs.replace(known.state, kinds={}, memory={}, peak=None)
    begun.step(4)
    known.step(4)
    assert known.state.kinds["long"].peak == begun.state.kinds["long"].peak


DEAR = Prices(reserved_per_hour=15.0, preemptible_per_hour=2.0)
"""With these a short round, a long one and a period are cheapest with other numbers of instances each."""


def counts_of(kinds: Sequence[str], steps: int) -> list[int]:
    """The instances wanted after each of the first steps of these kinds."""
    policy = RoundPlanner(model(DEAR))
    job = Job(policy, policy.initial(4), kinds=kinds)
    counts = []
    for number in range(steps):
        job.step(number)
        counts.append(job.state.n_prem)
    return counts


def period_cost(count: int) -> float:
    """Of the hosts of a period with so many instances, each round with its best window."""
    windows_s = np.linspace(0.0, 1000.0, 101)
    ends_s = {
        kind: float(predict(work, MACHINES, windows_s, np.full(101, float(count))).end_s.min())
        for kind, work in works().items()
    }
    each = DEAR.reserved_per_hour + count * DEAR.preemptible_per_hour
    return each * sum(ends_s[kind] for kind in KINDS)


def test_n_prem_stays_within_a_period_and_is_the_cheapest_of_all_its_rounds() -> None:
    short, long = set(counts_of(["short"], 3)), set(counts_of(["long"], 3))  # the first one is the last one
    period = set(counts_of(KINDS, 15)[9:])  # the third period, and the step before it
    assert len(period) == 1, "hosts would be rented and returned with every round"
    least = min(period_cost(count) for count in range(1, 9))
    assert period_cost(period.pop()) < 1.02 * least
    assert short.isdisjoint(long), "both kinds have the same wish: this shows nothing"
    assert all(period_cost(count) > 1.04 * least for count in short | long), "a kind's wish is the period's"


def test_windows_remembered_of_one_kind_are_no_windows_of_the_other() -> None:
    chosen = Seeding(controller="feedback", initial_s=50.0, min_s=0.0, max_s=1000.0, eta=3.0, memory=True)
    rule = SeedingPolicy(chosen, n_reserved=4, n_prem_max=8)
    rounds, rng = RoundPlanner(rule), random.Random(1)
    found, alone, differing = rounds.initial(4), dict[str, SeedingState](), 0
    for number in range(60):
        kind, ahead = KINDS[number % 5], KINDS[(number + 1) % 5]
        count = rng.randint(1, 3)
        times = StepTimes(
            train_wait_s=rng.uniform(60.0, 90.0) if kind == "long" else 0.0,
            remote_wait_s=rng.uniform(0.0, 9.0), train_s=40.0, remote_s=30.0,
            mean_prem=count + rng.choice([0.0, 0.0, 0.5]), next_prem=count, reserved_engines=4,
            rounds=RoundKinds(done=kind, ahead=ahead, shorts=4.0),
        )  # fmt: skip
        known = alone.get(kind, rule.initial(4))
        alone[kind] = rule.next(msgspec.structs.replace(known, t_seed_s=found.t_seed_s), times)
        found = rounds.next(found, times)
        assert found.kinds[kind].memory == alone[kind].memory
        own = alone.get(ahead, alone[kind])
        assert found.t_seed_s == own.memory.get(count, own.t_seed_s)
        other_s = alone[kind].memory.get(count)
        differing += kind != ahead and other_s is not None and other_s != found.t_seed_s
    assert differing > 5, "the kinds remember the same windows: this shows nothing"


@pytest.mark.parametrize("changes", [{"trim": 0.3}, {"growth": 0.08}], ids=["trim", "growth"])
def test_plan_of_a_kind_has_its_own_trim_and_growth(changes: dict[str, float]) -> None:
    policy = RoundPlanner(model())
    job = Job(policy, policy.initial(4))
    for number in range(8):
        job.step(number)
    other = Job(policy, changed(job.state, "short", changes))
    for one in (job, other):
        one.step(8)
    plans = [(one.state.t_seed_s, one.state.predicted_s) for one in (job, other)]
    assert plans[0] == plans[1]
    for one in (job, other):
        one.step(9)
    assert job.state.kinds["long"] == other.state.kinds["long"]
    assert job.state.kinds["short"] != other.state.kinds["short"]
    unlike = Job(policy, changed(job.state, "long", changes), kinds=["short", "long"])
    unlike.step(0)
    job.kinds = unlike.kinds
    job.step(0)
    assert unlike.state.predicted_s > 1.05 * job.state.predicted_s or (
        unlike.state.t_seed_s < 0.9 * job.state.t_seed_s
    ), "the plan does not depend on it: this shows nothing"


def changed(state: SeedingState, kind: str, changes: Mapping[str, float]) -> SeedingState:
    """The state after rounds of this kind in which other values were learnt."""
    known = state.kinds[kind]
    assert known.learnt is not None
    learnt = msgspec.structs.replace(known.learnt, **changes)
    return msgspec.structs.replace(
        state, kinds={**state.kinds, kind: msgspec.structs.replace(known, learnt=learnt)}
    )


def test_plan_of_a_kind_has_the_paces_that_the_other_measured_last() -> None:
    slow = EnginePace(step_s=0.02, context_s=6e-7, slots=64, cache_tokens=60_000)
    slower = dataclasses.replace(MACHINES, reserved=slow, preemptible=slow)
    policy = RoundPlanner(model())
    job = Job(policy, policy.initial(4))
    for number in range(10):
        job.step(number)
    before = job.state
    job.machines = slower
    for number in range(10, 14):
        job.step(number)
    planned_s, window = job.state.predicted_s, np.array([job.state.t_seed_s])
    ends_s = [
        float(predict(works()["long"], machines, window, np.array([3.0])).end_s[0])
        for machines in (slower, MACHINES)
    ]
    assert before.kinds["long"] == job.state.kinds["long"]
    assert planned_s == pytest.approx(ends_s[0], rel=0.1)
    assert ends_s[0] > 1.3 * ends_s[1], "machines are as before: this shows nothing"


@pytest.mark.parametrize("controller", ["feedback", "artifact", "model"])
def test_job_without_long_rounds_plans_instances_as_one_without_rounds(controller: str) -> None:
    assert RoundDraws(7, RoundRule(4, 4, 4, 6, steps=8)).shorts == math.inf
    settings = [f"seeding.controller={controller}", "fleet.n_prem_max=8"]
    samples = ["rounds.mode=tail", "rounds.prompts_factor=1", "rounds.samples_factor=1.5"]
    rounds, plain = (
        planner_of(load("quickstart", [*settings, *samples])),
        planner_of(load("quickstart", settings)),
    )
    found, due = rounds.initial(4), plain.initial(4)
    counts = []
    for remote_s in (10.0, 30.0, 60.0, 100.0):
        times = StepTimes(
            train_wait_s=1.0, remote_wait_s=0.0, train_s=40.0, remote_s=remote_s, mean_prem=2.0,
            next_prem=2, reserved_engines=4,
        )  # fmt: skip
        due = plain.next(due, times)
        kinds = RoundKinds(done="short", ahead="short", shorts=math.inf)
        found = rounds.next(found, msgspec.structs.replace(times, rounds=kinds))
        counts.append(found.n_prem)
        assert (found.n_prem, found.t_seed_s) == (due.n_prem, due.t_seed_s)
    assert len(set(counts)) > 1, "nothing changed: this shows nothing"


@pytest.mark.parametrize("controller", ["feedback", "artifact", "model"])
def test_every_controller_plans_rounds_and_its_state_survives_a_journal(controller: str) -> None:
    config = load("quickstart", [f"seeding.controller={controller}", "rounds.mode=tail"])
    policy = planner_of(config)
    assert isinstance(policy, RoundPlanner)
    job = Job(policy, policy.initial(4))
    for number in range(7):
        kept = msgspec.msgpack.decode(msgspec.msgpack.encode(job.state), type=SeedingState)
        assert kept == job.state
        job.step(number)
    assert job.state.kinds.keys() == {"short", "long"}
    assert 0 <= job.state.n_prem <= config.fleet.n_prem_max


def test_short_round_ends_with_the_groups_that_count() -> None:
    short = works()["short"]
    whole = Work(short.lengths, short.groups, 4, 100.0, 1.5e-4, 2.0)
    window_s, count = np.array([1000.0]), np.array([0.0])
    with_surplus = predict(short, MACHINES, window_s, count)
    alone = predict(whole, MACHINES, window_s, count)
    assert alone.rolled_s[0] < with_surplus.rolled_s[0] < 1.6 * alone.rolled_s[0]
    trained_s = with_surplus.end_s[0] - with_surplus.rolled_s[0]
    assert trained_s == pytest.approx(alone.end_s[0] - alone.rolled_s[0], rel=0.01), "surplus is not trained"


def whole_step(lengths: list[list[int]], reserved: int) -> StepTimes:
    """A whole step of these lengths on so many engines, without an instance."""
    machines = Machines(
        reserved=PACE, preemptible=PACE, engines=float(reserved), instance_engines=1.0, start_s=0.0
    )
    work = Work(lengths, 64, 4, 100.0, 1.5e-4, 2.0)
    found = predict(work, machines, np.array([1000.0]), np.array([0.0]))
    rolled_s, end_s = float(found.rolled_s[0]), float(found.end_s[0])
    tokens = sum(map(sum, lengths)) / len(lengths) / 4 + 100.0
    train_s = tokens * 256 * 1.5e-4 + 2.0
    return StepTimes(
        train_wait_s=max(0.0, end_s - rolled_s - train_s), remote_wait_s=0.0, train_s=train_s, remote_s=0.0,
        mean_prem=0.0, next_prem=0, reserved_engines=reserved,
        seen=Seen(
            step_s=end_s, seeding_s=rolled_s, update_s=2.0, rolled_s=rolled_s, start_s=0.0, reserved=PACE,
            preemptible=None, requests=256, groups=64, limit=8000, lengths=lengths, prompt_tokens=100.0,
        ),
        rounds=RoundKinds(done="plain", ahead="plain", shorts=4.0, surplus=16),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("hard", "engines", "pays"),
    [(0.1, 32, True), (0.0, 1, False)],
    ids=["few long prompts, many engines", "like lengths, full engines"],
)
def test_gain_of_rounds_follows_lengths_and_engines(hard: float, engines: int, pays: bool) -> None:
    rng = np.random.default_rng(5)
    lengths = [
        sorted(
            round(600 * math.exp(rng.normal(0, 0.1)) * (12 if number < hard * 20 else 1)) for _ in range(4)
        )
        for number in range(20)
    ]
    lengths.sort(key=max)
    policy = RoundPlanner(model())
    state = policy.initial(engines)
    for _ in range(3):
        state = policy.next(state, whole_step(lengths, engines))
    assert state.tail_gain is not None
    assert (state.tail_gain > 0.1) if pays else (state.tail_gain < 0.02)


def test_rounds_do_not_begin_where_chance_alone_fits_the_long_groups_into_the_surplus() -> None:
    """16 beside 64: a fifth of the groups run to the limit, some more in one short round, some fewer in
    another. With few of them rounds pay."""
    gains = []
    for hard in (2, 4):
        policy = RoundPlanner(model())
        lengths = [[8000 if number >= 20 - hard else 600] * 4 for number in range(20)]
        gains.append(policy.next(policy.initial(32), whole_step(lengths, 32)).tail_gain)
    few, many = gains
    assert few is not None
    assert many is not None
    assert few > 0.1
    assert many < 0.0


@pytest.mark.parametrize("pays", [True, False])
def test_step_ahead_is_planned_as_a_short_round_if_its_own_plan_begins_rounds(pays: bool) -> None:
    rng = np.random.default_rng(5)
    lengths = sorted(
        (
            sorted(round(600 * math.exp(rng.normal(0, 0.1)) * (12 if number < 2 else 1)) for _ in range(4))
            for number in range(20)
        ),
        key=max,
    )
    times = whole_step(lengths, 32)

    def planned_after(rounds: RoundKinds) -> SeedingState:
        policy = RoundPlanner(model())
        return policy.next(policy.initial(32), msgspec.structs.replace(times, rounds=rounds))

    whole = RoundKinds(done="plain", ahead="plain", shorts=4.0, surplus=16)
    gain = planned_after(whole).tail_gain
    assert gain is not None
    assert gain > 0.1
    if pays:
        begins, ahead = gain, "short"
    else:
        begins, ahead = gain + 0.01, "plain"
    expected = planned_after(msgspec.structs.replace(whole, ahead=ahead))
    assert planned_after(msgspec.structs.replace(whole, begins=begins)) == expected
    assert planned_after(msgspec.structs.replace(whole, ahead="short")) != planned_after(whole)


@pytest.mark.parametrize(("hard", "surplus"), [(1, 8), (4, 24), (6, 48)])
def test_plan_launches_as_much_as_the_share_of_long_prompts_needs(hard: int, surplus: int) -> None:
    rng = np.random.default_rng(5)
    lengths = [
        sorted(
            8000 if number < hard and sample == 3 else round(600 * math.exp(rng.normal(0, 0.1)))
            for sample in range(4)
        )
        for number in range(20)
    ]
    lengths.sort(key=max)
    policy = RoundPlanner(model())
    state = policy.initial(32)
    times = whole_step(lengths, 32)
    assert times.rounds is not None
    chooses = msgspec.structs.replace(times.rounds, surpluses=[8, 16, 24, 32, 48, 64])
    assert policy.next(state, times).tail_surplus is None, "the plan does not decide it"
    state = policy.next(state, msgspec.structs.replace(times, rounds=chooses))
    assert state.tail_surplus == surplus
    assert state.tail_gain is not None
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=SeedingState) == state


def test_parts_of_rounds_have_every_group_once() -> None:
    lengths = [[number, 10 * number] for number in range(1, 21)]
    kinds = RoundKinds(done="long", ahead="short", shorts=4.0, surplus=2)
    parts = parts_of({"short": lengths[:16], "long": lengths[16:]}, kinds)
    assert parts is not None
    assert sorted(parts.whole) == sorted(lengths)
    assert parts_of({"short": lengths[:16]}, kinds) is None
