from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gleaner.actors.model.shared_prompts import SharedPrompts
from gleaner.actors.training.advantages import group_advantages
from gleaner.actors.training.logprobs import token_logprobs
from gleaner.actors.training.losses import LOSSES, LossSums, loss_sums
from gleaner.actors.training.sample import Sample
from gleaner.actors.training.samples import by_length, collate

VOCABULARY, WIDTH = 11, 6


SLOW_OR_FAST = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


class Toy(nn.Module):
    """A causal model in float64: a position's state is the weighted sum of the tokens so far."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Parameter(
            torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=torch.float64)
        )
        self.output = nn.Parameter(torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=torch.float64))

    def hidden(self, tokens: Tensor) -> Tensor:
        weights = torch.arange(1, tokens.shape[1] + 1, dtype=torch.float64)[None, :, None]
        return (self.embedding[tokens] * weights).cumsum(1) / weights.cumsum(1)

    def response_states(self, rows: SharedPrompts) -> Tensor:
        keys, queries = torch.zeros(2, len(rows), 1, WIDTH, dtype=torch.float64)
        keys[:, 0, 0], queries[:, 0, 0] = (rows.positions + 1).double().log(), math.sqrt(WIDTH)
        return rows.attend(queries, keys, self.embedding[rows.tokens].unsqueeze(1), last=True).squeeze(1)

    @property
    def output_matrix(self) -> Tensor:
        return self.output

    def gradient(self) -> Tensor:
        parts = [p.grad.flatten() for p in (self.embedding, self.output) if p.grad is not None]
        return torch.cat(parts)


def some_samples(count: int, seed: int = 0) -> list[Sample]:
    """Samples of different lengths; their old log-probs are far enough off that the ratio is clipped."""
    rng = random.Random(seed)
    samples = []
    for _ in range(count):
        length = rng.randint(1, 12)
        samples.append(
            Sample(
                prompt=[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 6))],
                response=[rng.randrange(VOCABULARY) for _ in range(length)],
                logprobs=[rng.uniform(-4, -1) for _ in range(length)],
                advantage=rng.gauss(0, 1),
            )
        )
    return samples


def dapo(logprobs: Tensor, sampled: Tensor, advantages: Tensor, lengths: Tensor | None = None) -> LossSums:
    """DAPO's loss with the clip of the paper; by default every token is a sample of its own."""
    if lengths is None:
        lengths = torch.ones(len(logprobs), dtype=torch.int64)
    return loss_sums(LOSSES["dapo"], logprobs, sampled, advantages, lengths, clip_low=0.2, clip_high=0.28)


def add_gradient(model: Toy, samples: list[Sample]) -> int:
    batch = collate(samples)
    sums = dapo(token_logprobs(model, batch), batch.logprobs, batch.advantages, batch.lengths)
    sums.loss.backward()
    return sums.tokens


def one_batch_gradient(samples: list[Sample]) -> Tensor:
    model = Toy()
    tokens = add_gradient(model, samples)
    return model.gradient() / tokens


@given(st.permutations(range(12)), st.sets(st.integers(1, 11)))
@settings(SLOW_OR_FAST, max_examples=15)
def test_micro_batches_in_any_order_equal_one_batch(order: list[int], cuts: set[int]) -> None:
    samples = some_samples(12)
    model, tokens = Toy(), 0
    edges = [0, *sorted(cuts), 12]
    for start, end in itertools.pairwise(edges):
        tokens += add_gradient(model, [samples[at] for at in order[start:end]])
    torch.testing.assert_close(model.gradient() / tokens, one_batch_gradient(samples), rtol=1e-12, atol=1e-14)


def test_gradient_equals_the_formula_token_by_token() -> None:
    samples, model = some_samples(8, seed=3), Toy()
    terms: list[Tensor] = []
    for sample in samples:
        read = list(sample.prompt)
        for token, old in zip(sample.response, sample.logprobs, strict=True):
            state = model.hidden(torch.tensor([read]))[0, -1]
            new = torch.log_softmax(model.output @ state, -1)[token]
            ratio = torch.exp(new - torch.tensor(old, dtype=torch.float32))
            advantage = torch.tensor(sample.advantage, dtype=torch.float32)
            terms.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage))
            read.append(token)
    torch.stack(terms).mean().backward()
    torch.testing.assert_close(one_batch_gradient(samples), model.gradient(), rtol=1e-10, atol=1e-12)


def test_on_policy_gradient_is_the_unclipped_policy_gradient() -> None:
    logprobs = torch.tensor([-0.5, -2.0, -1.0], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([1.0, -2.0, 0.0])
    sums = dapo(logprobs, logprobs.detach().clone(), advantages)
    sums.loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-1.0, 2.0, 0.0]
    assert (sums.tokens, sums.clipped.item(), sums.drift.item()) == (3, 0, 0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (1.5, 1.0, False),
        (1.5, -1.0, True),
        (0.5, -1.0, False),
        (0.5, 1.0, True),
        (1.27, 1.0, True),
        (0.81, -1.0, True),
    ],
)
def test_clip_stops_tokens_that_moved_far_enough(ratio: float, advantage: float, moves: bool) -> None:
    logprobs = torch.tensor([math.log(ratio)], requires_grad=True)
    sums = dapo(logprobs, torch.zeros(1), torch.tensor([advantage]))
    sums.loss.backward()
    assert logprobs.grad is not None
    assert (logprobs.grad.item() != 0) == moves
    assert sums.clipped.item() == (not moves)
    assert sums.drift.item() > 0


def test_group_advantages_are_centred_and_scaled() -> None:
    advantages = group_advantages([0.0, 1.0, 1.0, 0.0])
    assert sum(advantages) == pytest.approx(0)
    assert advantages == pytest.approx([-0.8659, 0.8659, 0.8659, -0.8659], abs=1e-3)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=16))
@settings(SLOW_OR_FAST)
def test_advantages_keep_reward_order_and_sum_to_zero(rewards: list[float]) -> None:
    advantages = group_advantages(rewards)
    assert sum(advantages) == pytest.approx(0, abs=1e-6)
    for (reward, advantage), (other, others) in zip(
        zip(rewards, advantages, strict=True), zip(rewards[1:], advantages[1:], strict=True), strict=False
    ):
        assert (reward - other) * (advantage - others) >= 0


@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0])
def test_group_of_equal_rewards_gives_no_gradient(reward: float) -> None:
    assert group_advantages([reward] * 7) == [0.0] * 7


def test_group_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two"):
        group_advantages([1.0])


def test_batch_reads_each_prompt_once() -> None:
    first, other = [Sample([1, 2], [3, 4, 5], [-1, -2, -3], 0.5), Sample([6], [7], [-4], -1.0)]
    batch = collate([first, other, Sample([1, 2], [8], [-5], 2.0)])
    assert batch.rows.tokens.tolist() == [1, 2, 3, 4, 6, 2]
    assert batch.rows.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert (batch.rows.tails, batch.rows.owner.tolist()) == (5, [0, 1, 0])
    assert batch.targets.tolist() == [3, 4, 5, 7, 8]
    assert batch.logprobs.tolist() == [-1, -2, -3, -4, -5]
    assert batch.advantages.tolist() == [0.5, 0.5, 0.5, -1.0, 2.0]


@given(st.integers(1, 30), st.integers(1, 120), st.integers(0, 5))
@settings(SLOW_OR_FAST, max_examples=50)
def test_batches_by_length_lose_no_sample_within_the_limit(count: int, most: int, seed: int) -> None:
    samples = some_samples(count, seed)
    batches = list(by_length(samples, most))
    assert sorted(map(id, samples)) == sorted(id(sample) for batch in batches for sample in batch)
    prompts = [key for key, _ in itertools.groupby(one.prompt for batch in batches for one in batch)]
    assert len(prompts) == len(set(map(tuple, prompts)))
    for batch in batches:
        width = max(len(one.prompt) for one in batch) + max(len(one.response) for one in batch)
        assert len(batch) == 1 or len(batch) * width <= most


@pytest.mark.parametrize(
    ("prompt", "response", "logprobs"), [([], [1], [0.0]), ([1], [], []), ([1], [1], [])]
)
def test_sample_without_prompt_response_or_logprobs_is_refused(
    prompt: list[int], response: list[int], logprobs: list[float]
) -> None:
    with pytest.raises(ValueError, match="a sample needs"):
        Sample(prompt, response, logprobs, 1.0)
