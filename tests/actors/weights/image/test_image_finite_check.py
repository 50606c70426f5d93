"""Checks of images: values that are not finite, and changes of the tensor layout."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.model.byte_ranges import Run
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.image.finite_check import not_finite
from gleaner.actors.weights.image.layout_change import layout_change

DTYPES = ["bfloat16", "float16", "float32", "float64", "float8_e5m2", "float8_e4m3fn"]


def image_of(*tensors: torch.Tensor) -> tuple[memoryview, tuple[TensorSpec, ...]]:
    specs, parts, at = [], [], 0
    for number, tensor in enumerate(tensors):
        raw = tensor.view(torch.uint8).numpy().tobytes()
        dtype = str(tensor.dtype).removeprefix("torch.")
        specs.append(TensorSpec(f"t{number}", dtype, tuple(tensor.shape), at, len(raw)))
        parts.append(raw)
        at += len(raw)
    return memoryview(b"".join(parts)), tuple(specs)


@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=st.integers(0, 2**32 - 1))
def test_image_is_finite_exactly_where_torch_agrees(dtype: str, seed: int) -> None:
    bits = np.random.default_rng(seed).integers(0, 256, 64, np.uint8)
    tensor = torch.from_numpy(bits).view(getattr(torch, dtype))
    name = not_finite(*image_of(torch.zeros(3), tensor))
    assert name == ("" if bool(torch.isfinite(tensor.to(torch.float64)).all()) else "t1")


@pytest.mark.parametrize("place", [0, 1, (1 << 19) - 1, 1 << 19, (1 << 20) + 4])
def test_nan_is_found_anywhere_within_the_own_runs(place: int) -> None:
    tensor = torch.zeros((1 << 20) + 5, dtype=torch.bfloat16)
    tensor[place] = torch.nan
    image, specs = image_of(torch.zeros(2), tensor, torch.zeros(0), torch.arange(4))
    assert not_finite(image, specs) == "t1"
    at = specs[1].offset + 2 * place
    assert not_finite(image, specs, [Run(at, 2)]) == "t1"
    assert not_finite(image, specs, [Run(0, at), Run(at + 2, len(image) - at - 2)]) == ""


def test_order_and_place_of_tensors_are_no_change() -> None:
    one, two = TensorSpec("a", "float32", (2, 3), 0, 24), TensorSpec("b", "float32", (1,), 24, 4)
    moved = TensorSpec("a", "float32", (2, 3), 4, 24), TensorSpec("b", "float32", (1,), 0, 4)
    assert layout_change((one, two), moved[::-1]) == ""
    assert "shape [3, 2], it had [2, 3]" in layout_change(
        (one,), (TensorSpec("a", "float32", (3, 2), 0, 24),)
    )
    assert "it was float32" in layout_change((one,), (TensorSpec("a", "bfloat16", (2, 3), 0, 12),))
    assert "1 tensor is new, first 'b'" in layout_change((one,), (one, two))
    assert "1 tensor is there no longer, first 'b'" in layout_change((one, two), (one,))
