"""Truth: what the models of a run must make of what was submitted.

Owns the port. A check compares with it what actors sent, journaled and trained; `gleaner.chaos.truth_sim`
implements it for a simulated run. Nothing in it was reported by an actor.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gleaner.chaos.invariants.shadow import ShadowRequest


@dataclass(frozen=True, slots=True)
class WantedRounds:
    """What a job with rounds asks of them. prompts, samples: that a short round launches. own_seeds: of
    deferred draws. by_tokens: the order of a race. drain: the last steps train what is deferred. auto: steps
    may be rolled out whole. planned: the prompts that a short round launches may change between periods.
    history: draws of problems that were deferred before may be deferred without a launch."""

    prompts: int
    samples: int
    own_seeds: bool
    by_tokens: bool
    drain: bool
    auto: bool = False
    planned: bool = False
    history: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a job asks of its batches: the settings that a check needs.

    Args:
        seed, steps, eval_every: of the job.
        problems, heldout: of the training split, and held-out ones.
        prompts, samples: groups of a step, and samples of a group.
        over_sampling, drop_uniform, max_refills: which groups of a step count.
        max_new_tokens: limit of a response.
        temperature, eval_temperature: of training and of evaluations.
        staleness: the bound, in versions.
        rounds: None for a job without rounds.
    """

    seed: int = 0
    steps: int = 1
    eval_every: int = 0
    problems: int = 1
    heldout: int = 0
    prompts: int = 1
    samples: int = 1
    over_sampling: float = 1.0
    drop_uniform: bool = False
    max_refills: int = 0
    max_new_tokens: int = 1
    temperature: float = 1.0
    eval_temperature: float = 1.0
    staleness: int = 0
    rounds: WantedRounds | None = None

    @property
    def launched(self) -> int:
        """Groups that a step begins with."""
        return math.ceil(self.prompts * self.over_sampling)

    @property
    def droppable(self) -> int:
        """Uniform groups of a step in whose place others are drawn."""
        extra = self.launched - self.prompts
        return extra + self.max_refills * self.prompts if self.drop_uniform else 0

    @property
    def selects(self) -> bool:
        """Not every group of a step counts."""
        return self.drop_uniform or self.over_sampling > 1


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """One sample as it must enter a step. tokens u32 and logprobs f32, raw."""

    prompt: bytes
    tokens: bytes
    logprobs: bytes
    advantage: float


class Truth(Protocol):
    """See the module."""

    @property
    def wanted(self) -> Wanted:
        """The settings of the job."""

    def prompt(self, split: str, index: int) -> bytes:
        """The prompt of a problem, u32, raw."""

    def score(self, split: str, index: int, tokens: bytes) -> float:
        """The score of a response (u32, raw) to a problem."""

    def seed(self, batch: str, group: int, sample: int) -> int:
        """The seed of a sample that was not generated before."""

    def length(self, request: ShadowRequest) -> int:
        """The number of tokens of a whole response."""

    def made(self, request: ShadowRequest, root: bytes, count: int) -> tuple[bytes, bytes] | None:
        """The first `count` tokens (u32, raw) and log-probs (f32, raw) of a response under the weights with
        this root; None where those weights are not known."""

    def weights(self, root: bytes) -> bytes | None:
        """The weights that were published under this root; None where that is not known."""

    def first_weights(self) -> bytes:
        """The weights that the job begins with."""

    def next_weights(self, before: bytes, number: int, batches: Sequence[Sequence[TrainedOn]]) -> bytes:
        """The weights after update `number` (from 1) with these micro-batches."""

    def losses(self, weights: bytes) -> tuple[float, float]:
        """Loss and norm of the gradient of the update that gave these weights."""


def whole(truth: Truth, request: ShadowRequest) -> tuple[bytes, bytes] | None:
    """The tokens and log-probs of a request, each part under the weights that made it; None where some of
    these are not known."""
    tokens, logprobs = b"", b""
    ends = [start for start, _, _ in request.made[1:]] + [len(request.tokens)]
    for (start, _, root), end in zip(request.made, ends, strict=False):
        part = truth.made(request, root, end) if root is not None else None
        if part is None:
            return None
        tokens, logprobs = tokens + part[0][4 * start :], logprobs + part[1][4 * start :]
    return tokens, logprobs


def score_of(truth: Truth, request: ShadowRequest) -> float | None:
    """The true score of a response that has its verdict; None if its verifier failed. A response whose time
    was up before its first token is wrong."""
    if request.score is None:
        return None
    raw = request.tokens.tobytes()
    return truth.score(request.asked.split, request.asked.index, raw) if raw else 0.0
