"""Policy losses: clipped surrogates, with a correction for stale samples.

Mathematics on tensors; no optimizer, no process. The advantages are `advantages`. The loss of a step is a
mean over all its tokens, or over all its samples; how many there are is known only when the last group is
complete. So a micro-batch yields sums, and the accumulator divides once: the gradient is that of one batch.

| name | ratio of | clip | mean over | source |
|---|---|---|---|---|
| grpo | a token | 1 - clip_low, 1 + clip_high | samples, each a mean | arXiv:2402.03300, eq. 3 |
| dapo | a token | 1 - clip_low, 1 + clip_high | tokens | arXiv:2503.14476, eq. 8 |
| gspo | a response: its geometric mean | 1 - clip_low, 1 + clip_high | samples | arXiv:2507.18071, eq. 5 |
| ppo | a token | 1 - clip_low, 1 + clip_low | tokens | arXiv:1707.06347, eq. 7, no critic |

No divergence from a reference model is added to any of them.

Truncated importance sampling (Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL
Training", 2025): the ratio is against the policy as the step began, and each token's loss is weighted with
min(p_begin / p_sampled, cap), a constant. So samples of earlier weights, or of an engine that rounds
otherwise, are corrected for, at a bounded variance. A step moves the weights once, so the policy as it began
is the one that computes the gradient, and no second forward pass is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossRule:
    """of_response: one ratio for a whole response; else each token has its own. per_sample: every sample
    counts as much, however long; else every token does. symmetric: `clip_low` bounds the ratio on both
    sides."""

    of_response: bool = False
    per_sample: bool = False
    symmetric: bool = False


LOSSES: Final[Mapping[str, LossRule]] = {
    "grpo": LossRule(per_sample=True),
    "dapo": LossRule(),
    "gspo": LossRule(of_response=True, per_sample=True),
    "ppo": LossRule(symmetric=True),
}


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over a batch; `loss` carries the gradient, the others are for reports.

    clipped: tokens that the clip took out of the gradient. truncated: tokens whose importance weight the cap
    cut. drift: the estimated KL divergence of the policy from the one that sampled; about 0 when on-policy.
    """

    loss: Tensor
    tokens: int
    samples: int
    clipped: Tensor
    truncated: Tensor
    drift: Tensor


def loss_sums(
    rule: LossRule,
    logprobs: Tensor,
    sampled: Tensor,
    advantages: Tensor,
    lengths: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    importance_cap: float | None = None,
) -> LossSums:
    """The clipped surrogate of `rule`, negated and summed over the tokens of a batch.

    `logprobs` (with gradient), `sampled` and `advantages` are float [N], sample after sample; `lengths` int64
    [B] is the length of each. For each token min(r A, clip(r) A), where r is the ratio of its probabilities
    under the policy and under the one that sampled it; with `importance_cap` under the policy as the step
    began, and weighted. No gradient flows into anything but `logprobs`. Divide by the samples of the step if
    the rule has per_sample, otherwise by its tokens.
    """
    begin = logprobs.detach()
    log_ratio = logprobs - (sampled if importance_cap is None else begin)
    if rule.of_response:
        log_ratio = _spread(_mean_of_each(log_ratio, lengths), lengths)
    ratio = log_ratio.exp()
    bound = ratio.clamp(1 - clip_low, 1 + (clip_low if rule.symmetric else clip_high))
    free, bounded = ratio * advantages, bound * advantages
    loss = -torch.minimum(free, bounded)
    truncated = torch.zeros((), dtype=torch.int64)
    if importance_cap is not None:
        weight = (begin - sampled).exp()
        truncated = (weight > importance_cap).sum()
        loss = loss * weight.clamp(max=importance_cap)
    if rule.per_sample:
        loss = loss / _spread(lengths.to(loss.dtype), lengths)
    with torch.no_grad():
        gap = logprobs - sampled
        drift = (torch.expm1(gap) - gap).sum()  # k3 of Schulman's "Approximating KL": never negative
        clipped = (bounded < free).sum()
    return LossSums(loss.sum(), logprobs.numel(), len(lengths), clipped, truncated, drift)


def _mean_of_each(values: Tensor, lengths: Tensor) -> Tensor:
    """[N] to [B]: the mean of each sample's tokens."""
    parts = torch.split(values, lengths.tolist())
    return torch.stack([part.mean() for part in parts])


def _spread(values: Tensor, lengths: Tensor) -> Tensor:
    """[B] to [N]: each sample's value for each of its tokens."""
    return values.repeat_interleave(lengths)
