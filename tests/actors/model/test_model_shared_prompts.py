from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gleaner.actors.model.qwen3 import Qwen3, Qwen3Config
from gleaner.actors.model.shared_prompts import SharedPrompts

VOCABULARY = 29
TOKENS = st.integers(0, VOCABULARY - 1)
GROUPS = st.lists(
    st.tuples(
        st.lists(TOKENS, min_size=1, max_size=9),
        st.lists(st.lists(TOKENS, max_size=7), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def model() -> Qwen3:
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            initializer_range=0.2,
            tie_word_embeddings=True,
        )
        return Qwen3(config)


@given(GROUPS, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_states_and_gradients_equal_those_of_whole_sequences(
    model: Qwen3, groups: list[tuple[list[int], list[list[int]]]], rng: object
) -> None:
    pairs = [(prompt, response) for prompt, responses in groups for response in responses]
    rng.shuffle(pairs)  # type: ignore[attr-defined]  # hypothesis leaves it untyped
    rows = SharedPrompts([prompt for prompt, _ in pairs], [response for _, response in pairs])
    shared = model.response_states(rows)
    whole = torch.cat([model.hidden(torch.tensor([p + r]))[0, len(p) - 1 :] for p, r in pairs])
    torch.testing.assert_close(shared, whole, rtol=1e-4, atol=1e-4)
    weights = torch.linspace(-1, 1, shared.numel()).view_as(shared)
    parameters = list(model.parameters())
    torch.testing.assert_close(
        torch.autograd.grad((shared * weights).sum(), parameters),
        torch.autograd.grad((whole * weights).sum(), parameters),
        rtol=1e-3,
        atol=1e-4,
    )


@given(GROUPS)
@settings(deadline=None, max_examples=40)
def test_prompt_is_computed_once_for_all_responses(
    groups: list[tuple[list[int], list[list[int]]]],
) -> None:
    pairs = [(prompt, response) for prompt, responses in groups for response in responses]
    rows = SharedPrompts([prompt for prompt, _ in pairs], [response for _, response in pairs])
    heads = sum(len(prompt) - 1 for prompt in {tuple(prompt) for prompt, _ in pairs})
    assert rows.tails == sum(1 + len(response) for _, response in pairs)
    assert len(rows) == len(rows.tokens) == len(rows.positions) == heads + rows.tails
