"""How responses to train on become padded tensors.

Owns the batch, and how samples (`sample`) are cut into batches. Does not own what is computed from them
(`losses`). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from actors.training.sample import Sample


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples as tensors, padded on the right. B samples, T tokens of the longest, N response tokens.

    inputs int64 [B, T-1]: what the model reads. chosen bool [B, T-1]: positions that predict a response
    token; row by row they list the N tokens of targets int64 [N], logprobs and advantages float32 [N].
    lengths int64 [B]: of the responses.
    """

    inputs: Tensor
    chosen: Tensor
    targets: Tensor
    logprobs: Tensor
    advantages: Tensor
    lengths: Tensor


def collate(samples: Sequence[Sample]) -> Batch:
    """Samples to one padded batch, on the CPU. Padding is token 0 and is never chosen."""
    width = max(len(sample) for sample in samples) - 1
    inputs = torch.zeros(len(samples), width, dtype=torch.int64)
    chosen = torch.zeros(len(samples), width, dtype=torch.bool)
    for row, sample in enumerate(samples):
        tokens = [*sample.prompt, *sample.response]
        inputs[row, : len(tokens) - 1] = torch.tensor(tokens[:-1])
        chosen[row, len(sample.prompt) - 1 : len(tokens) - 1] = True
    lengths = torch.tensor([len(sample.response) for sample in samples])
    return Batch(
        inputs=inputs,
        chosen=chosen,
        targets=torch.tensor([token for sample in samples for token in sample.response]),
        logprobs=torch.tensor([p for sample in samples for p in sample.logprobs], dtype=torch.float32),
        advantages=torch.tensor([sample.advantage for sample in samples]).repeat_interleave(lengths),
        lengths=lengths,
    )


def by_length(samples: Sequence[Sample], most_tokens: int) -> Iterator[list[Sample]]:
    """Samples in batches of like length, each of at most `most_tokens` after padding (or of one sample).

    Bounds memory and padding; which samples share a batch changes no gradient but for rounding. The order
    depends on the samples alone.
    """
    batch: list[Sample] = []
    for sample in sorted(samples, key=len):  # stable, and ascending: the newest sample is the longest
        if batch and len(sample) * (len(batch) + 1) > most_tokens:
            yield batch
            batch = []
        batch.append(sample)
    if batch:
        yield batch
