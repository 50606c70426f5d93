"""A model's weights as one flat run of bytes: how they are published in shared memory and loaded from it.

Owns the layout (a pure function of the model) and the copies in and out, bit for bit. Does not own the shared
memory, hashes or versions: the weights room does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actors.engine.tensor_spec import TensorSpec, image_bytes

__all__ = ["BadImage", "TensorSpec", "image_bytes", "read_weights", "weight_layout", "write_weights"]

ALIGNMENT_BYTES = 64  # a cache line, and the widest vector load (AVX-512)


class BadImage(ValueError):
    """The bytes or their layout do not fit the model; nothing was copied."""


def weight_layout(model: nn.Module) -> list[TensorSpec]:
    """The layout of a model's parameters: in `named_parameters()` order, each at a multiple of 64 bytes.

    The same architecture gives the same layout in every process; a tied matrix appears once.
    """
    specs: list[TensorSpec] = []
    offset = 0
    for name, parameter in model.named_parameters():
        size = parameter.numel() * parameter.element_size()
        dtype = str(parameter.dtype).removeprefix("torch.")
        specs.append(TensorSpec(name, dtype, tuple(parameter.shape), offset, size))
        offset = -(-(offset + size) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return specs


def write_weights(model: nn.Module, into: memoryview) -> None:
    """Copy the parameters into a writable buffer of at least `image_bytes(weight_layout(model))` bytes.

    The gaps between tensors are zeroed: equal weights give equal images, whatever the buffer held before.
    """
    specs = weight_layout(model)
    _require_room(into, specs)
    if into.readonly:
        raise BadImage(
            "the buffer for the weights is read-only: map it writable in the process that publishes"
        )
    target = np.frombuffer(into, dtype=np.uint8)
    end = 0
    for spec, parameter in zip(specs, model.parameters(), strict=True):
        target[end : spec.offset] = 0
        end = spec.offset + spec.nbytes
        target[spec.offset : end] = bytes_of(parameter.detach().contiguous())


def read_weights(model: nn.Module, source: memoryview, specs: Sequence[TensorSpec]) -> None:
    """Copy an image into the model's parameters in place, bit for bit.

    `specs` describe the image; tensors are matched by name, their offsets may differ from our own layout.
    Raises `BadImage` before anything is copied if a tensor is missing, unknown, of another dtype or shape,
    or cut off.
    """
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
        if (have.dtype, tuple(have.shape), have.nbytes) != (want.dtype, want.shape, want.nbytes):
            raise BadImage(
                f"{want.name!r} is {have.dtype}{list(have.shape)} ({have.nbytes} bytes) in the image, "
                f"the model needs {want.dtype}{list(want.shape)} ({want.nbytes} bytes): "
                "both must come from one checkpoint"
            )
    bytes_in = np.frombuffer(source, dtype=np.uint8)
    for name, parameter in model.named_parameters():
        spec = given[name]
        bytes_of(parameter.detach())[:] = bytes_in[spec.offset : spec.offset + spec.nbytes]


def bytes_of(tensor: Tensor) -> NDArray[np.uint8]:
    """The memory of a contiguous tensor on the CPU, shared, uint8 [nbytes]."""
    array: NDArray[np.uint8] = tensor.view(-1).view(torch.uint8).numpy()
    return array


def _require_room(buffer: memoryview, specs: Sequence[TensorSpec]) -> None:
    if any(spec.offset < 0 or spec.nbytes < 0 for spec in specs):
        raise BadImage("the layout of the weights holds a negative offset or size")
    if (need := image_bytes(specs)) > buffer.nbytes:
        raise BadImage(f"the weights need {need} bytes, the buffer has {buffer.nbytes}")
