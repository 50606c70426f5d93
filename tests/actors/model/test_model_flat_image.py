from __future__ import annotations

import dataclasses
from collections.abc import Callable
from multiprocessing import shared_memory

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gleaner.actors.model.flat_image import BadImage, read_weights, weight_layout, write_weights
from gleaner.actors.model.qwen3 import Qwen3
from gleaner.actors.model.tensor_spec import TensorSpec, image_bytes

MakeModel = Callable[..., Qwen3]


def image_of(model: nn.Module, spare: int = 0, fill: int = 0) -> memoryview:
    image = memoryview(bytearray([fill]) * (image_bytes(weight_layout(model)) + spare))
    write_weights(model, image)
    return image


def test_weights_pass_shared_memory_bit_for_bit(make_model: MakeModel) -> None:
    trained, engine = make_model(seed=1).bfloat16(), make_model(seed=2).bfloat16()
    with torch.no_grad():  # bits that a detour through numbers would lose
        trained.model.norm.weight.view(torch.int16)[:4] = torch.tensor(
            [0x7FC1, -1, -32768, 1], dtype=torch.int16
        )
    specs = weight_layout(trained)
    memory = shared_memory.SharedMemory(create=True, size=image_bytes(specs))
    try:
        write_weights(trained, memory.buf)
        read_weights(engine, memory.buf.toreadonly(), specs)
    finally:
        memory.close()
        memory.unlink()
    for (name, a), (_, b) in zip(trained.named_parameters(), engine.named_parameters(), strict=True):
        assert torch.equal(a.view(torch.int16), b.view(torch.int16)), name


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=6))
def test_tensors_are_in_order_and_adjacent(shapes: list[list[int]]) -> None:
    model = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])
    specs = weight_layout(model)
    assert [list(spec.shape) for spec in specs] == shapes
    end = 0
    for spec in specs:
        assert spec.offset == end
        end = spec.offset + spec.nbytes
    assert image_bytes(specs) == end


def test_equal_weights_give_equal_images_in_any_buffer(make_model: MakeModel) -> None:
    model = nn.ParameterList([nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(3))])
    assert image_of(model, fill=255) == image_of(model, fill=0)
    assert image_of(make_model(seed=1)) == image_of(make_model(seed=1))
    assert image_of(make_model(seed=1)) != image_of(make_model(seed=2))


def test_tied_matrix_is_published_once(make_model: MakeModel) -> None:
    names = [spec.name for spec in weight_layout(make_model())]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_tensors_are_found_by_name_in_any_order(make_model: MakeModel) -> None:
    source, target = make_model(seed=1), make_model(seed=2)
    image, specs, moved = bytearray(), [], bytes(image_of(source))
    for spec in reversed(weight_layout(source)):
        specs.append(msgspec.structs.replace(spec, offset=len(image)))
        image += moved[spec.offset : spec.offset + spec.nbytes]
    read_weights(target, memoryview(image), specs)
    assert image_of(target) == image_of(source)


def broken(specs: list[TensorSpec], **change: object) -> list[TensorSpec]:
    return [msgspec.structs.replace(specs[0], **change), *specs[1:]]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda specs: specs[1:], "lacks 'model.embed_tokens.weight'"),
        (lambda specs: broken(specs, name="model.other"), "'model.other'"),
        (lambda specs: broken(specs, dtype="bfloat16"), "bfloat16"),
        (lambda specs: broken(specs, shape=(48, 96)), r"\[48, 96\]"),
        (lambda specs: broken(specs, offset=-64), "negative"),
        (lambda specs: broken(specs, offset=10**9), "the buffer has"),
    ],
)
def test_unfit_image_is_named_and_changes_nothing(
    make_model: MakeModel, damage: Callable[[list[TensorSpec]], list[TensorSpec]], message: str
) -> None:
    source, target = make_model(seed=1), make_model(seed=2)
    before = bytes(image_of(target))
    with pytest.raises(BadImage, match=message):
        read_weights(target, image_of(source), damage(weight_layout(source)))
    assert image_of(target) == before


def test_model_of_another_size_is_refused_before_copying(make_model: MakeModel) -> None:
    target = make_model()
    deeper = make_model(config=dataclasses.replace(target.config, num_hidden_layers=4))
    before = bytes(image_of(target))
    with pytest.raises(BadImage, match=r"layers\.3"):
        read_weights(target, image_of(deeper), weight_layout(deeper))
    with pytest.raises(BadImage, match=r"lacks .*layers\.3"):
        read_weights(deeper, image_of(target), weight_layout(target))
    assert image_of(target) == before


def test_small_or_read_only_buffer_is_refused(make_model: MakeModel) -> None:
    model = make_model()
    size = image_bytes(weight_layout(model))
    with pytest.raises(BadImage, match=f"need {size} bytes, the buffer has {size - 1}"):
        write_weights(model, memoryview(bytearray(size - 1)))
    with pytest.raises(BadImage, match="read-only"):
        write_weights(model, memoryview(bytes(size)))
