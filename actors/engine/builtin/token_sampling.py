"""Counter-based sampling: a token is a function of seed, position and logits.

Pure. No generator is kept, so a token does not depend on the batch, the slot or the instance that drew it. A
migrated request continues as if it had stayed.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gleaner.actors.engine.builtin.logit_filters import Rows, restrict

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # the constants of SplitMix64: Steele, Lea, Flood, OOPSLA 2014
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def request_keys(seeds: list[int]) -> NDArray[np.uint64]:
    """The start of each request's own stream, uint64 [n]; any integer is a seed, the low 64 bits count."""
    # Mixed once, so that the streams of neighbouring seeds start far apart.
    return _mix(np.array([seed & (2**64 - 1) for seed in seeds], dtype=np.uint64) + _GAMMA)


def uniforms(keys: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number in [0, 1 - 2^-52] for each (request, index of the token in its response), float64 [n]."""
    z = _mix(keys + (positions.astype(np.uint64) + np.uint64(1)) * _GAMMA)
    # 52 bits: then u * total < total after rounding too, and no token beyond the last is ever drawn.
    return (z >> np.uint64(12)).astype(np.float64) * 2.0**-52


def sample(
    logits: Tensor, temperatures: Tensor | None, uniform: Tensor, restricted: Rows | None = None
) -> tuple[Tensor, Tensor]:
    """Draw one token for each row by inverting the cumulative distribution.

    `logits` float32 [n, vocab], `temperatures` float32 [n] (None: all 1), `uniform` float64 [n]. Returns
    tokens int64 [n] and log-probs float32 [n] *under the distribution that was sampled from*, softmax(logits
    / T). A temperature of 0 takes the most likely token (the lowest id of equals); its log-prob is that at
    temperature 1, as the sampled-from distribution is a point and would always give 0. If `restricted` rows
    draw from a part of the vocabulary (top-k, top-p, min-p), log-probs stay those of the whole, as a trainer
    computes them for the same token.
    """
    greedy = None
    if temperatures is not None:
        greedy = temperatures == 0
        logits = logits / torch.where(greedy, 1.0, temperatures).unsqueeze(1)
    logprobs = torch.log_softmax(logits, dim=-1)
    probabilities = restrict(logprobs.exp(), restricted or {})
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    target = uniform.unsqueeze(1) * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target, right=True)
    if greedy is not None and bool(greedy.any()):
        tokens = torch.where(greedy.unsqueeze(1), logprobs.argmax(-1, keepdim=True), tokens)
    # Only logits that are no numbers lead past the end; their log-prob is NaN, and the engine refuses it.
    tokens.clamp_(max=logits.shape[1] - 1)
    return tokens.squeeze(1), logprobs.gather(1, tokens).squeeze(1)
