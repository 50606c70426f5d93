"""Restriction of the token draw: top-k, top-p, min-p, biases, forbidden ends.

Ends are forbidden until the shortest length is reached. Pure. Only rows with a restriction are touched, so a
token of the others does not depend on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gleaner.actors.protocol.sampling_params import Sampling

Rows = Mapping[int, Sampling]
"""Row of the batch to its sampling settings."""


def biased(logits: Tensor, rows: Rows) -> Tensor:
    """Logits float32 [n, vocab] with the biases of the rows added."""
    asked = {row: one.logit_bias for row, one in rows.items() if one.logit_bias}
    if not asked:
        return logits
    logits = logits.clone()
    for row, pairs in asked.items():
        tokens, biases = zip(*pairs, strict=True)
        logits[row, list(tokens)] += torch.tensor(biases, dtype=logits.dtype)
    return logits


def forbid(logits: Tensor, rows: Mapping[int, Sequence[int]]) -> Tensor:
    """Logits float32 [n, vocab] under which these tokens of these rows are never drawn."""
    if not rows:
        return logits
    logits = logits.clone()
    for row, tokens in rows.items():
        logits[row, [token for token in tokens if token < logits.shape[1]]] = -torch.inf
    return logits


def restrict(probabilities: Tensor, rows: Rows) -> Tensor:
    """The remaining probabilities float32 [n, vocab]: 0 if a row's top_k, top_p or min_p excludes a token;
    rows do not sum up to 1 then. Of equally likely tokens at the edge the lower ids stay."""
    asked = {row: one for row, one in rows.items() if one.top_k > 0 or one.top_p < 1 or one.min_p > 0}
    if not asked:
        return probabilities
    probabilities = probabilities.clone()
    for row, one in asked.items():
        ordered, order = probabilities[row].sort(descending=True, stable=True)
        keep = torch.ones_like(ordered, dtype=torch.bool)
        if one.top_k > 0:
            keep[one.top_k :] = False
        if one.top_p < 1:
            keep &= ordered.cumsum(-1, dtype=torch.float64) - ordered < one.top_p
        if one.min_p > 0:
            keep &= ordered >= one.min_p * ordered[0]
        keep[0] = True
        probabilities[row, order[~keep]] = 0.0
    return probabilities
