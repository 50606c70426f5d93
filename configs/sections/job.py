"""Settings of a job itself, and of the policy that it trains."""

import re
from typing import Annotated, Literal

from msgspec import Meta

from gleaner.configs.sections.values import Count, HostPath, Natural, Positive, Section

_OWN_ACTOR = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


class Job(Section, frozen=True, kw_only=True):
    """Identity and length of the run."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}\Z")] = "gleaner"
    """Begins the run's id, which is a folder name: hence the narrow alphabet."""
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    """Root of every draw: problems, initial weights, sampling; runs that share it see the same problems."""
    steps: Count = 24
    """RL steps; the least that shows learning beyond the noise of the held-out set is about 20."""
    eval_every: Natural = 0
    """Steps between two evaluations on the held-out problems; 0 = only before the first step and after the
    last. Each one holds training up for as long as `task.heldout_problems` responses take."""
    exact: bool = False
    """Final weights bit-identical to those of any other run of these settings, whatever dies on the way:
    fixed shapes in the engine, micro-batches in the order of the prompts. Needs `threads = 1` in `engine` and
    `training`, and the same processor and libraries on every host; decodes more slowly."""
    journal_fsync: Literal["step", "commit"] = "step"
    """What journals force out to their disks before they acknowledge it: "step", what a reserved host records
    of its steps, or "commit", every commit of every process. A kill loses nothing with either. With "step" a
    power failure of the head takes the newest seconds of its journals, and perhaps the job with them
    (docs/operations.md)."""
    actors: list[str] = []
    """Actors of your own, each as `module:Class`, that the head runs beside the job in a process of their own
    (docs/actors.md); they are found as `own/Class`."""

    def __post_init__(self) -> None:
        for place in self.actors:
            if not _OWN_ACTOR.fullmatch(place):
                raise ValueError(f"actors: expected module:Class, got {place!r}")
        names = [place.partition(":")[2] for place in self.actors]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"actors: {name} is there twice; they are found by the names of their classes"
                )


class WarmStart(Section, frozen=True, kw_only=True):
    """Supervised phase that gives a made model something for RL to improve; on problems of its own."""

    steps: Natural = 300
    """Optimizer steps; 0 leaves the model random, and RL then sees no reward to follow."""
    batch: Count = 32
    """Problems an optimizer step."""
    learning_rate: Positive = 4e-3
    """Peak rate of AdamW; high because the model is tiny."""


class Model(Section, frozen=True, kw_only=True):
    """The policy that is trained: a checkpoint directory, or the dimensions of one to make."""

    path: HostPath = ""
    """Hugging Face checkpoint directory (Qwen3 architecture); "" = make one from the dimensions below."""
    hidden_size: Annotated[int, Meta(ge=8)] = 96
    """Width of the residual stream; 96 trains in half a second a step on one CPU core."""
    layers: Count = 2
    """Decoder layers."""
    heads: Count = 3
    """Query heads."""
    kv_heads: Count = 3
    """Key/value heads; must divide `heads`. As many as those: so small a cache need not be shared."""
    head_dim: Annotated[int, Meta(ge=2, multiple_of=2)] = 32
    """Width of a head; even, for rotary embedding."""
    intermediate_size: Count = 192
    """Width of the gated MLP; twice the hidden size was enough for the tasks tried."""
    warm_start: WarmStart = WarmStart()

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: expected a divisor of heads ({self.heads}), got {self.kv_heads}")
