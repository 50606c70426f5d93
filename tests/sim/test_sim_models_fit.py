"""Fitting of engine, trainer and length models.

Known constants are recovered from synthetic logs, with noise and without. A fit of a real engine predicts its
steps.
"""

import time

import numpy as np
import pytest

from gleaner.actors.engine.builtin.engine import BuiltinEngine
from gleaner.actors.engine.builtin.engine_size import EngineSize
from gleaner.actors.engine.worker.engine_port import Assignment
from gleaner.actors.model.qwen3 import Qwen3
from gleaner.actors.model.qwen3_config import Qwen3Config
from gleaner.actors.training.records import AnyRecord, Sample, Step
from gleaner.sim.models.batching import ContinuousBatch, Entry, Limits
from gleaner.sim.models.engine_cost import EngineCost, engine_cost
from gleaner.sim.models.fit import (
    EngineStep,
    TooLittle,
    TrainingStep,
    engine_steps,
    fit_engine,
    fit_lengths,
    fit_training,
    training_steps,
)
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.shapes import model_shape
from gleaner.sim.models.training_cost import training_cost

KNOWN = EngineCost(step_s=8e-3, row_s=6e-5, context_read_s=5e-8, prefill_s=4e-3, prefill_token_s=2e-5)


def synthetic(noise: float, count: int = 400) -> list[EngineStep]:
    rng = np.random.default_rng(3)
    steps = []
    for _ in range(count):
        rows = int(rng.integers(1, 200))
        context = int(rows * rng.uniform(100, 8000))
        prefilled = int(rng.integers(100, 4000)) if rng.random() < 0.3 else 0
        seconds = KNOWN.decode(rows, context) + KNOWN.prefill(prefilled, 0)
        steps.append(EngineStep(seconds * rng.lognormal(0, noise), rows, context, prefilled))
    return steps


def test_exact_logs_recover_the_constants() -> None:
    found, error = fit_engine(synthetic(0.0))
    for name in ("step_s", "row_s", "context_read_s", "prefill_s", "prefill_token_s"):
        assert getattr(found, name) == pytest.approx(getattr(KNOWN, name), rel=1e-6)
    assert error.p90 < 1e-6


def test_noisy_logs_nearly_recover_constants_and_report_noise() -> None:
    found, error = fit_engine(synthetic(0.1))
    for name in ("step_s", "row_s", "context_read_s", "prefill_token_s"):
        assert getattr(found, name) == pytest.approx(getattr(KNOWN, name), rel=0.3)
    assert 0.04 < error.median < 0.1
    assert abs(error.bias) < 0.05
    assert "median error" in str(error)


def test_constants_that_steps_cannot_determine_are_zero() -> None:
    flat = [EngineStep(0.01, rows) for rows in range(1, 50)]
    found, error = fit_engine(flat)
    assert found.step_s == pytest.approx(0.01)
    assert (found.row_s, found.context_read_s, found.prefill_token_s) == (0.0, 0.0, 0.0)
    falling, _ = fit_engine([EngineStep(0.01 - 1e-4 * rows, rows) for rows in range(1, 50)])
    assert falling.row_s == 0.0
    assert error.median < 1e-9


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(TooLittle, match="3 measurements"):
        fit_engine([EngineStep(0.1, 1)] * 3)


def look(t_s: float, executing: int, tokens_per_s: float) -> Sample:
    return Sample(
        t_s=t_s,
        step=1,
        reserved=1,
        preemptible=2,
        serving=2,
        executing=executing,
        pending=0,
        tokens_collected=0,
        migrations=0,
        tokens_per_s=tokens_per_s,
    )


def test_fleet_samples_of_a_history_recover_the_engine() -> None:
    records: list[AnyRecord] = []
    for number in range(200):
        rows = 1 + number % 60
        records += [look(number, 2 * rows, 2 * rows / KNOWN.decode(rows, 0))] * 4
    found, error = fit_engine(engine_steps(records))
    assert found.step_s == pytest.approx(KNOWN.step_s, rel=0.05)
    assert found.row_s == pytest.approx(KNOWN.row_s, rel=0.1)
    assert error.median < 0.05


def test_steps_of_a_history_recover_the_trainer() -> None:
    start = training_cost(model_shape("quickstart"), HostDevices("cpu_core"))
    records: list[AnyRecord] = [
        Step(
            t_s=number,
            step=number + 1,
            reward=0.0,
            samples=8,
            tokens=tokens,
            seeding_s=0.0,
            waiting_s=0.0,
            training_s=0.4 + 3e-4 * tokens,
            weights_s=0.0,
            step_s=9.0,
            t_seed_s=0.0,
            n_prem=0,
            grad_norm=None,
            loss=None,
        )
        for number, tokens in enumerate(range(2000, 9000, 250))
    ]
    found, error = fit_training(training_steps(records, micro_batches=8), start)
    assert (found.token_s, found.step_s) == (pytest.approx(3e-4), pytest.approx(0.4))
    assert error.p90 < 1e-6
    varied = [TrainingStep(0.4 + 3e-4 * n * 500 + 0.05 * n, n * 500 % 3700, n) for n in range(1, 30)]
    assert fit_training(varied, start)[0].micro_batch_s > 0


def test_modelled_engine_is_recovered_from_its_own_steps() -> None:
    cost = engine_cost(model_shape("qwen3-8b"), HostDevices("a100"))
    batch = ContinuousBatch(cost, Limits(slots=64, cache_tokens=10**6), vocabulary=1000)
    steps = []
    batch.add([Entry(n, n, n, 50 + 7 * n, 0, 40 + 5 * n) for n in range(100)])
    while not batch.idle:
        before = batch.counts.tokens_prefilled
        waiting, context = batch.pending, batch.context_tokens
        output, seconds = batch.turn()
        if batch.counts.tokens_prefilled == before and waiting == batch.pending:
            steps.append(EngineStep(seconds, len(output), context))
    found, error = fit_engine(steps)
    assert error.p90 < 0.03
    assert found.context_read_s == pytest.approx(cost.context_read_s, rel=0.2)


def test_real_run_of_the_builtin_engine_is_predicted() -> None:
    config = Qwen3Config(
        vocab_size=128,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=32,
        tie_word_embeddings=True,
    )
    engine = BuiltinEngine(
        Qwen3(config).requires_grad_(False), EngineSize(slots=48, max_tokens=400), eos_token_ids=()
    )
    steps = []
    for wave in range(6):
        requests = 8 * (wave + 1)
        engine.add(
            Assignment(100 * wave + n, list(range(1, 40)), n, max_new_tokens=40 + 4 * n)
            for n in range(requests)
        )
        context = 0
        while not engine.idle:
            before, prefilled = time.process_time(), engine.stats().tokens_prefilled
            output = engine.step()
            seconds = (
                time.process_time() - before
            )  # the load of other processes on the machine is not predicted
            steps.append(
                EngineStep(seconds, len(output), context, engine.stats().tokens_prefilled - prefilled)
            )
            context = engine.executing * (40 + len(output))
    found, error = fit_engine(steps)
    assert found.step_s > 0
    assert found.decode(48, 0) >= found.decode(1, 0)
    assert error.median < 0.5, error


def test_length_law_is_recovered_from_truncated_lengths() -> None:
    law, limit = LengthLaw(median=3000.0, sigma=0.8, correlation=0.6), 9000
    groups = [[law.length(8 * group + number, group, limit) for number in range(8)] for group in range(600)]
    cut = sum(length == limit for group in groups for length in group)
    found = fit_lengths(groups, limit)
    assert cut > 300
    assert found.median == pytest.approx(3000.0, rel=0.1)
    assert found.sigma == pytest.approx(0.8, rel=0.1)
    assert found.correlation == pytest.approx(0.6, abs=0.08)
    alone = LengthLaw(median=3000.0, sigma=0.8, correlation=0.0)
    apart = [[alone.length(8 * group + number, group, limit) for number in range(8)] for group in range(300)]
    assert fit_lengths(apart, limit).correlation < 0.1


def test_uninformative_lengths_are_refused() -> None:
    with pytest.raises(TooLittle, match="12 responses are too few"):
        fit_lengths([[5, 6, 7]] * 4, 100)
    with pytest.raises(TooLittle, match="more than half"):
        fit_lengths([[100, 100, 3]] * 40, 100)
    alike = fit_lengths([[7, 7]] * 40, 100)
    assert (alike.median, alike.sigma, alike.correlation) == (pytest.approx(7.0), 0.0, 0.0)


def test_training_covers_prompts_and_responses() -> None:
    step = Step(
        t_s=1.0, step=1, reward=0.0, samples=8, tokens=100, seeding_s=0.0, waiting_s=0.0, training_s=1.0,
        weights_s=0.0, step_s=2.0, t_seed_s=0.0, n_prem=0, grad_norm=None, loss=None,
    )  # fmt: skip
    assert training_steps([step], 2, prompt_tokens=10.0) == [TrainingStep(1.0, 180, 2)]
