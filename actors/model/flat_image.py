"""Weight image: a model's weights as one flat run of bytes in shared memory.

Owns the layout (a pure function of the model) and the copies in and out, bit for bit. Does not own the shared
memory, hashes or versions: `gleaner.actors.weights` does.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gleaner.actors.model.tensor_spec import TensorSpec, image_bytes

__all__ = [
    "BadImage",
    "TensorSpec",
    "image_bytes",
    "read_weights",
    "view_weights",
    "weight_layout",
    "write_weights",
]


WIDENED = {("bfloat16", "float32"), ("float16", "float32")}
"""Dtypes of image and model that may differ: the model's holds all values of the image's."""


class BadImage(ValueError):
    """The bytes or their layout do not fit the model; nothing was copied."""


def weight_layout(model: nn.Module, dtype: torch.dtype | None = None) -> list[TensorSpec]:
    """The layout of a model's parameters: contiguous, as in a safetensors file, in `named_parameters()`
    order; those of wider elements first, so that each offset is a multiple of its element.

    `dtype`: of the image; None: that of the model. The same architecture gives the same layout in every
    process; a tied matrix appears once.
    """
    specs: list[TensorSpec] = []
    offset = 0
    for name, parameter in _in_order(model):
        stored_dtype = dtype if dtype is not None else parameter.dtype
        size = parameter.numel() * stored_dtype.itemsize
        specs.append(TensorSpec(name, _name(stored_dtype), tuple(parameter.shape), offset, size))
        offset += size
    return specs


def write_weights(model: nn.Module, into: memoryview, dtype: torch.dtype | None = None) -> None:
    """Copy the parameters, rounded to `dtype`, into a writable buffer of at least
    `image_bytes(weight_layout(model, dtype))` bytes: equal weights give equal images, for any previous
    contents of the buffer."""
    specs = weight_layout(model, dtype)
    _require_room(into, specs)
    if into.readonly:
        raise BadImage(
            "the buffer for the weights is read-only: map it writable in the process that publishes"
        )
    target = np.frombuffer(into, dtype=np.uint8)
    for spec, (_, parameter) in zip(specs, _in_order(model), strict=True):
        stored = parameter.detach().to(dtype if dtype is not None else parameter.dtype)
        target[spec.offset : spec.offset + spec.nbytes] = bytes_of(stored.contiguous())


def read_weights(model: nn.Module, source: memoryview, specs: Sequence[TensorSpec]) -> None:
    """Copy an image into the model's parameters in place, bit for bit; a float32 model takes images of 16-bit
    floats too, whose values it holds exactly.

    `specs` describe the image; tensors are matched by name, their offsets may differ from our own layout.
    Raises `BadImage` before anything is copied if a tensor is missing, unknown, of another dtype or shape,
    or cut off.
    """
    given = _fitting(model, source, specs)
    bytes_in = np.frombuffer(source, dtype=np.uint8)
    for name, parameter in model.named_parameters():
        spec = given[name]
        data = bytes_in[spec.offset : spec.offset + spec.nbytes]
        if spec.dtype == _name(parameter.dtype):
            bytes_of(parameter.detach())[:] = data
        else:
            narrow = torch.from_numpy(data.copy()).view(getattr(torch, spec.dtype))
            parameter.detach().copy_(narrow.view(parameter.shape))


def view_weights(model: nn.Module, source: memoryview, specs: Sequence[TensorSpec]) -> None:
    """Make the model's parameters views of an image, in its dtype, which must stay mapped as long as they
    live; nothing is copied, and they must not be written to. Raises as `read_weights`."""
    given = _fitting(model, source, specs)
    bytes_in = np.frombuffer(source, dtype=np.uint8)
    views: dict[str, Tensor] = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        for name, parameter in model.named_parameters():
            spec = given[name]
            flat = torch.from_numpy(bytes_in[spec.offset : spec.offset + spec.nbytes])
            views[name] = flat.view(getattr(torch, spec.dtype)).view(parameter.shape)
    model.load_state_dict(views, assign=True)


def _fitting(model: nn.Module, source: memoryview, specs: Sequence[TensorSpec]) -> dict[str, TensorSpec]:
    """The specs of the model's tensors, by name, in an image that has these and no others."""
    _require_room(source, specs)
    given = {spec.name: spec for spec in specs}
    wanted = weight_layout(model)
    if unknown := given.keys() - {spec.name for spec in wanted}:
        raise BadImage(
            f"the image holds {min(unknown)!r}, which this model lacks: it was made from another one"
        )
    for want in wanted:
        have = given.get(want.name)
        if have is None:
            raise BadImage(f"the image lacks {want.name!r}: it was made from another model")
        if have.dtype != want.dtype and (have.dtype, want.dtype) in WIDENED:
            want = msgspec.structs.replace(want, dtype=have.dtype, nbytes=want.nbytes // 2)
        if (have.dtype, tuple(have.shape), have.nbytes) != (want.dtype, want.shape, want.nbytes):
            raise BadImage(
                f"{want.name!r} is {have.dtype}{list(have.shape)} ({have.nbytes} bytes) in the image, "
                f"the model needs {want.dtype}{list(want.shape)} ({want.nbytes} bytes): "
                "both must come from one checkpoint"
            )
    return given


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def bytes_of(tensor: Tensor) -> NDArray[np.uint8]:
    """The memory of a contiguous tensor on the CPU, shared, uint8 [nbytes]."""
    array: NDArray[np.uint8] = tensor.view(-1).view(torch.uint8).numpy()
    return array


def _in_order(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return sorted(model.named_parameters(), key=lambda named: -named[1].element_size())


def _require_room(buffer: memoryview, specs: Sequence[TensorSpec]) -> None:
    if any(spec.offset < 0 or spec.nbytes < 0 for spec in specs):
        raise BadImage("the layout of the weights holds a negative offset or size")
    if (need := image_bytes(specs)) > buffer.nbytes:
        raise BadImage(f"the weights need {need} bytes, the buffer has {buffer.nbytes}")
