"""`Decoder`: incremental decoding of Qwen3 over a KV cache with fixed slots.

The cache is preallocated.

Owns the cache; the weights are packed for speed (`packed_weights`). Knows slots and positions, but no
requests, sampling or stopping (`engine` does). Computes in float32; tokens and logits are the host's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gleaner.actors.engine.builtin.packed_weights import Packed, PackedLayer, pack
from gleaner.actors.model.qwen3 import Qwen3, rope_angles

COLUMN_STEP = 16  # the cache is read in whole vectors (AVX-512: 16 floats); the mask hides what is too much


class Decoder:
    """`slots` sequences of at most `max_tokens` tokens each; the active ones are always slots 0 to n - 1.

    Memory of the cache: layers * slots * 2 * kv_heads * max_tokens * head_dim * 4 bytes.
    """

    def __init__(self, model: Qwen3, slots: int, max_tokens: int, device: torch.device | None = None) -> None:
        """device: with the cache; None: the host."""
        config = self.config = model.config
        self._device = device = device or torch.device("cpu")
        kv_heads, head_dim = config.num_key_value_heads, config.head_dim
        # Keys are stored [head_dim, time], values [time, head_dim]: both products of a decode step then run
        # along memory (twice as fast as torch's fused attention at one query a sequence).
        self._keys = torch.empty(
            config.num_hidden_layers, slots, kv_heads, head_dim, max_tokens, device=device
        )
        self._values = torch.empty(
            config.num_hidden_layers, slots, kv_heads, max_tokens, head_dim, device=device
        )
        self._flat_keys = self._keys.flatten(1)
        self._flat_values = self._values.flatten(1, 3)
        self._key_start = (
            torch.arange(slots * kv_heads * head_dim, device=device).view(slots, -1) * max_tokens
        )
        self._value_start = torch.arange(slots * kv_heads, device=device).view(slots, -1) * max_tokens
        self._columns = torch.arange(max_tokens, device=device)
        angles = rope_angles(config, max_tokens, device)
        self._turn = torch.polar(torch.ones_like(angles), angles)  # complex64 [max_tokens, head_dim / 2]
        self._floor = torch.tensor(math.sqrt(config.rms_norm_eps * config.hidden_size), device=device)
        self._head_floor = torch.tensor(math.sqrt(config.rms_norm_eps * config.head_dim), device=device)
        self._packed: Packed | None = None
        self.take(pack(model))

    def take(self, packed: Packed) -> Packed | None:
        """Decode with these weights from now on. The cache belongs to the old ones and is emptied. Returns
        the old ones, if there are any; the caller frees them."""
        old, self._packed = self._packed, packed
        for cache in (self._keys, self._values):
            cache.zero_()  # a NaN of broken weights would survive behind the mask: 0 * NaN is NaN
        self._embedding, self._layers, self._head = packed.embedding, packed.layers, packed.head
        return old

    def rows_of_pass(self, left: int) -> int:
        """The number of rows for the next `decode`, if `left` slots have a token to feed."""
        return left

    @torch.inference_mode()
    def prefill(self, contexts: Sequence[Sequence[int]], first_slot: int) -> None:
        """Fill the cache of slots `first_slot` … with these contexts of at least one token, in one batch.

        Equal contexts (the samples of one group) are computed once. Contexts are padded to the longest: the
        cache behind a context holds garbage that `decode` overwrites before it attends to it.
        """
        unique = {tuple(context): index for index, context in enumerate(dict.fromkeys(map(tuple, contexts)))}
        to_slot = torch.tensor([unique[tuple(context)] for context in contexts], device=self._device)
        length = max(map(len, unique))
        tokens = torch.zeros(len(unique), length, dtype=torch.int64)
        for context, row in unique.items():
            tokens[row, : len(context)] = torch.tensor(context)
        x = F.embedding(tokens.view(-1).to(self._device), self._embedding)
        turn = self._turn[:length].repeat(len(unique), 1)
        filled = slice(first_slot, first_slot + len(contexts))
        for index, layer in enumerate(self._layers):
            q, k, v = (
                part.view(len(unique), length, -1, self.config.head_dim).transpose(1, 2)
                for part in self._project(x, layer, turn)
            )
            self._keys[index, filled, ..., :length] = k.transpose(2, 3)[to_slot]
            self._values[index, filled, :, :length] = v[to_slot]
            if index + 1 < len(self._layers):  # the last layer is needed for its keys and values only
                mixed = self._attend_all(q, k, v)
                self._finish_layer(x, mixed.transpose(1, 2).reshape(len(x), -1), layer)

    @torch.inference_mode()
    def decode(self, tokens: Tensor, positions: Tensor, longest: int, first: int = 0) -> Tensor:
        """Feed one token to each of n slots from `first` on; the logits of the next, float32 [n, vocab].

        `tokens` and `positions` int64 [n]: the token and its index in its sequence; all earlier positions
        must be in the cache. `longest` is max(positions) + 1.
        """
        config, n = self.config, len(tokens)
        tokens, positions = tokens.to(self._device), positions.to(self._device)
        heads = config.num_key_value_heads
        pairs = n * heads  # of a sequence and a head of keys: one small product each
        columns = min(-(-longest // COLUMN_STEP) * COLUMN_STEP, len(self._columns))
        x = F.embedding(tokens, self._embedding)
        turn = self._turn.index_select(0, positions)
        at = positions.unsqueeze(1)
        key_at = (self._key_start[first : first + n] + at).view(-1)
        value_at = (self._value_start[first : first + n] + at).view(-1)
        mask = (
            torch.zeros(n, columns, device=self._device)
            .masked_fill_(self._columns[:columns] > at, -math.inf)
            .unsqueeze(1)
        )
        seen = slice(first * heads, first * heads + pairs)
        seen_keys = self._keys.flatten(1, 2)[:, seen, :, :columns]
        seen_values = self._values.flatten(1, 2)[:, seen, :columns]
        for index, layer in enumerate(self._layers):
            q, k, v = self._project(x, layer, turn)
            self._flat_keys[index].scatter_(0, key_at, k.reshape(-1))
            self._flat_values[index].index_copy_(0, value_at, v.reshape(-1, config.head_dim))
            # Queries that share a head of keys are the rows of one product, so no key is repeated.
            scores = torch.bmm(q.reshape(pairs, -1, config.head_dim), seen_keys[index])
            scores.view(n, -1, columns).add_(mask)
            mixed = torch.bmm(torch.softmax(scores, dim=-1), seen_values[index])
            self._finish_layer(x, mixed.view(n, -1), layer)
        return self._logits(x).cpu()

    @torch.inference_mode()
    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot's cache over another's."""
        self._keys[:, target, ..., :length] = self._keys[:, source, ..., :length]
        self._values[:, target, :, :length] = self._values[:, source, :, :length]

    def _project(self, x: Tensor, layer: PackedLayer, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Turned queries, turned keys and values, each [rows, its heads, head_dim]; queries are scaled."""
        heads, kv_heads = self.config.num_attention_heads, self.config.num_key_value_heads
        qkv = _unit(x, self._floor).mm(layer.qkv).view(len(x), -1, self.config.head_dim)
        qk, v = qkv.split_with_sizes((heads + kv_heads, kv_heads), dim=1)
        qk = _unit(qk, self._head_floor).mul_(layer.qk_gain)
        pairs = torch.view_as_complex(qk.view(*qk.shape[:2], -1, 2))
        turned = torch.view_as_real(pairs.mul_(turn.unsqueeze(1))).flatten(2)
        q, k = turned.split_with_sizes((heads, kv_heads), dim=1)
        return q, k, v

    def _attend_all(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention over whole contexts, [contexts, heads, length, head_dim]."""
        if (
            self._device.type == "cuda"
        ):  # heads that share keys would keep it from kernels that store no scores
            each = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, enable_gqa=True)

    def _logits(self, x: Tensor) -> Tensor:
        return _unit(x, self._floor).mm(self._head)

    def _finish_layer(self, x: Tensor, mixed: Tensor, layer: PackedLayer) -> None:
        """Add what attention and then the MLP give to the residual stream x [rows, hidden], in place."""
        x.addmm_(mixed, layer.out)
        gate, up = _unit(x, self._floor).mm(layer.gate_up).chunk(2, dim=1)
        x.addmm_(F.silu(gate).mul_(up), layer.down)


def _unit(x: Tensor, floor: Tensor) -> Tensor:
    """x / sqrt(sum(x²) + floor²) over the last axis: RMSNorm but for a constant that the weights hold."""
    return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), floor)
