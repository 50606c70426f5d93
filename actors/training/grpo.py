"""GRPO: the clipped policy-gradient loss over tokens; the advantages are `advantages`.

Mathematics on tensors; no optimizer, no process. A sample's tokens count equally wherever it is: the
loss of a step is the sum over all its tokens divided by their number. That number is known only when the last
group is complete, so micro-batches yield sums and who accumulates divides once; the result is the gradient of
one full batch.

Sources: DeepSeekMath, arXiv:2402.03300 (GRPO); DAPO, arXiv:2503.14476 (token-level loss, `clip_high`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.training.samples import Batch


class LanguageModel(Protocol):
    """A causal model cut before its output matrix."""

    def hidden(self, tokens: Tensor) -> Tensor:
        """Last hidden states: int64 [B, T] to [B, T, width]; what follows a position does not change it."""

    @property
    def output_matrix(self) -> Tensor:
        """[vocabulary, width]."""


@dataclass(frozen=True, slots=True)
class TokenSums:
    """Sums over the tokens of a batch. `loss` carries the gradient; the others are for the reader.

    clipped: tokens that the clip took out of the gradient. drift: the estimated KL divergence of the policy
    from the one that sampled, about 0 when training is on-policy.
    """

    loss: Tensor
    tokens: int
    clipped: Tensor
    drift: Tensor


def policy_sums(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> TokenSums:
    """The clipped surrogate, negated and summed over tokens; all inputs float [N].

    For each token min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with r the ratio of its probabilities
    under the policy and under the one that sampled it. No gradient flows into the old ones.
    """
    log_ratio = logprobs - old_logprobs
    ratio = log_ratio.exp()
    free, bounded = ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    with torch.no_grad():
        drift = torch.expm1(log_ratio) - log_ratio  # k3 of Schulman's "Approximating KL": never negative
        clipped = (bounded < free).sum()
    return TokenSums(-torch.minimum(free, bounded).sum(), logprobs.numel(), clipped, drift.sum())


def token_logprobs(model: LanguageModel, batch: Batch, temperature: float = 1.0) -> Tensor:
    """Log-probs of the batch's response tokens under the model, with gradient: [N], as `targets`."""
    # The output matrix is the widest of the model: apply it where a response token is predicted, only.
    hidden = model.hidden(batch.inputs)[batch.chosen]
    logits = F.linear(hidden, model.output_matrix) / temperature
    return -F.cross_entropy(logits, batch.targets, reduction="none")
