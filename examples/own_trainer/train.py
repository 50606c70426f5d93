"""A training loop of your own that publishes every version of its weights to a running job.

    rlctl model new my-model
    rlctl run quickstart --set training.backend=own --set model.path=my-model
    python examples/own_trainer/train.py runs my-model      # in another terminal

The first argument is the folder of runs, or the address of a head: "tcp://10.0.0.1:7700". Replace `batches`
and the loss by yours. `publish` returns when the tensors are copied; then the hosts of the job pull them.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from gleaner import publisher

STEPS = 3


def batches(vocabulary: int) -> Iterator[torch.Tensor]:
    """Token ids, two sequences a step; random ones, where yours would come from rollouts."""
    chance = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        yield torch.randint(vocabulary, (2, 16), generator=chance)


def train(address: str, folder: Path) -> int:
    """Train the model in `folder` for some steps; returns the newest version that was published."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with publisher(address) as weights:
        weights.publish(model.state_dict(), 0, config=folder)
        for version, batch in enumerate(batches(model.config.vocab_size), 1):
            optimizer.zero_grad()
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            weights.publish(model.state_dict(), version, config=folder)
            print(f"version {version}: loss {loss.item():.3f}")
    return version


if __name__ == "__main__":
    train(sys.argv[1], Path(sys.argv[2]))
