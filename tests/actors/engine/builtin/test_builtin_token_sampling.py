from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.engine.builtin.token_sampling import request_keys, sample, uniforms


def draw(seeds: list[int], position: int) -> np.ndarray:
    return uniforms(request_keys(seeds), np.full(len(seeds), position))


@given(st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=20), st.integers(0, 2**40))
def test_number_depends_on_its_seed_and_position_only(seeds: list[int], position: int) -> None:
    together = draw(seeds, position)
    assert together.tolist() == [draw([seed], position)[0] for seed in seeds]
    assert ((together >= 0) & (together < 1)).all()


def test_numbers_are_uniform_and_independent() -> None:
    grid = np.stack([draw(list(range(400)), position) for position in range(400)])
    counts = np.histogram(grid, bins=50, range=(0, 1))[0]
    expected = grid.size / 50
    assert (
        (counts - expected) ** 2 / expected
    ).sum() < 110  # chi-square, 49 degrees: beyond this once in 10^6
    for other in (grid[:, 1:] * grid[:, :-1], grid[1:] * grid[:-1], grid[1:, 1:] * grid[:-1, :-1]):
        assert abs(other.mean() - 0.25) < 0.005


def test_random_stream_never_changes() -> None:
    """A response that one release begins and another ends is still that of its seed."""
    assert request_keys([0, 1, 2**64]).tolist() == [
        16294208416658607535,
        10451216379200822465,
        16294208416658607535,
    ]


@given(st.integers(0, 2**32), st.floats(0.2, 3.0))
@settings(deadline=None, max_examples=50)
def test_logprobs_are_those_of_the_tempered_distribution(seed: int, temperature: float) -> None:
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(seed)) * 3
    tokens, logprobs = sample(logits, torch.full((5,), temperature), torch.from_numpy(draw([seed] * 5, 3)))
    expected = (logits / temperature).log_softmax(-1).gather(1, tokens.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=0)


def test_tokens_have_the_frequency_of_their_probability() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, -torch.inf])
    n = 40_000
    tokens, _ = sample(logits.expand(n, 5), None, torch.from_numpy(draw(list(range(n)), 0)))
    frequency = torch.bincount(tokens, minlength=5) / n
    torch.testing.assert_close(frequency, logits.softmax(0), atol=0.01, rtol=0)
    assert frequency[4] == 0


def test_impossible_token_is_never_sampled() -> None:
    logits = torch.full((2, 1000), -torch.inf)
    logits[:, 300:310] = 0.0
    tokens, logprobs = sample(logits, None, torch.tensor([0.0, 1 - 2**-52], dtype=torch.float64))
    assert tokens.tolist() == [300, 309]
    assert torch.isfinite(logprobs).all()


def test_temperature_zero_takes_the_most_likely_token() -> None:
    logits = torch.randn(4, 50)
    uniform = torch.from_numpy(draw([1, 2, 3, 4], 0))
    mixed, logprobs = sample(logits, torch.tensor([0.0, 1.0, 0.0, 1.0]), uniform)
    sampled, _ = sample(logits, None, uniform)
    best = logits.argmax(-1)
    assert mixed.tolist() == [best[0], sampled[1], best[2], sampled[3]]
    assert torch.allclose(logprobs, logits.log_softmax(-1).gather(1, mixed.unsqueeze(1)).squeeze(1))
