"""Tensors of any trainer as an image: exact, or refused before any write."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gleaner.actors.model.named_tensors import (
    INDEX,
    NamedTensors,
    Unpublishable,
    bare_name,
    config_of_folder,
    of_folder,
    of_state,
)

FP8 = torch.float8_e4m3fn


def written(source: NamedTensors) -> dict[str, bytes]:
    """What the image has under each name. The buffer was dirty before."""
    image = bytearray(b"\xaa" * source.nbytes)
    source.write(memoryview(image))
    end = 0
    for spec in source.specs:
        assert spec.offset == end, "a gap would be dirty"
        end = spec.offset + spec.nbytes
    return {spec.name: bytes(image[spec.offset : spec.offset + spec.nbytes]) for spec in source.specs}


def raw(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


STATE = {
    "model.embed_tokens.weight": torch.arange(12, dtype=torch.float32).view(3, 4),
    "model.layers.0.a.weight": torch.randn(5, 3).to(torch.bfloat16),
    "model.layers.0.b.weight": torch.randn(7, 2).to(FP8),
    "model.layers.0.b.scale": torch.tensor(0.5),
    "steps": torch.tensor([1, -2, 3], dtype=torch.int64),
    "none": torch.zeros(0, 4),
}


def test_every_dtype_and_shape_is_written_exactly() -> None:
    source = of_state(STATE)
    assert written(source) == {name: raw(tensor) for name, tensor in STATE.items()}
    wide_first = sorted(STATE.items(), key=lambda named: -named[1].element_size())
    assert [(spec.name, spec.dtype, spec.shape) for spec in source.specs] == [
        (name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in wide_first
    ]
    assert all(spec.offset % STATE[spec.name].element_size() == 0 for spec in source.specs)


def test_strided_and_gradient_tensors_are_written_by_rows() -> None:
    weight = torch.randn(4, 6, requires_grad=True)
    assert written(of_state({"t": weight.t(), "s": weight[:, ::2]})) == {
        "t": raw(weight.detach().t()),
        "s": raw(weight.detach()[:, ::2]),
    }


def test_tied_head_is_written_once_unless_untied() -> None:
    embedding = torch.randn(8, 4)
    state = {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding}
    assert list(written(of_state(state))) == ["model.embed_tokens.weight"]
    assert written(of_state(state, tied=False))["lm_head.weight"] == raw(embedding)
    part = {"whole": embedding, "part": embedding[:4]}
    assert list(written(of_state(part))) == ["whole", "part"], "a part is not the same tensor"


def test_module_wrappers_are_not_part_of_names() -> None:
    assert bare_name("module._orig_mod.model.layers.0._checkpoint_wrapped_module.a") == "model.layers.0.a"
    with pytest.raises(Unpublishable, match="'a' is there twice"):
        of_state({"module.a": torch.ones(1), "a": torch.ones(1)})


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({}, "nothing to publish"),
        ({"a": torch.zeros(0)}, "nothing to publish"),
        ({"a": 3.0}, "'a' is float, not a tensor"),
        ({"a": torch.empty(2, device="meta")}, "on the meta device"),
        ({"a": torch.eye(2).to_sparse()}, "only dense numbers"),
        ({"a": torch.ones(1, dtype=torch.complex64)}, "only dense numbers"),
    ],
)
def test_unpublishable_state_is_refused_by_name(state: dict[str, Tensor], why: str) -> None:
    with pytest.raises(Unpublishable, match=why):
        of_state(state)


def folder(directory: Path, shards: int) -> Path:
    """A checkpoint of `STATE` in this many files."""
    names = sorted(STATE)
    where = {name: f"model-{at % shards}.safetensors" for at, name in enumerate(names)}
    for file in set(where.values()):
        save_file({name: STATE[name] for name in names if where[name] == file}, directory / file)
    if shards > 1:
        (directory / INDEX).write_text(json.dumps({"weight_map": where}))
    (directory / "config.json").write_text('{"model_type": "qwen3"}')
    return directory


@pytest.mark.parametrize("shards", [1, 3])
def test_folder_is_written_bit_for_bit(tmp_path: Path, shards: int) -> None:
    source = of_folder(folder(tmp_path, shards))
    assert written(source) == {name: raw(STATE[name]) for name in sorted(STATE)}
    assert written(source) == written(source)
    assert json.loads(config_of_folder(tmp_path)) == {"model_type": "qwen3"}


@pytest.mark.parametrize("kept", [0, 4, 60, -1])
def test_truncated_file_is_refused_wherever_it_ends(tmp_path: Path, kept: int) -> None:
    path = folder(tmp_path, 3) / "model-1.safetensors"
    os.truncate(path, kept if kept >= 0 else path.stat().st_size - 1)
    with pytest.raises(Unpublishable, match=r"model-1\.safetensors is torn or cut short"):
        of_folder(tmp_path)


def test_inconsistent_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unpublishable, match="has 0 safetensors files"):
        of_folder(tmp_path)
    folder(tmp_path, 3)
    index = json.loads((tmp_path / INDEX).read_text())
    for weight_map, why in [
        ({**index["weight_map"], "ghost": "model-0.safetensors"}, "lacks 'ghost'"),
        ({**index["weight_map"], "ghost": "model-9.safetensors"}, "model-9.safetensors is missing"),
        ({"a": "../model-0.safetensors"}, "not a file beside it"),
        (["a"], "cannot be read"),
    ]:
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(Unpublishable, match=why):
            of_folder(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(Unpublishable, match="no JSON"):
        config_of_folder(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(Unpublishable, match="engines need it"):
        config_of_folder(tmp_path)
