"""Log-probs of responses under the policy in training.

Mathematics on tensors; no optimizer, no process. `losses` uses the result.
"""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from gleaner.actors.model.shared_prompts import SharedPrompts
from gleaner.actors.training.samples import Batch


class LanguageModel(Protocol):
    """A causal model cut before its output matrix."""

    def response_states(self, rows: SharedPrompts) -> Tensor:
        """Last hidden states of the tails: [rows.tails, width]; what follows a position changes nothing."""

    @property
    def output_matrix(self) -> Tensor:
        """[vocabulary, width]."""


def token_logprobs(model: LanguageModel, batch: Batch, temperature: float = 1.0) -> Tensor:
    """Log-probs of the batch's response tokens under the model, with gradient: [N], as `targets`."""
    logits = F.linear(model.response_states(batch.rows), model.output_matrix) / temperature
    return -F.cross_entropy(logits, batch.targets, reduction="none")
