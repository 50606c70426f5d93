"""Damaged checkpoint directories.

`test_model_qwen3` compares sound ones with transformers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gleaner.actors.model import checkpoint, checkpoint_files
from gleaner.actors.model.checkpoint import save_checkpoint
from gleaner.actors.model.meta_init import unmade
from gleaner.actors.model.qwen3 import BadCheckpoint, Qwen3, Qwen3Config

MakeModel = Callable[..., Qwen3]

CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": True,
    "rope_theta": 1e4,
    "max_position_embeddings": 128,
}


def refusal_without_torch(directory: Path) -> str:
    try:
        checkpoint_files.check(directory)
    except BadCheckpoint as problem:
        return str(problem)
    return ""


def load_checkpoint(directory: Path, dtype: torch.dtype = torch.float32) -> Qwen3:
    """Load as the trainer does. What it refuses, the check without torch refuses with the same words."""
    refusal = refusal_without_torch(directory)
    try:
        model = checkpoint.load_checkpoint(directory, dtype)
    except BadCheckpoint as problem:
        if refusal != str(problem).replace("torch.int64", "I64"):
            pytest.fail(f"without torch it is said: {refusal!r}, with it: {problem}")
        raise
    assert not refusal
    return model


@pytest.fixture(name="checkpoint")
def checkpoint_directory(tmp_path: Path, make_model: MakeModel) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    write_config(directory, {})
    save_file(make_model().state_dict(), directory / "model.safetensors")
    return directory


def write_config(directory: Path, change: dict[str, object]) -> None:
    values = {**CONFIG, **change}
    kept = {key: value for key, value in values.items() if value != "absent"}
    (directory / "config.json").write_text(json.dumps(kept))


def rewrite(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def shard(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, directory / file)
    weight_map = {name: file for file, part in parts.items() for name in part}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("sharded", [False, True])
def test_saved_model_loads_bit_for_bit(
    checkpoint: Path, tmp_path: Path, make_model: MakeModel, sharded: bool
) -> None:
    trained = make_model(seed=4)
    save_checkpoint(trained.state_dict(), tmp_path / "saved", like=checkpoint)
    if sharded:
        shard(tmp_path / "saved")
    loaded = load_checkpoint(tmp_path / "saved")
    for (name, a), (_, b) in zip(trained.named_parameters(), loaded.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert all(parameter.requires_grad for parameter in loaded.parameters())


def test_missing_directory_or_file_is_named(checkpoint: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"nowhere is not a directory"):
        load_checkpoint(checkpoint / "nowhere")
    (checkpoint / "model.safetensors").rename(checkpoint / "elsewhere")
    with pytest.raises(BadCheckpoint, match=r"neither model\.safetensors nor .*index\.json: copy"):
        load_checkpoint(checkpoint)
    (checkpoint / "config.json").unlink()
    with pytest.raises(BadCheckpoint, match=r"config\.json is missing"):
        load_checkpoint(checkpoint)


@pytest.mark.parametrize("left", [0, 5, 200, -1])
def test_truncated_file_is_named_wherever_cut(checkpoint: Path, left: int) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors is truncated or damaged .*copy"):
        load_checkpoint(checkpoint)


def test_missing_shard_or_tensor_is_named(checkpoint: Path) -> None:
    shard(checkpoint)
    second = (checkpoint / "model-2.safetensors").rename(checkpoint / "kept")
    with pytest.raises(BadCheckpoint, match=r"model-2\.safetensors is missing"):
        load_checkpoint(checkpoint)
    tensors = load_file(second)
    gone = min(tensors)
    del tensors[gone]
    save_file(tensors, checkpoint / "model-2.safetensors")
    with pytest.raises(BadCheckpoint, match=f"model-2.safetensors lacks '{gone}'"):
        load_checkpoint(checkpoint)


@pytest.mark.parametrize(
    "index", ["", "[]", "{}", '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "../a"}}']
)
def test_damaged_index_is_named(checkpoint: Path, index: str) -> None:
    shard(checkpoint)
    (checkpoint / "model.safetensors.index.json").write_text(index)
    with pytest.raises(BadCheckpoint, match=r"index\.json|in no file"):
        load_checkpoint(checkpoint)


def test_missing_unknown_and_misshapen_tensors_are_named(checkpoint: Path) -> None:
    norm = "model.layers.1.input_layernorm.weight"
    rewrite(checkpoint, lambda tensors: tensors.pop(norm))
    with pytest.raises(BadCheckpoint, match=norm):
        load_checkpoint(checkpoint)
    rewrite(checkpoint, lambda tensors: tensors.update({norm: torch.ones(47)}))
    with pytest.raises(BadCheckpoint, match=rf"{norm}' has shape \[47\], config.json asks for \[48\]"):
        load_checkpoint(checkpoint)
    rewrite(checkpoint, lambda tensors: tensors.update({norm: torch.ones(48)}))
    load_checkpoint(checkpoint)
    rewrite(checkpoint, lambda tensors: tensors.update({"model.layers.0.bias": torch.ones(1)}))
    with pytest.raises(BadCheckpoint, match=r"holds 'model\.layers\.0\.bias'"):
        load_checkpoint(checkpoint)


@pytest.mark.parametrize("tied", [False, True])
def test_file_layout_equals_the_model_layout(tied: bool) -> None:
    config = Qwen3Config.of({**CONFIG, "tie_word_embeddings": tied}, "config.json")
    state = unmade(config).state_dict()
    assert checkpoint_files.layout(config) == {name: tuple(tensor.shape) for name, tensor in state.items()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_named(checkpoint: Path, dtype: torch.dtype, bad: float) -> None:
    def cast(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()})

    rewrite(checkpoint, cast)
    load_checkpoint(checkpoint)
    name = "model.layers.2.mlp.up_proj.weight"
    rewrite(checkpoint, lambda tensors: tensors[name].view(-1)[7].fill_(bad))
    with pytest.raises(BadCheckpoint, match=f"'{name}' holds NaN or infinity"):
        load_checkpoint(checkpoint)


def test_integer_weights_are_named(checkpoint: Path) -> None:
    name = "model.norm.weight"
    rewrite(checkpoint, lambda tensors: tensors.update({name: torch.ones(48, dtype=torch.int64)}))
    with pytest.raises(BadCheckpoint, match=f"'{name}' is of torch.int64"):
        load_checkpoint(checkpoint)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": "absent"}, "hidden_size: missing"),
        ({"hidden_size": "48"}, "hidden_size: expected int, got '48'"),
        ({"vocab_size": 0}, "vocab_size: expected a number from 1"),
        ({"model_type": "llama"}, "model_type: 'llama' is not supported"),
        ({"attention_bias": True}, "attention_bias: True is not supported"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, r"rope_scaling\.rope_type: 'yarn'"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": -1}}, r"rope_parameters\.rope_theta"),
        ({"num_key_value_heads": 4}, "num_key_value_heads: 4 does not divide"),
        ({"head_dim": 15}, "head_dim: 15 is odd"),
        ({"eos_token_id": ["</s>"]}, "eos_token_id"),
    ],
)
def test_unsupported_setting_is_named(checkpoint: Path, change: dict[str, object], message: str) -> None:
    write_config(checkpoint, change)
    with pytest.raises(BadCheckpoint, match=rf"config\.json: {message}"):
        load_checkpoint(checkpoint)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00\x01"])
def test_config_that_is_no_json_object_is_named(checkpoint: Path, text: str) -> None:
    (checkpoint / "config.json").write_text(text)
    with pytest.raises(BadCheckpoint, match=r"config\.json"):
        load_checkpoint(checkpoint)


def test_stop_tokens_of_generation_config_come_first(checkpoint: Path) -> None:
    write_config(checkpoint, {"eos_token_id": 7})
    assert Qwen3Config.load(checkpoint).eos_token_ids == (7,)
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    assert Qwen3Config.load(checkpoint).eos_token_ids == (7, 8)


def test_state_of_another_model_is_not_saved(checkpoint: Path, tmp_path: Path, make_model: MakeModel) -> None:
    small = make_model()
    shallow = make_model(config=dataclasses.replace(small.config, num_hidden_layers=2))
    narrow = make_model(config=dataclasses.replace(small.config, vocab_size=90))
    for model, message in ((shallow, r"layers\.2.* is missing"), (narrow, r"embed_tokens.* is \[90, 48\]")):
        with pytest.raises(BadCheckpoint, match=message):
            save_checkpoint(model.state_dict(), tmp_path / "saved", like=checkpoint)
    assert not (tmp_path / "saved").exists()
