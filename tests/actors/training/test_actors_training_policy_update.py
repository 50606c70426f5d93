from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save, save_file
from torch import Tensor

from gleaner.actors.model.flat_image import image_bytes, read_weights, weight_layout, write_weights
from gleaner.actors.model.qwen3 import Qwen3, Qwen3Config
from gleaner.actors.training.logprobs import token_logprobs
from gleaner.actors.training.policy_update import BadState, NotFinite, OutOfOrder, TrainerCompute
from gleaner.actors.training.sample import Sample
from gleaner.actors.training.samples import collate
from gleaner.configs.schema import Training

SIZES = {
    "model_type": "qwen3",
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    (directory / "config.json").write_text(json.dumps(SIZES))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3(Qwen3Config.load(directory))
    save_file(model.state_dict(), directory / "model.safetensors")
    return directory


def trainer(model_dir: Path, **settings: Any) -> TrainerCompute:
    return TrainerCompute(model_dir, Training(learning_rate=1e-3, weight_decay=0.1, **settings))


def groups(seed: int, compute: TrainerCompute, count: int = 4, size: int = 3) -> list[list[Sample]]:
    """Groups of random responses with the log-probs that the model itself gives them: on-policy."""
    rng = random.Random(seed)

    def one() -> Sample:
        response = [rng.randrange(40) for _ in range(rng.randint(1, 20))]
        sample = Sample(
            [rng.randrange(40) for _ in range(4)], response, [0.0] * len(response), rng.gauss(0, 1)
        )
        with torch.no_grad():
            logprobs = token_logprobs(compute.model, collate([sample])).tolist()
        return dataclasses.replace(sample, logprobs=logprobs)

    return [[one() for _ in range(size)] for _ in range(count)]


def take_step(compute: TrainerCompute, micro_batches: list[list[Sample]]) -> None:
    compute.begin_step()
    for samples in micro_batches:
        compute.add_micro_batch(samples)
    compute.finish_step()


def bits(state: dict[str, Tensor]) -> bytes:
    return save({name: tensor.contiguous() for name, tensor in state.items()})


def test_groups_added_on_completion_equal_one_full_batch(model_dir: Path) -> None:
    whole, parts = trainer(model_dir), trainer(model_dir)
    four = groups(1, whole)
    take_step(whole, [[sample for group in four for sample in group]])
    take_step(parts, [four[2], four[0], four[3], four[1]])
    first, second = whole.state(), parts.state()
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


def test_same_samples_and_micro_batches_give_the_same_bits(model_dir: Path) -> None:
    states = []
    for _ in range(2):
        compute = trainer(model_dir)
        for step in range(3):
            take_step(compute, groups(step, compute))
        states.append(bits(compute.state()))
    assert states[0] == states[1]
    assert states[0] != bits(trainer(model_dir).state())


def test_killed_trainer_resumes_bit_for_bit_from_its_state(model_dir: Path) -> None:
    compute = trainer(model_dir)
    for step in range(2):
        take_step(compute, groups(step, compute))
    file = bits(compute.state())
    collected = groups(7, compute)
    take_step(compute, collected)
    take_step(compute, groups(8, compute))

    again = trainer(model_dir)
    again.load_state(load(file))
    assert again.steps == 2
    take_step(again, collected)
    take_step(again, groups(8, again))
    assert bits(again.state()) == bits(compute.state())


def test_state_within_a_step_is_that_of_its_start(model_dir: Path) -> None:
    compute = trainer(model_dir)
    take_step(compute, groups(0, compute))
    before = bits(compute.state())
    compute.begin_step()
    compute.add_micro_batch(groups(1, compute)[0])
    assert bits(compute.state()) == before


def test_restarted_step_forgets_samples_added_before(model_dir: Path) -> None:
    clean, restarted = trainer(model_dir), trainer(model_dir)
    four = groups(3, clean)
    take_step(clean, four)
    restarted.begin_step()
    restarted.add_micro_batch(four[1])
    take_step(restarted, four)
    assert bits(clean.state()) == bits(restarted.state())


def test_step_raises_good_responses_and_lowers_bad_ones(model_dir: Path) -> None:
    compute = trainer(model_dir)
    good, bad = (
        dataclasses.replace(sample, advantage=advantage)
        for sample, advantage in zip(groups(5, compute)[0], (1.0, -1.0), strict=False)
    )
    take_step(compute, [[good], [bad]])
    with torch.no_grad():
        after = [token_logprobs(compute.model, collate([one])).sum().item() for one in (good, bad)]
    assert after[0] > sum(good.logprobs)
    assert after[1] < sum(bad.logprobs)


def test_stats_describe_samples_and_distance_from_the_sampler(model_dir: Path) -> None:
    compute = trainer(model_dir)
    four = groups(2, compute)
    samples = [sample for group in four for sample in group]
    tokens = sum(len(sample.response) for sample in samples)
    compute.begin_step()
    parts = [compute.add_micro_batch(group) for group in four]
    stats = compute.finish_step()
    assert (stats.step, stats.samples, stats.tokens) == (1, 12, tokens)
    assert [part.samples for part in parts] == [3, 3, 3, 3]
    assert sum(part.tokens for part in parts) == tokens
    expected = -sum(sample.advantage * len(sample.response) for sample in samples) / tokens
    assert stats.loss == pytest.approx(expected, rel=1e-5)
    assert sum(part.loss_sum for part in parts) / tokens == pytest.approx(expected, rel=1e-5)
    assert stats.grad_norm > 0
    assert stats.clipped == 0
    assert stats.drift < 1e-9

    stale = [dataclasses.replace(sample, logprobs=[p - 1 for p in sample.logprobs]) for sample in samples]
    compute.begin_step()
    compute.add_micro_batch(stale)
    stats = compute.finish_step()
    assert stats.truncated == 1
    assert stats.drift > 0.1


def test_log_probs_use_the_sampling_temperature(model_dir: Path) -> None:
    compute = TrainerCompute(model_dir, Training(), temperature=0.5)
    sample = groups(4, compute)[0][0]
    with torch.no_grad():
        hot = token_logprobs(compute.model, collate([sample]), 0.5).tolist()
    compute.begin_step()
    compute.add_micro_batch([dataclasses.replace(sample, logprobs=hot)])
    assert compute.finish_step().drift < 1e-9


def test_gradient_beyond_the_limit_is_scaled_down(model_dir: Path) -> None:
    one, other = trainer(model_dir, max_grad_norm=1e-3), trainer(model_dir, max_grad_norm=1e-3)
    four = groups(6, one)
    take_step(one, four)
    take_step(other, [[dataclasses.replace(s, advantage=4 * s.advantage) for s in group] for group in four])
    for name in (name for name in one.state() if name.startswith("adam.first.")):
        torch.testing.assert_close(one.state()[name], other.state()[name], rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("advantage", [float("nan"), float("inf")])
def test_gradient_that_is_no_number_changes_nothing(model_dir: Path, advantage: float) -> None:
    compute = trainer(model_dir)
    four = groups(0, compute)
    take_step(compute, four)
    before = bits(compute.state())
    compute.begin_step()
    compute.add_micro_batch([dataclasses.replace(four[0][0], advantage=advantage)])
    with pytest.raises(NotFinite):
        compute.finish_step()
    assert bits(compute.state()) == before
    take_step(compute, four)


def test_calls_out_of_order_are_refused(model_dir: Path) -> None:
    compute = trainer(model_dir)
    with pytest.raises(OutOfOrder):
        compute.add_micro_batch(groups(0, compute)[0])
    with pytest.raises(OutOfOrder):
        compute.finish_step()
    take_step(compute, groups(0, compute))
    with pytest.raises(OutOfOrder):
        compute.finish_step()


def test_step_without_trainable_tokens_changes_nothing(model_dir: Path) -> None:
    compute, without = trainer(model_dir), trainer(model_dir)
    for one in (compute, without):
        take_step(one, groups(0, one))  # moments that would move the weights even by a gradient of zero
    before = bits(compute.state())
    compute.begin_step()
    stats = compute.finish_step()
    assert (stats.samples, stats.tokens, stats.loss, stats.grad_norm) == (0, 0, 0.0, 0.0)
    assert bits(compute.state()) == before
    for one in (compute, without):
        take_step(one, groups(1, one))
    assert bits(compute.state()) == bits(without.state())


def test_state_of_another_model_is_refused_whole(model_dir: Path) -> None:
    compute = trainer(model_dir)
    before = bits(compute.state())
    state = {name: tensor.clone() + 1 for name, tensor in compute.state().items()}
    name = "adam.second.model.norm.weight"
    for wrong in ({**state, name: torch.zeros(3)}, {**state, name: state[name].double()}):
        with pytest.raises(BadState, match=name):
            compute.load_state(wrong)
    with pytest.raises(BadState, match=name):
        compute.load_state({key: tensor for key, tensor in state.items() if key != name})
    with pytest.raises(BadState, match="stranger"):
        compute.load_state({**state, "stranger": torch.zeros(1)})
    assert bits(compute.state()) == before


# -- rolled-out weights and the optimizer's masters --


def served(compute: TrainerCompute) -> Qwen3:
    """The model of an engine that loaded the published weights."""
    engine = Qwen3(compute.model.config).requires_grad_(False)
    specs = weight_layout(compute.model, torch.bfloat16)
    image = memoryview(bytearray(image_bytes(specs)))
    write_weights(compute.model, image, torch.bfloat16)
    read_weights(engine, image, specs)
    return engine


def test_trainer_and_rollout_log_probs_are_bit_identical(model_dir: Path) -> None:
    compute = trainer(model_dir, rollout_dtype="bfloat16")
    for step in range(2):
        take_step(compute, groups(step, compute))
        engine = served(compute)
        for group in groups(9, compute, count=2):
            batch = collate(group)
            with torch.no_grad():
                assert torch.equal(token_logprobs(compute.model, batch), token_logprobs(engine, batch))


def test_tiny_steps_add_up_in_the_masters(model_dir: Path) -> None:
    settings = Training(learning_rate=1e-6, weight_decay=0.0, rollout_dtype="bfloat16")
    compute = TrainerCompute(model_dir, settings)
    before, bits_before = compute.masters(), bits(dict(compute.model.named_parameters()))
    before = {name: tensor.clone() for name, tensor in before.items()}
    for step in range(3):
        take_step(compute, groups(step, compute))
    masters, weights = compute.masters(), dict(compute.model.named_parameters())
    moved = sum(int((masters[name] != tensor).sum()) for name, tensor in before.items())
    rolled = torch.cat([tensor.detach().ravel() for tensor in weights.values()])
    assert moved > 0.9 * len(rolled), "the optimizer moves nearly all of them"
    changed = torch.cat(
        [(masters[name].to(torch.bfloat16) != old.to(torch.bfloat16)).ravel() for name, old in before.items()]
    )
    assert 0 < changed.sum() < 0.2 * len(rolled), "few change their 16-bit value"
    assert bits(weights) != bits_before
    for name, weight in weights.items():
        assert torch.equal(weight, masters[name].to(torch.bfloat16).float()), name


def test_float32_trainer_has_no_second_weights(model_dir: Path) -> None:
    compute = trainer(model_dir, rollout_dtype="float32")
    weights = dict(compute.model.named_parameters())
    assert all(master.data_ptr() == weights[name].data_ptr() for name, master in compute.masters().items())
    take_step(compute, groups(0, compute))
    assert any(not torch.equal(one, one.to(torch.bfloat16).float()) for one in weights.values())
