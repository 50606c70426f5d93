"""`Packed`: weights of a Qwen3 model for `decoder`, in float32, packed for speed.

Differences from `model.qwen3`, with the same result within rounding:
- q, k and v are one matrix, gate and up another, stored [in, out]: a third faster at the few rows of a decode
  step;
- the gains of the layer norms are folded into the matrix that follows them;
- the two elements that RoPE turns together are adjacent, so that the turn is one complex product. Queries and
  keys are permuted alike, which leaves their products as they are.

Packing reads a model and writes new memory: it may go on beside a decoder that has other weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gleaner.actors.model.qwen3 import Attention, Layer, Qwen3, Qwen3Config

ROWS = 64  # of a matrix are turned at a time: they stay in the cache, which makes it three times as fast


@dataclass(frozen=True)
class PackedLayer:
    """One layer."""

    qkv: Tensor  # [hidden, (heads + 2 kv_heads) * head_dim]
    qk_gain: Tensor  # [heads + kv_heads, head_dim]
    out: Tensor  # [heads * head_dim, hidden]
    gate_up: Tensor  # [hidden, 2 * intermediate]
    down: Tensor  # [intermediate, hidden]


class Layers(Protocol):
    """Layers of a model, from the first to the last at each pass."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[PackedLayer]: ...


@dataclass(frozen=True)
class Packed:
    """A whole model."""

    embedding: Tensor  # [vocabulary, hidden]
    layers: Layers
    head: Tensor  # [hidden, vocabulary]


@torch.inference_mode()
def pack(model: Qwen3) -> Packed:
    """Pack a model; the result shares no memory with it."""
    return Packed(
        embedding=model.model.embed_tokens.weight.to(torch.float32, copy=True),
        layers=[_layer(layer, model.config) for layer in model.model.layers if isinstance(layer, Layer)],
        head=_turned([model.output_matrix], model.model.norm.weight),
    )


def _layer(layer: Layer, config: Qwen3Config) -> PackedLayer:
    attention: Attention = layer.self_attn
    q, k = (_interleave(p.weight, config.head_dim) for p in (attention.q_proj, attention.k_proj))
    q_gain, k_gain = (
        _interleave(p.weight.float(), config.head_dim) for p in (attention.q_norm, attention.k_norm)
    )
    # RMSNorm gives q and k a factor sqrt(head_dim) each, attention divides by one: a single one is left.
    gains = [q_gain] * config.num_attention_heads
    gains += [k_gain * math.sqrt(config.head_dim)] * config.num_key_value_heads
    mlp = layer.mlp
    return PackedLayer(
        qkv=_turned([q, k, attention.v_proj.weight], layer.input_layernorm.weight),
        qk_gain=torch.stack(gains),
        out=_turned([attention.o_proj.weight]),
        gate_up=_turned([mlp.gate_proj.weight, mlp.up_proj.weight], layer.post_attention_layernorm.weight),
        down=_turned([mlp.down_proj.weight]),
    )


def _turned(matrices: Sequence[Tensor], gain: Tensor | None = None) -> Tensor:
    """Matrices [out, in], one below the other, as one [in, out]; with RMSNorm's gain, if any, and the
    constant that the decoder's norm leaves out."""
    scale = None if gain is None else gain.float() * math.sqrt(len(gain))
    turned = torch.empty(matrices[0].shape[1], sum(map(len, matrices)))
    at = 0
    for matrix in matrices:
        for start in range(0, len(matrix), ROWS):
            wide = matrix[start : start + ROWS].float()
            turned[:, at : at + len(wide)] = (wide if scale is None else wide * scale).t()
            at += len(wide)
    return turned


def _interleave(x: Tensor, head_dim: int) -> Tensor:
    """Bring elements i and i + head_dim/2 of each head side by side, on the first axis."""
    return x.view(-1, 2, head_dim // 2, *x.shape[1:]).transpose(1, 2).reshape(x.shape)
