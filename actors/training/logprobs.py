"""Log-probs of responses under the policy in training.

Mathematics on tensors; no optimizer, no process. What is made of them is `losses`.
"""

from __future__ import annotations

from typing import Protocol

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


def token_logprobs(model: LanguageModel, batch: Batch, temperature: float = 1.0) -> Tensor:
    """Log-probs of the batch's response tokens under the model, with gradient: [N], as `targets`."""
    # The output matrix is the widest of the model: apply it where a response token is predicted, only.
    hidden = model.hidden(batch.inputs)[batch.chosen]
    logits = F.linear(hidden, model.output_matrix) / temperature
    return -F.cross_entropy(logits, batch.targets, reduction="none")
