"""`TensorSpec`: place of one tensor in a flat image of a model's weights.

Pure and without torch, so that modules that move weights (manifests, messages) need not load it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class TensorSpec(msgspec.Struct, frozen=True):
    """One tensor of an image: `offset` and `nbytes` in bytes, `dtype` as torch names it (`float32`)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def image_bytes(specs: Sequence[TensorSpec]) -> int:
    """Size of the whole image, in bytes."""
    return max((spec.offset + spec.nbytes for spec in specs), default=0)
