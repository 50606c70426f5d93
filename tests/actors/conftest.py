"""Small random models for tests of models and engines; their attention is far from uniform."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gleaner.actors.model.qwen3 import Qwen3, Qwen3Config

SMALL = Qwen3Config(
    vocab_size=96,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    rope_theta=1e4,
    tie_word_embeddings=True,
    initializer_range=0.15,
)


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Qwen3]:
    def make(seed: int = 0, config: Qwen3Config = SMALL) -> Qwen3:
        torch.manual_seed(seed)
        model = Qwen3(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.uniform_(0.5, 1.5)
        return model

    return make
