"""`Engine`: port of a rollout engine (`builtin.engine`, and adapters of other engines).

Owns the types (assignments in, columns of tokens out, refusals) and no behaviour. An engine only computes: no
sockets, no clock, no actors. Calls arrive from one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.sampling_params import Sampling


class CannotServe(ValueError):
    """An assignment that this engine can never serve; nothing of the call was taken. `ticket` names it."""

    def __init__(self, ticket: int, why: str) -> None:
        super().__init__(f"ticket {ticket}: {why}")
        self.ticket = ticket


class EngineFull(RuntimeError):
    """More assignments wait than the engine holds; nothing of the call was taken. Send them elsewhere."""


class EngineBusy(RuntimeError):
    """Weights cannot change while requests wait or execute: their tokens would mix two versions."""


class BrokenWeights(RuntimeError):
    """The model computed a value that is not finite; load sound weights. The engine state is unchanged."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One dispatch of one request.

    `prompt` and `prefix` are token ids; the prefix is the present part of the response, made by any engine
    under the same seed. `max_new_tokens` is the limit of the whole response, prefix included. Temperature 0
    is greedy. `sampling`: None leaves the distribution as it is.
    """

    ticket: int
    prompt: Sequence[int]
    seed: int
    max_new_tokens: int
    prefix: Sequence[int] = ()
    temperature: float = 1.0
    sampling: Sampling | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The rows of one decode step as columns of equal length: those of a token frame, and no more than fit.

    `flags` are of `gleaner.transport.token_frame.Flag`; if NO_TOKEN is set, token and log-prob are 0.

    `logprobs` are under the distribution that was sampled from, i.e. with the temperature applied (greedy:
    under temperature 1).
    """

    tickets: NDArray[np.uint32]
    tokens: NDArray[np.uint32]
    logprobs: NDArray[np.float32]
    flags: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.tickets)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts since the engine was made; the first three are present values."""

    slots: int
    executing: int
    pending: int
    steps: int
    tokens_generated: int
    tokens_prefilled: int
    tokens_attended: int
    """Tokens in the caches of the requests that were decoded, summed over the steps."""


class Engine(Protocol):
    """Continuous batching: `add` and `abort` whenever, `step` again and again until `idle`."""

    @property
    def weights_version(self) -> int: ...

    @property
    def executing(self) -> int:
        """Requests that hold a slot."""

    @property
    def pending(self) -> int:
        """Requests that wait for a slot."""

    @property
    def idle(self) -> bool:
        """No request waits or executes, and no row is due: `step` would return no row."""

    def add(self, assignments: Iterable[Assignment]) -> None:
        """Queue assignments, in order. Raises `CannotServe` or `EngineFull`, and then takes none of them."""

    def abort(self, tickets: Iterable[int]) -> None:
        """End these tickets, waiting, executing or unknown.

        The next step has one row ABORTED | NO_TOKEN for each (those that would overflow a token frame follow
        a step later); no other row of a ticket follows.
        """

    def step(self) -> StepOutput:
        """Give waiting requests free slots, then one token to every request that holds one."""

    def drain(self) -> None:
        """Abort everything: this engine adds no further tokens to its requests."""

    def load_weights(self, source: memoryview, specs: Sequence[TensorSpec], version: int) -> None:
        """Copy a weight image in. Raises `EngineBusy` unless idle, `BadImage` if it does not fit."""

    def stats(self) -> EngineStats: ...
