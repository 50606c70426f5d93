"""Modelled trainer: `gleaner.actors.training.work.TrainerWork` whose weights are a digest.

Owns the effect of a step on the weights, and the step's time. The new digest follows from the old one and
from the micro-batches, each sample with its prompt, tokens, log-probs and advantage. As with floating-point
numbers, the order of the samples and their division into micro-batches matter, and each sample counts: one
that is missing, doubled or changed by one bit gives other weights.
"""

import hashlib
import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gleaner.actors.protocol.weights import Publish
from gleaner.actors.training.sample import Sample
from gleaner.actors.training.work import Commit, MicroBatchStats, StepStats
from gleaner.sim.models.clock import Clock
from gleaner.sim.models.image_memory import SimImages
from gleaner.sim.models.saved_memory import Files, SimCopies
from gleaner.sim.models.training_cost import TrainingCost
from gleaner.sim.models.weight_bytes import image_layout, image_of

STATE_FILE, COMMIT_FILE = "trainer.msgpack", "commit.msgpack"
_SAMPLE_BYTES = 16


class OutOfOrder(RuntimeError):
    """A call that the step's order forbids: load, begin_step, add_micro_batch once or more, finish_step."""


class LostState(ValueError):
    """The state to continue from is not at the given place."""


class _State(msgspec.Struct, frozen=True):
    digest: bytes
    steps: int


def first_weights(seed: int) -> bytes:
    """The digest of the weights that a job of this seed begins with."""
    return hashlib.blake2b(f"{seed}/weights".encode(), digest_size=32).digest()


def sample_digest(sample: Sample) -> bytes:
    """A sample's contribution to a step, 16 bytes."""
    digest = hashlib.blake2b(digest_size=_SAMPLE_BYTES)
    for part in (array("I", sample.prompt), array("I", sample.response), array("f", sample.logprobs)):
        digest.update(struct.pack("<I", len(part)))
        digest.update(part.tobytes())
    digest.update(struct.pack("<f", sample.advantage))  # as the losses have it
    return digest.digest()


def next_weights(digest: bytes, step: int, micro_batches: Iterable[Iterable[bytes]]) -> bytes:
    """The weights after `step`, from those before it and the digests of its samples, in the order of their
    training."""
    chain = hashlib.blake2b(digest + struct.pack("<Q", step), digest_size=32)
    for samples in micro_batches:
        whole = b"".join(samples)
        chain.update(struct.pack("<I", len(whole)))
        chain.update(whole)
    return chain.digest()


def measured(digest: bytes) -> tuple[float, float]:
    """Loss and norm of the gradient of the step that ended with these weights: made up from the digest, so
    that they differ from step to step."""
    noise = int.from_bytes(digest[:4], "little") / 2**32
    return 0.1 * (noise - 0.5), 0.5 + noise


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """The model in training, as far as it is modelled.

    Args:
        first: digest of the initial weights.
        config: the model's configuration for engines.
        image_bytes: of one image.
        token_scale: tokens of the modelled model that one token of a message represents.
    """

    first: bytes
    config: bytes
    image_bytes: int
    token_scale: int


@dataclass(frozen=True, slots=True)
class TrainerStores:
    """Where a trainer keeps its state on its host.

    Args:
        images: of the weights.
        copies: host copies.
        places: the places of state that `load` accepts: host copies, durable files.
    """

    images: SimImages
    copies: SimCopies
    places: Sequence[Files]


class SimTrainerWork:
    """See the module.

    Args:
        cost: of the modelled trainer.
        model: the one that it trains.
        stores: of this host.
        clock: of this process.
    """

    def __init__(self, cost: TrainingCost, model: TrainedModel, stores: TrainerStores, clock: Clock) -> None:
        self._cost, self._clock = cost, clock
        self._images, self._copies, self._places = stores.images, stores.copies, stores.places
        self._model_config, self._image_bytes, self._scale = (
            model.config,
            model.image_bytes,
            model.token_scale,
        )
        self._digest, self._steps = model.first, 0
        self._batches: list[list[bytes]] | None = None  # digests of samples, by micro-batch
        self._tokens = 0
        self._half = False

    @property
    def weights(self) -> bytes:
        """The digest of the weights now."""
        return self._digest

    def load(self, path: str) -> Commit | None:
        """See `TrainerWork`. Raises `LostState`."""
        self._clock.spend(self._cost.publish_s + (self._cost.copy_s if path else 0.0))
        if not path:
            return None
        directory = Path(path)
        for files in self._places:
            if directory / STATE_FILE in files:
                state = msgspec.msgpack.decode(files[directory / STATE_FILE], type=_State)
                self._digest, self._steps = state.digest, state.steps
                return msgspec.msgpack.decode(files[directory / COMMIT_FILE], type=Commit)
        raise LostState(f"{directory} holds no {STATE_FILE}: neither a host copy nor a checkpoint is there")

    def begin_step(self) -> None:
        """See `TrainerWork`."""
        self._batches, self._tokens, self._half = [], 0, False

    def add_micro_batch(self, samples: Sequence[Sample]) -> MicroBatchStats:
        """See `TrainerWork`. Raises `OutOfOrder`."""
        if self._batches is None:
            raise OutOfOrder("add_micro_batch before begin_step")
        self._batches.append([sample_digest(sample) for sample in samples])
        tokens = sum(len(sample.response) for sample in samples)
        self._tokens += tokens
        seconds = self._cost.micro_batch(len(sample) * self._scale for sample in samples)
        self._clock.spend(2.0 * seconds if self._half else seconds)
        return MicroBatchStats(len(samples), tokens, 0.0)

    @property
    def halves(self) -> bool:
        """See `TrainerWork`: each modelled device has a part of the gang."""
        return True

    def train_on_half(self, half: bool) -> None:
        """See `TrainerWork`: a micro-batch takes twice as long there, and adds the same."""
        self._half = half

    def finish_step(self) -> StepStats:
        """See `TrainerWork`. Raises `OutOfOrder`."""
        batches, self._batches = self._batches, None
        if batches is None:
            raise OutOfOrder("finish_step before begin_step")
        if not batches:
            return StepStats.of_nothing(self._steps)
        self._steps += 1
        self._digest = next_weights(self._digest, self._steps, batches)
        self._clock.spend(self._cost.step_s)
        loss, grad_norm = measured(self._digest)
        return StepStats(
            step=self._steps,
            samples=sum(map(len, batches)),
            tokens=self._tokens,
            loss=loss,
            grad_norm=grad_norm,
            clipped=0.0,
            drift=0.0,
        )

    def seal(self, commit: Commit) -> None:
        """See `TrainerWork`."""
        self._clock.spend(self._cost.copy_s)
        contents = {
            STATE_FILE: msgspec.msgpack.encode(_State(self._digest, self._steps)),
            COMMIT_FILE: msgspec.msgpack.encode(commit),
        }
        self._copies.write(commit.result.step, contents)

    def write_image(self, version: int) -> Publish:
        """See `TrainerWork`. Reading the image once, to describe it, is part of the time."""
        self._clock.spend(self._cost.publish_s)
        with self._images.create(version, self._image_bytes) as draft:
            draft.view[:] = image_of(self._digest, self._image_bytes)
            draft.seal_after(self._clock)
        return Publish(
            version=version, tensors=image_layout(self._image_bytes), model_config=self._model_config
        )
