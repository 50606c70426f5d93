"""`TrainerWork`: port of the trainer actor to its backend.

The backend has the mathematics of a step, its host copies, and the images of its weights. Owns the types and
the port. Pure: it uses neither torch nor files, so the actor runs on any backend.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gleaner.actors.protocol.cluster import TrainedSample
from gleaner.actors.protocol.training import StepResult
from gleaner.actors.protocol.weights import Publish
from gleaner.actors.training.sample import Sample


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a version: the result of its step, the samples in it, the micro-batches (groups)."""

    result: StepResult
    samples: tuple[TrainedSample, ...]
    micro_batches: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class MicroBatchStats:
    """What one micro-batch added: samples, response tokens, and its loss, summed."""

    samples: int
    tokens: int
    loss_sum: float


@dataclass(frozen=True, slots=True)
class StepStats:
    """A finished step. `step` counts optimizer steps from 1.

    loss: mean over tokens or samples, as the loss rule defines. grad_norm: before clipping. clipped: share of
    the tokens that the ratio's clip took out; truncated: of those whose importance weight was capped. drift:
    mean estimated KL from the sampling policy, nats a token; on-policy it is rounding.
    """

    step: int
    samples: int
    tokens: int
    loss: float
    grad_norm: float
    clipped: float
    drift: float
    truncated: float = 0.0

    @classmethod
    def of_nothing(cls, step: int) -> "StepStats":
        """The statistics of a step without a token to train on, after `step` optimizer steps: it was none."""
        return cls(step=step, samples=0, tokens=0, loss=0.0, grad_norm=0.0, clipped=0.0, drift=0.0)


class TrainerWork(Protocol):
    """Backend of a trainer. Calls arrive from one thread at a time and block: `load` first, then steps in
    their order.
    """

    def load(self, path: str) -> Commit | None:
        """Load the initial checkpoint and, where `path` is a host copy or checkpoint, the state in it: the
        result is the commit that made it. Raises if neither can be used."""

    def begin_step(self) -> None:
        """Drop the gradient of an unfinished step."""

    def add_micro_batch(self, samples: Sequence[Sample]) -> MicroBatchStats:
        """Accumulate the gradient of these samples."""

    @property
    def halves(self) -> bool:
        """Whether it can train on half of its devices."""

    def train_on_half(self, half: bool) -> None:
        """Micro-batches are trained on half of the devices from now on, or on all of them; gradients are
        added over both. Begins with all in every step. Raises if it cannot."""

    def finish_step(self) -> StepStats:
        """Update the weights with everything accumulated; without any, weights and moments stay bit for bit.
        Raises NotFinite, and the step can begin anew."""

    def seal(self, commit: Commit) -> None:
        """Make the host copy of a finished step. It exists once this has returned, whole or not at all."""

    def write_image(self, version: int) -> Publish:
        """Put the weights into the host's image store; harmless if the same version is there already."""
