"""Unseen rounds: the first round of a kind is planned from the lengths of another one."""

import math

import msgspec
import numpy as np
import pytest

from gleaner.actors.cluster.round_planner import RoundPlanner
from gleaner.actors.cluster.seeding import KindState, SeedingPolicy, SeedingState
from gleaner.actors.cluster.seeding_model import ModelPolicy
from gleaner.actors.cluster.step_model import Machines, Work, predict
from gleaner.actors.cluster.step_statistics import StepStatistics, of_lengths
from gleaner.actors.cluster.unseen_rounds import guessed_long, of_whole_steps
from gleaner.actors.protocol.step_times import RoundKinds, Seen, StepTimes
from gleaner.actors.protocol.throughput import EnginePace
from gleaner.configs.schema import Prices, Seeding

LIMIT = 8000
PACE = EnginePace(step_s=0.01, context_s=3e-7, slots=64, cache_tokens=60_000)
MACHINES = Machines(reserved=PACE, preemptible=PACE, engines=4.0, instance_engines=1.0, start_s=3.0)
SHORTS, SURPLUS = 4.0, 16
INSTANCES = 3
SETTINGS = Seeding(controller="model", initial_s=10.0, min_s=0.0, max_s=1000.0, eta=3.0, time_weight=0.0)


def lengths_of(hard: int, of: int = 20) -> list[list[int]]:
    """Groups of whole steps, from the shortest one on; the last ones are hard."""
    rng = np.random.default_rng(3)
    groups = [
        [round(min(LIMIT, (5000 if at < hard else 700) * math.exp(rng.normal(0, 0.3)))) for _ in range(4)]
        for at in range(of)
    ]
    return sorted((sorted(group) for group in groups), key=max)


WHOLE = lengths_of(hard=3)
PARTS = {"plain": WHOLE, "short": WHOLE[:16], "long": WHOLE[16:]}


def measured(kind: str, ahead: str, window_s: float, count: int = INSTANCES) -> tuple[StepTimes, float]:
    """A step of this kind, on machines that behave as the model; its seconds."""
    surplus = SURPLUS if kind == "short" else 0
    work = Work(PARTS[kind], 64, 4, 100.0, 1.5e-4, 2.0, surplus)
    found = predict(work, MACHINES, np.array([window_s]), np.array([float(count)]))
    rolled_s, end_s = float(found.rolled_s[0]), float(found.end_s[0])
    tokens = sum(map(sum, work.lengths)) / len(work.lengths) / 4 + 100.0
    train_s = tokens * 256 * 1.5e-4 + 2.0
    times = StepTimes(
        train_wait_s=max(0.0, end_s - window_s - train_s), remote_wait_s=max(0.0, end_s - rolled_s),
        train_s=train_s, remote_s=max(0.0, rolled_s - 3.0), mean_prem=float(count), next_prem=count,
        reserved_engines=4,
        seen=Seen(
            step_s=end_s, seeding_s=window_s, update_s=2.0, rolled_s=rolled_s, start_s=3.0, reserved=PACE,
            preemptible=PACE, requests=256, groups=64, limit=LIMIT, lengths=work.lengths,
            prompt_tokens=100.0, surplus=surplus,
        ),
        rounds=RoundKinds(done=kind, ahead=ahead, shorts=SHORTS, surplus=SURPLUS),
    )  # fmt: skip
    return times, end_s


def model() -> ModelPolicy:
    rule = SeedingPolicy(SETTINGS, n_reserved=4, n_prem_max=8)
    return ModelPolicy(rule, SETTINGS, Prices(reserved_per_hour=15.0, preemptible_per_hour=2.0), 1)


def job(*kinds: str) -> list[tuple[str, float, SeedingState]]:
    """Kind and seconds of each step, with the plan that it had."""
    plan = RoundPlanner(model())
    state, steps = plan.initial(4), []
    for kind, ahead in zip(kinds, [*kinds[1:], "short"], strict=True):
        times, end_s = measured(kind, ahead, state.t_seed_s)
        steps.append((kind, end_s, state))
        state = plan.next(state, times)
    return [*steps, ("", 0.0, state)]


def best_s(kind: str) -> float:
    return min(measured(kind, kind, float(window_s))[1] for window_s in np.linspace(0.0, 200.0, 81))


def test_first_rounds_after_whole_steps_have_windows_of_their_own() -> None:
    """Within some percent of the best window, and as long as was predicted."""
    steps = job("plain", "plain", "short", "short", "long")
    for kind, end_s, plan in (steps[2], steps[4]):
        assert plan.predicted_s == pytest.approx(end_s, rel=0.1), kind
        assert end_s < 1.05 * best_s(kind), kind
    kept_s = measured("long", "short", steps[3][2].t_seed_s)[1]
    assert kept_s > 1.3 * steps[4][1], "the window of short rounds is as good: this shows nothing"


def test_first_long_round_without_whole_steps_has_a_guessed_window_and_no_predicted_time() -> None:
    steps = job("short", "short", "long", "short")
    long = steps[2]
    assert long[2].predicted_s == 0.0, "a guess was given out for a prediction"
    assert long[1] < 0.9 * measured("long", "short", steps[1][2].t_seed_s)[1]
    assert steps[3][2].kinds.keys() == {"short", "long"}


def test_number_of_instances_is_planned_for_a_period_before_its_first_round() -> None:
    """Not for the whole steps before it: rounds want another number."""
    plan, before = RoundPlanner(model()), job("plain", "plain")[-1][2]
    ahead = plan.next(before, measured("plain", "short", before.t_seed_s)[0])
    stays = plan.next(before, measured("plain", "plain", before.t_seed_s)[0])
    both = job("plain", "short", "short", "short", "short", "long")[-1][2]
    assert ahead.n_prem == both.n_prem
    assert ahead.n_prem != stays.n_prem, "both want as many: this shows nothing"


def statistics(**lengths: list[list[int]]) -> dict[str, KindState]:
    return {
        kind: KindState(t_seed_s=1.0, learnt=of_lengths(StepStatistics(limit=LIMIT), groups, 0))
        for kind, groups in lengths.items()
    }


ROUNDS = RoundKinds(done="plain", ahead="short", shorts=SHORTS, surplus=SURPLUS)


def test_parts_of_whole_steps_are_all_of_their_groups() -> None:
    kinds = statistics(plain=WHOLE)
    short, long = (
        of_whole_steps(kind, kinds, StepStatistics(limit=LIMIT), ROUNDS) for kind in ("short", "long")
    )
    assert short is not None
    assert long is not None
    assert (short.surplus, long.surplus) == (SURPLUS, 0)
    assert len(short.lengths[0]) == 4 * len(long.lengths[0])
    assert max(map(max, short.lengths[0])) <= min(map(max, long.lengths[0]))
    more = of_whole_steps("short", kinds, StepStatistics(), msgspec.structs.replace(ROUNDS, spare=5))
    assert more is not None
    assert more.surplus == SURPLUS + 5
    assert of_whole_steps("plain", kinds, StepStatistics(), ROUNDS) is None
    assert of_whole_steps("long", statistics(short=WHOLE), StepStatistics(), ROUNDS) is None
    never = msgspec.structs.replace(ROUNDS, shorts=math.inf)
    assert of_whole_steps("long", kinds, StepStatistics(), never) is None


def test_guessed_responses_are_longer_than_those_that_counted_and_within_the_limit() -> None:
    short = PARTS["short"]
    edge = max(map(max, short))
    guessed = guessed_long(statistics(short=short), StepStatistics(limit=LIMIT), LIMIT)
    assert guessed is not None
    assert all(edge < max(group) <= LIMIT for group in guessed.lengths[0])
    assert len(guessed.lengths[0]) == len(short)
    assert all(min(group) >= 1 for group in guessed.lengths[0])
    for limit in (0, edge):
        assert guessed_long(statistics(short=short), StepStatistics(), limit) is None
    assert guessed_long({}, StepStatistics(), LIMIT) is None
