"""JobModel: model, responses, verifiers and images of a simulated job, in one value.

Owns the choice, and makes the parts of a host from it and from the host's rig. `batching` explains how much a
token of a message represents (`token_scale`) and how many decode steps are one frame (`frame_rows`).
"""

from dataclasses import dataclass, field

import msgspec

from gleaner.actors.reward.scoring import WorkerSpec
from gleaner.configs.schema import Config
from gleaner.sim.models.batching import Limits
from gleaner.sim.models.engine_cost import EngineCost, engine_cost, kv_capacity_tokens
from gleaner.sim.models.engine_host import Engine
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.image_memory import ImagePool
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.movement import declared_scale, durable_write_s, load_s
from gleaner.sim.models.scorer import Problems, ScorerLaw
from gleaner.sim.models.shapes import ModelShape, model_shape
from gleaner.sim.models.training_cost import STATE_BYTES_PER_PARAMETER, Passes, TrainingCost, training_cost

CHUNK_BYTES = 64 * 2**10
"""The smallest that the settings allow."""
CHUNK_STANDS_FOR_BYTES = 2**28
"""At most: over a path of its own, a chunk must arrive within the stall limit of its source."""
LEAST_CHUNKS, MOST_CHUNKS = 4, 128
KNOWN_BY = 1
"""Leading rows of a prompt that identify its problem where a row represents many tokens: the number of rows
differs from scale to scale, and a problem's responses should be as long at each of them."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a run (`fit`). engine: of each instance; trainer: of the job. None: not measured."""

    engine: EngineCost | None = None
    trainer: TrainingCost | None = None


@dataclass(frozen=True)
class JobModel:
    """The same for every host of a run.

    Args:
        shape: the model.
        law: lengths of responses, in tokens of the model; `tails.TailedLaw` has some that run away.
        scorer: latency, prompts and faults of verifiers, and how scores depend on lengths.
        passes: what the trainer computes for a sample.
        offload: the optimizer's moments are in host memory.
        token_scale: tokens of the model that one token of a message represents. The lengths in a job's
            settings are of messages.
        frame_rows: rows of one request in one frame.
        image_bytes: of a simulated image; its time on the wire is that of the model's weights. 0: as many as
            keep a chunk of the smallest size below `CHUNK_STANDS_FOR_BYTES` (see `settings`).
        tokens_follow_inputs: other weights, prompts and sampling parameters give other tokens and log-probs,
            so that a wrong one is seen in them.
        engine_dies: why each preemptible engine ends at a load of weights; "": it does not.
        unmet: what preemptible hosts lack for their part of the job (`AdapterFactory.unmet`).
        measured: times of engines and trainers as a run measured them, not as they follow from figures;
            capacities stay those of the rig.
    """

    shape: ModelShape
    law: LengthLaw
    scorer: ScorerLaw = field(default_factory=ScorerLaw)
    passes: Passes = field(default_factory=Passes)
    offload: bool = False
    token_scale: int = 1
    frame_rows: int = 1
    image_bytes: int = 0
    tokens_follow_inputs: bool = False
    engine_dies: str = ""
    unmet: tuple[str, ...] = ()
    measured: Measured = field(default_factory=Measured)
    pool: ImagePool = field(default_factory=ImagePool, compare=False)

    def __post_init__(self) -> None:
        if not self.image_bytes:
            chunks = -(-self.shape.weight_bytes // CHUNK_STANDS_FOR_BYTES)
            size = CHUNK_BYTES * min(max(chunks, LEAST_CHUNKS), MOST_CHUNKS)
            object.__setattr__(self, "image_bytes", size)

    @staticmethod
    def named(model: str, law: LengthLaw, *, token_scale: int = 1, frame_rows: int = 1) -> "JobModel":
        """A plant for one of the models of `shapes.toml`. Raises `UnknownModel`."""
        return JobModel(model_shape(model), law, token_scale=token_scale, frame_rows=frame_rows)

    @property
    def wire_scale(self) -> float:
        """Bytes of weights that one byte of an image on the wire represents."""
        return declared_scale(self.shape, self.image_bytes)

    @property
    def model_config(self) -> bytes:
        """The model's configuration for engines."""
        return msgspec.json.encode(self.shape)

    def settings(self, config: Config) -> Config:
        """The job's settings with the smallest chunks of weights that there may be: an image holds few. Whole
        images from the trainer, as in the papers: what share of a large model a step changes is not modelled,
        nor is a byte of the image one on the wire."""
        weights = msgspec.structs.replace(config.weights, chunk_bytes=CHUNK_BYTES, delta=False, relay=False)
        return msgspec.structs.replace(config, weights=weights)

    def engine(self, config: Config, host_devices: HostDevices) -> Engine:
        """The engine of an instance on this rig. Raises `DoesNotFit`."""
        assumed = host_devices.assumptions
        limits = Limits(
            slots=config.engine.slots,
            cache_tokens=kv_capacity_tokens(self.shape, host_devices),
            reserve_tokens=assumed.admission_reserve_tokens,
            frame_rows=self.frame_rows,
            token_scale=self.token_scale,
        )
        return Engine(
            cost=self.measured.engine or engine_cost(self.shape, host_devices),
            limits=limits,
            law=self.law.scaled(1.0 / self.token_scale),
            vocabulary=self.shape.vocabulary,
            load_s=load_s(self.shape, host_devices),
            max_tokens=config.engine.max_prompt_tokens + config.rollout.max_new_tokens,
            tokens_follow_inputs=self.tokens_follow_inputs,
            copies=host_devices.replicas,
            known_by=KNOWN_BY if self.token_scale > 1 else None,
            weight_tokens=round(self.shape.weight_bytes / self.shape.kv_bytes_per_token),
        )

    def trainer(self, host_devices: HostDevices) -> TrainingCost:
        """The trainer of a job on this rig."""
        figures = training_cost(self.shape, host_devices, self.passes, offload=self.offload)
        return self.measured.trainer or figures

    def checkpoint_s(self, host_devices: HostDevices) -> float:
        """Seconds of one durable checkpoint."""
        return durable_write_s(STATE_BYTES_PER_PARAMETER * self.shape.parameters, host_devices)

    def problems(self, spec: WorkerSpec) -> Problems:
        """The problems of a job whose proxy starts such workers. Its engines must take the law's prompts."""
        seed = (spec.config or {}).get("seed", 0)
        law = self.scorer
        number = seed if isinstance(seed, int) else 0
        return Problems(number, self.shape.vocabulary, law.prompt_rows, law.halving_rows)
