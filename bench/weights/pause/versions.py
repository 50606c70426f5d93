"""Versions of a random model as bytes of an image: layout, first and next one.

Every version is finite and decodes; none generates meaningful text. Elements are bfloat16.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from gleaner.actors.model.flat_image import weight_layout
from gleaner.actors.model.meta_init import unmade
from gleaner.actors.model.qwen3_config import Qwen3Config
from gleaner.actors.model.tensor_spec import TensorSpec, image_bytes

GIB = Qwen3Config(
    vocab_size=32_000,
    hidden_size=1536,
    intermediate_size=5248,
    num_hidden_layers=16,
    num_attention_heads=12,
    num_key_value_heads=4,
    head_dim=128,
    tie_word_embeddings=True,
    max_position_embeddings=4096,
)
"""1.0 GiB in bfloat16."""
TINY = Qwen3Config(
    vocab_size=2048,
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    tie_word_embeddings=True,
    max_position_embeddings=4096,
)
"""1 MiB; for tests."""

STEP = 1 << 20  # elements that are changed at a time
LOW_BITS = 0x7F  # of a bfloat16: its fraction; if only that changes, a number keeps sign and magnitude
SMALL = 0x3CA3  # 0.02


@dataclass(frozen=True)
class Layout:
    """The image of a model of this shape."""

    config: Qwen3Config
    tensors: tuple[TensorSpec, ...]
    nbytes: int

    @classmethod
    def of(cls, config: Qwen3Config) -> "Layout":
        """Layout as a trainer makes it."""
        specs = tuple(weight_layout(unmade(config), torch.bfloat16))
        return cls(config, specs, image_bytes(specs))

    @property
    def model_config(self) -> bytes:
        """Config of the model, in the form of a manifest."""
        return msgspec.json.encode(self.config)


def first(layout: Layout, into: memoryview, seed: int = 0) -> None:
    """Fill an image: matrices with numbers of about 0.02 of either sign, gains with 1."""
    drawn = np.random.default_rng(seed).integers(0, 1 << 16, STEP, dtype=np.uint16)
    block = SMALL & ~LOW_BITS | drawn & (LOW_BITS | 0x8000)
    image = np.frombuffer(into, np.uint16)
    for start in range(0, len(image), STEP):
        part = image[start : start + STEP]
        # Shifted, so that no two rows of a matrix are alike.
        part[:] = np.roll(block, 977 * (start // STEP))[: len(part)]
    ones = np.array([0x3F80], np.uint16)
    for spec in layout.tensors:
        if len(spec.shape) == 1:
            image[spec.offset // 2 : (spec.offset + spec.nbytes) // 2] = ones


def following(before: memoryview, into: memoryview, share: float, seed: int) -> None:
    """Fill an image with the version after another one: this share of its elements gets another fraction."""
    rng = np.random.default_rng(seed)
    change = rng.integers(1, LOW_BITS + 1, STEP, dtype=np.uint16)
    if share < 1:
        change[rng.random(STEP) >= share] = 0
    old, new = (np.frombuffer(view, np.uint16) for view in (before, into))
    for start in range(0, len(new), STEP):
        part: NDArray[np.uint16] = old[start : start + STEP]
        np.bitwise_xor(part, change[: len(part)], out=new[start : start + STEP])
