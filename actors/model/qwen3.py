"""`Qwen3`: dense architecture in plain PyTorch, for training and decoding.

Owns the modules, their parameter names (those of Hugging Face's `Qwen3ForCausalLM`, so that state dicts are
interchangeable) and the forward pass over whole sequences. Decoding with a KV cache is in `builtin.decoder`,
reading and writing of checkpoint directories in `checkpoint`.

Source: Qwen3 technical report, arXiv:2505.09388, and `modeling_qwen3.py` of transformers 5, whose order of
operations is kept so that the logits agree to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gleaner.actors.model.qwen3_config import BadCheckpoint, Qwen3Config
from gleaner.actors.model.shared_prompts import SharedPrompts, causal

__all__ = ["BadCheckpoint", "Qwen3", "Qwen3Config", "rope_angles"]


def rope_angles(config: Qwen3Config, positions: int, device: torch.device | None = None) -> Tensor:
    """Angles of the rotary embedding, float32 [positions, head_dim / 2], radians."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
    inverse = 1.0 / config.rope_theta**exponents
    return torch.outer(torch.arange(positions, dtype=torch.float32, device=device), inverse)


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys and values, [..., T, heads, head_dim], to the attention output of the rows that the layer
continues with: all, or the last ones."""


class AttendAt(Protocol):
    """An `Attend` of any layer; behind the last one some rows may not be needed."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, last: bool) -> Tensor: ...


class RMSNorm(nn.Module):
    """Root mean square normalisation over the last axis, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Attention(nn.Module):
    """Causal grouped-query attention with normalised queries and keys."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        q_size = config.num_attention_heads * config.head_dim
        kv_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        heads = (*x.shape[:-1], -1, self.head_dim)
        q = _rotate(self.q_norm(self.q_proj(x).view(heads)), cos, sin)
        k = _rotate(self.k_norm(self.k_proj(x).view(heads)), cos, sin)
        mixed = attend(q, k, self.v_proj(x).view(heads))
        return self.o_proj(mixed.flatten(-2))  # type: ignore[no-any-return]  # nn.Module.__call__


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        mixed = self.self_attn(self.input_layernorm(x), cos, sin, attend)
        x = x[-len(mixed) :] + mixed  # `attend` returns the last rows
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class Body(nn.Module):
    """Everything but the output matrix; named `model` in the checkpoint."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, tokens: Tensor, positions: Tensor, attend: AttendAt) -> Tensor:
        x = self.embed_tokens(tokens)
        angles = rope_angles(self.config, int(positions.max()) + 1, tokens.device)[positions].unsqueeze(-2)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for at, layer in enumerate(self.layers, start=1):
            x = layer(x, cos, sin, partial(attend, last=at == len(self.layers)))
        return self.norm(x)  # type: ignore[no-any-return]


class Qwen3(nn.Module):
    """A Qwen3 causal language model.

    With tied embeddings there is no `lm_head.weight`: the output matrix is `model.embed_tokens.weight`, so
    each weight appears once in `state_dict()` and is published once.
    """

    def __init__(self, config: Qwen3Config) -> None:
        """Weights are drawn as Hugging Face does (normal, `initializer_range`) from torch's generator."""
        super().__init__()
        self.config = config
        self.model = Body(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=config.initializer_range)

    @property
    def output_matrix(self) -> Tensor:
        """[vocab_size, hidden_size]; the embedding itself where the two are tied."""
        return self.model.embed_tokens.weight if self.config.tie_word_embeddings else self.lm_head.weight

    def hidden(self, tokens: Tensor) -> Tensor:
        """Normalised hidden states of the last layer: int64 [B, T] to [B, T, hidden_size].

        For logits at a few positions only: `F.linear(hidden[mask], model.output_matrix)`.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.model(tokens, positions, _all)  # type: ignore[no-any-return]

    def response_states(self, rows: SharedPrompts) -> Tensor:
        """`hidden` of the tails of packed sequences: [rows.tails, hidden_size]."""
        return self.model(rows.tokens, rows.positions, rows.attend)  # type: ignore[no-any-return]

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token: int64 [B, T] to float32 [B, T, vocab_size].

        Attention is causal, so padding on the right needs no mask: what follows changes nothing before it.
        """
        return F.linear(self.hidden(tokens), self.output_matrix).float()


def _all(q: Tensor, k: Tensor, v: Tensor, *, last: bool) -> Tensor:
    """Attention of whole sequences, with all rows, also behind the last layer."""
    return causal(q, k, v)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (x[i], x[i + d/2]) of [..., T, heads, d] by their position's angle (cos, sin)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
