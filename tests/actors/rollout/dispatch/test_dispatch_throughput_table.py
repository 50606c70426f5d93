"""Profile: the measured model from few points, by the paper's definitions."""

import numpy as np
import pytest

from gleaner.actors.engine.worker.port import StepCommands
from gleaner.actors.engine.worker.throughput_report import UnreportedWork
from gleaner.actors.protocol.instances import Work as Dispatched
from gleaner.actors.protocol.throughput import Work
from gleaner.actors.rollout.dispatch.remaining_length import LengthHistogram
from gleaner.actors.rollout.dispatch.throughput_table import (
    MEMORY_S,
    PLATEAU_SHARE,
    Profiles,
    StepModel,
    ThroughputTable,
)
from gleaner.sim.models.batching import Entry, Limits
from gleaner.sim.models.clock import Immediate
from gleaner.sim.models.copies import Copies
from gleaner.sim.models.engine_cost import EngineCost
from gleaner.sim.models.engine_host import Engine, SimEngineHost
from gleaner.sim.models.lengths import LengthLaw
from tests.sim.test_sim_models_engine_host import World, fetched

TRUE = StepModel(base_s=6e-3, row_s=2e-5, context_s=3e-8)


def turns(rows: int, context: float, steps: int = 100, model: StepModel = TRUE, noise: float = 1.0) -> Work:
    seconds = steps * model.step_s(float(rows), rows * context) * noise
    return Work(seconds=seconds, steps=steps, tokens=steps * rows, attended=steps * rows * context)


def test_model_is_recovered_from_three_buckets() -> None:
    profile = ThroughputTable()
    profile.add([turns(4, 9000.0), turns(30, 5000.0)])
    assert profile.model is None, "two points do not determine a third"
    profile.add([turns(200, 1000.0)])
    assert profile.model is not None
    for rows, context in ((1, 12000.0), (64, 4000.0), (256, 8000.0)):
        found, true = profile.model.step_s(rows, rows * context), TRUE.step_s(rows, rows * context)
        assert found == pytest.approx(true, rel=0.01)


def test_batches_of_one_size_give_no_model() -> None:
    profile = ThroughputTable()
    profile.add([turns(30, 1000.0), turns(33, 3000.0), turns(29, 9000.0), turns(60, 9000.0)])
    assert profile.model is None


def test_noise_never_gives_a_negative_cost() -> None:
    profile = ThroughputTable()
    for number, rows in enumerate((1, 3, 9, 40, 120, 250)):
        profile.add([turns(rows, 500.0 * (number + 1), noise=0.8 + 0.4 * (number % 2))])
    model = profile.model
    assert model is not None
    assert min(model.base_s, model.row_s, model.context_s) >= 0
    assert model.step_s(100, 100 * 2000.0) == pytest.approx(TRUE.step_s(100, 100 * 2000.0), rel=0.3)


def test_table_follows_an_engine_that_becomes_slower() -> None:
    profile = ThroughputTable()
    slow = StepModel(base_s=12e-3, row_s=4e-5, context_s=6e-8)
    for model in (TRUE, slow):
        for _ in range(int(4 * MEMORY_S)):
            profile.add([turns(rows, 4000.0, model=model) for rows in (2, 20, 200)])
    assert profile.model is not None
    assert profile.model.step_s(50, 50 * 4000.0) == pytest.approx(slow.step_s(50, 50 * 4000.0), rel=0.1)
    assert max(work.seconds for work in profile.buckets.values()) <= MEMORY_S * 1.1


def test_plateau_has_little_gain_and_falls_with_context() -> None:
    for context in (1000.0, 8000.0):
        plateau = TRUE.plateau(context, 256)
        more = [
            TRUE.tokens_s(rows + 1.0, (rows + 1) * context) - TRUE.tokens_s(float(rows), rows * context)
            for rows in (plateau - 2, plateau + 1)
        ]
        alone = [1 / TRUE.step_s(float(rows), rows * context) for rows in (plateau - 2, plateau + 1)]
        assert more[0] / alone[0] > PLATEAU_SHARE > more[1] / alone[1]
    assert TRUE.plateau(8000.0, 256) < TRUE.plateau(1000.0, 256)
    assert StepModel(base_s=1.0, row_s=0.0, context_s=0.0).plateau(100.0, 64) == 64


def test_prefill_is_the_extra_time_of_its_turns() -> None:
    profile = ThroughputTable()
    profile.add([turns(rows, 4000.0) for rows in (2, 20, 200)])
    plain = turns(50, 4000.0)
    profile.add([plain.plus(Work(seconds=3.0, steps=0.0, tokens=0.0, attended=0.0, prefilled=100_000.0))])
    assert profile.model is not None
    assert profile.model.prefill_token_s == pytest.approx(3e-5, rel=0.02)


def test_instances_of_a_kind_share_a_table_initially() -> None:
    profiles = Profiles()
    profiles.add("a", "spot/256", [turns(rows, 4000.0) for rows in (2, 20, 200)])
    assert profiles.model("b", "spot/256") == profiles.model("a", "spot/256") is not None
    assert profiles.model("c", "reserved/256") is None
    slow = StepModel(base_s=6e-2, row_s=2e-4, context_s=3e-7)
    profiles.add("b", "spot/256", [turns(rows, 4000.0, model=slow) for rows in (2, 20, 200)])
    own = profiles.model("b", "spot/256")
    assert own is not None
    assert own.base_s == pytest.approx(slow.base_s, rel=0.05)
    profiles.forget("b")
    assert profiles.model("b", "spot/256") != own


def test_pace_of_a_kind_is_that_of_the_newest_measured_width() -> None:
    profiles = Profiles()
    slow = StepModel(base_s=6e-2, row_s=2e-4, context_s=3e-7)
    profiles.add("a", "spot/256/4", [turns(rows, 4000.0, model=slow) for rows in (2, 20, 200)])
    profiles.add("a", "spot/256/1", [turns(rows, 4000.0) for rows in (2, 20, 200)])
    fast = profiles.of_kind("spot")
    assert fast == profiles.model("b", "spot/256/1")
    profiles.add("a", "spot/256/4", [turns(20, 4000.0, model=slow)])
    again = profiles.of_kind("spot")
    assert again is not None
    assert again.base_s == pytest.approx(slow.base_s, rel=0.05)
    profiles.add("a", "spot/256/2", [turns(20, 4000.0)])
    assert profiles.of_kind("spot") is None, "nothing is known of this width yet"


def test_worker_reports_sums_of_like_turns_once() -> None:
    measured = UnreportedWork()
    for _ in range(50):
        measured.add(turns(20, 4000.0, steps=1))
        measured.add(turns(200, 4000.0, steps=1))
    measured.add(Work(seconds=1.0, steps=0.0, tokens=0.0, attended=0.0))
    reported = measured.take()
    assert [(work.steps, work.tokens) for work in reported] == [(50, 1000), (50, 10_000)]
    assert measured.take() == []


def test_modelled_engine_measures_its_own_model() -> None:
    cost = EngineCost(weights_s=5e-3, step_s=1e-3, context_read_s=3e-8, row_s=2e-5, prefill_token_s=1e-5)
    world, clock = World(), Immediate()
    law = LengthLaw(median=60, sigma=0.6)
    limits = Limits(slots=64, cache_tokens=10**7, token_scale=16)
    host = SimEngineHost(Engine(cost, limits, law, 500, 0.0, 400), world.memory, clock)
    host.turn(StepCommands(load=fetched(1)))
    work = [
        Dispatched(ticket=n, prompt=bytes(40), prefix=b"", seed=n, max_new_tokens=200, temperature=1.0)
        for n in range(1, 65)
    ]
    measured, orders, tokens = UnreportedWork(), StepCommands(adds=[(1, work)]), 0
    while True:
        began_s = clock.spent_s
        turn = host.turn(orders)
        orders = StepCommands()
        assert turn.output is not None
        tokens += len(turn.output)
        if turn.work is not None:
            done = turn.work
            measured.add(
                Work(
                    seconds=clock.spent_s - began_s,
                    steps=done.steps,
                    tokens=done.tokens,
                    attended=done.attended,
                    prefilled=done.prefilled,
                )
            )
        if turn.idle:
            break
    profile = ThroughputTable()
    profile.add(measured.take())
    assert sum(one.tokens for one in profile.buckets.values()) == tokens
    model = profile.model
    assert model is not None
    for rows, context in ((8, 100.0), (40, 50.0)):  # tokens of messages; each is 16 tokens of the model
        true = 16 * cost.decode(rows, rows * context * 16)
        assert model.step_s(rows, rows * context) == pytest.approx(true, rel=0.02)
    assert model.prefill_token_s == pytest.approx(16e-5, rel=0.2)


def test_parallel_copies_count_as_one_faster_engine() -> None:
    cost = EngineCost(weights_s=5e-3, context_read_s=3e-8)
    copies = Copies(4, cost, Limits(slots=64, cache_tokens=10**7), vocabulary=500)
    copies.add([Entry(ticket=n, key=n, prompt_id=n, prompt=1, made=0, end=500) for n in range(1, 65)])
    seconds = 0.0
    while not copies.idle:
        seconds += copies.turn()[1]
    rows, step_s = copies.work.tokens / copies.work.steps, seconds / copies.work.steps
    assert rows == pytest.approx(64, rel=0.02)
    assert step_s == pytest.approx(cost.decode(16, 16 * 250), rel=0.05), "a step of each copy"


def test_long_responses_are_expected_to_be_longer() -> None:
    lengths = LengthHistogram()
    limit, made = np.array([100.0] * 3), np.array([0.0, 50.0, 99.0])
    assert lengths.expected(made, limit).tolist() == [50.0, 25.0, 1.0], "half of the limit at first"
    for _ in range(90):
        lengths.finished(10, 100)
    for _ in range(10):
        lengths.finished(90, 100)
    left = lengths.expected(made, limit)
    assert left[0] == pytest.approx(18.0, abs=0.5)
    assert left[1] == pytest.approx(40.0, abs=0.5)
    assert left[2] == 1.0
    lengths.finished(900, 1000)  # another limit widens the bins
    assert lengths.expected(np.array([50.0]), np.array([1000.0]))[0] > 40.0
