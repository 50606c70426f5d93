"""`Batch`: responses to train on, as padded tensors.

Owns the batch, and the cut of samples (`sample`) into batches. `losses` computes with them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gleaner.actors.model.shared_prompts import SharedPrompts
from gleaner.actors.training.sample import Sample


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples as tensors: B samples, N response tokens.

    rows: the input of the model; row by row its tails predict the N tokens of targets int64 [N], logprobs and
    advantages float32 [N]. lengths int64 [B]: of the responses.
    """

    rows: SharedPrompts
    targets: Tensor
    logprobs: Tensor
    advantages: Tensor
    lengths: Tensor


def collate(samples: Sequence[Sample]) -> Batch:
    """Samples to one batch, on the CPU."""
    lengths = torch.tensor([len(sample.response) for sample in samples])
    return Batch(
        rows=SharedPrompts([one.prompt for one in samples], [one.response[:-1] for one in samples]),
        targets=torch.tensor([token for sample in samples for token in sample.response]),
        logprobs=torch.tensor([p for sample in samples for p in sample.logprobs], dtype=torch.float32),
        advantages=torch.tensor([sample.advantage for sample in samples]).repeat_interleave(lengths),
        lengths=lengths,
    )


def by_length(samples: Sequence[Sample], most_tokens: int) -> Iterator[list[Sample]]:
    """Samples in batches of like length, each of at most `most_tokens` where all were as long as its longest
    prompt and its longest response (or of one sample). Samples of one prompt are neighbours.

    Bounds memory and padding; which samples share a batch changes no gradient but for rounding. The order
    depends on the samples alone.
    """
    longest: dict[tuple[int, ...], int] = {}
    for sample in samples:
        key = tuple(sample.prompt)
        longest[key] = max(longest.get(key, 0), len(sample))
    batch: list[Sample] = []
    prompt = response = 0
    # Stable, and ascending: the newest sample's group is the longest one.
    for sample in sorted(samples, key=lambda one: (longest[tuple(one.prompt)], tuple(one.prompt), len(one))):
        prompt, response = max(prompt, len(sample.prompt)), max(response, len(sample.response))
        if batch and (prompt + response) * (len(batch) + 1) > most_tokens:
            yield batch
            batch, prompt, response = [], len(sample.prompt), len(sample.response)
        batch.append(sample)
    if batch:
        yield batch
