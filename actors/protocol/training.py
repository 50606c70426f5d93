"""Messages between RLController, the trainer and its co-located rollout worker."""

import msgspec

from gleaner.supervisor import Message


class TrainerStatus(Message, frozen=True):
    """Asks the trainer for its progress."""


class TrainerIs(Message, frozen=True):
    """`step` steps are done; the weights after them are published as version `step` with `root`. `life`: the
    trainer's incarnation; 0: not given."""

    step: int
    root: bytes
    source: str
    life: int = 0


class TrainStep(Message, frozen=True):
    """To the trainer: make version `step` from the samples of `batch`. Answered at once; repeating it is
    safe.

    Seeding lasts `t_seed_s`, or until the batch is complete where no preemptible instance serves. `stair_s`:
    seconds of it after which half of the engines leave and the trainer trains on their devices; None: they
    leave together.
    """

    step: int
    batch: str
    groups: int
    t_seed_s: float
    stair_s: float | None = None


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a step and its time by use (s), from the start of the attempt to its end; seeding, waiting,
    training, weights and recovery (the manager was away) do not overlap.

    `update_s`: the part of `training_s` after the last micro-batch, the optimizer's step; `last_train_s`:
    that of the micro-batches after the last group arrived. seal_s, publish_s, record_s: the parts of
    `weights_s`; the three are 0 in a step that another life of the trainer did. staleness_mean,
    staleness_max: of its tokens, the number of versions between the weights that made them and those that the
    step started from. reward: mean over its `samples`, those that have a score; None without any. unscored:
    the others. stair_s: seconds from the start of seeding until half of the engines had left, None: they left
    together; half_s: the part of `training_s` on half of the devices. drift, clipped, truncated: see
    `work.StepStats`.
    """

    step: int
    root: bytes
    reward: float | None
    samples: int
    tokens: int
    loss: float
    grad_norm: float
    seeding_s: float
    waiting_s: float
    training_s: float
    weights_s: float
    update_s: float = 0.0
    staleness_mean: float = 0.0
    staleness_max: int = 0
    drift: float = 0.0
    clipped: float = 0.0
    truncated: float = 0.0
    recovery_s: float = 0.0
    unscored: int = 0
    last_train_s: float = 0.0
    seal_s: float = 0.0
    publish_s: float = 0.0
    record_s: float = 0.0
    stair_s: float | None = None
    half_s: float = 0.0

    def with_weights(
        self, root: bytes, seal_s: float = 0.0, publish_s: float = 0.0, record_s: float = 0.0
    ) -> "StepResult":
        """The same, its weights published."""
        return msgspec.structs.replace(
            self,
            root=root,
            weights_s=seal_s + publish_s + record_s,
            seal_s=seal_s,
            publish_s=publish_s,
            record_s=record_s,
        )


class StepSoFar(msgspec.Struct, frozen=True, kw_only=True):
    """Of a step that is under way: seconds by use, as in `StepResult`, and the groups that are trained."""

    seeding_s: float
    waiting_s: float
    training_s: float
    groups: int


class TrainState(Message, frozen=True):
    """Answer to `TrainStep`: running, or done with this result. `life`: see `TrainerIs`. `progress`: a number
    that changes while the step advances. `so_far`: of a running step, once it has begun."""

    result: StepResult | None
    life: int = 0
    progress: int = 0
    so_far: StepSoFar | None = None


class StepDone(Message, frozen=True):
    """Sent to the controller as soon as a step is done; if it is lost, the controller asks again."""

    step: int


class OpenSeeding(Message, frozen=True):
    """To the co-located worker: the model holds `version`; take requests until `CloseSeeding`."""

    version: int
    root: bytes


class HalveSeeding(Message, frozen=True):
    """Half of the engines leave: their requests go back to the manager with their tokens, and go on
    elsewhere. Answered when the devices of that half are free; refused where the engines are not halved. The
    next `OpenSeeding` has all of them serve."""


class CloseSeeding(Message, frozen=True):
    """Hand every unfinished request back; answered when the engine is idle and the device free."""
