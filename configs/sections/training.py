"""Settings of the loss and its optimizer."""

from typing import Annotated, Literal

from msgspec import Meta

from gleaner.configs.sections.values import Count, Decay, NotNegative, Positive, Section


class Training(Section, frozen=True, kw_only=True):
    """The loss and its optimizer (AdamW)."""

    loss: Literal["grpo", "dapo", "gspo", "ppo"] = "dapo"
    """Clipped surrogate. `dapo`: every token has equal weight, so long answers are not favoured; `grpo`:
    every sample has; `gspo`: a ratio of the whole response (clip at a few 1e-4); `ppo`: one clip on both
    sides."""
    importance: Literal["none", "truncated"] = "truncated"
    """Correction of samples made by other weights, or by an engine with other rounding: each token is
    weighted with the ratio of its probabilities, at most `importance_cap`. On-policy the ratio is 1 but for
    rounding. `none`: the surrogate's ratio is against the policy that sampled; only its clip bounds it."""
    importance_cap: Positive = 2.0
    """Largest weight of a token; 2 is what the authors of truncated importance sampling found to be sound."""

    learning_rate: Positive = 4e-4
    """Step size; high because the model is tiny."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """Decay of the first and second moments; 0.95 forgets old gradient scales within a short run."""
    weight_decay: NotNegative = 0.0
    """Decoupled decay; a run of tens of steps does not overfit."""
    clip_low: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    """Lower clip of the probability ratio, 1 - clip_low."""
    clip_high: Positive = 0.28
    """Upper clip, 1 + clip_high; larger than the lower one so that rare tokens may grow (DAPO)."""
    max_grad_norm: Positive = 1.0
    """Gradients beyond this norm are scaled down to it."""
    micro_batch_groups: Count = 4
    """Complete groups that make one forward and backward pass (m_b); they start before the batch is whole."""
    rollout_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Type of the rolled-out weights. `bfloat16`: half the bytes, and at learning rates of large models (1e-5
    and below) few of them change from step to step (docs/weights.md). The optimizer's weights stay float32;
    the trainer computes with the rolled-out weights, so that both agree on every log-prob."""
    threads: Count = 1
    """CPU threads of the trainer."""
    backend: Literal["torch", "fsdp2", "own"] = "torch"
    """`torch`: one process has the whole model; `fsdp2`: each of `processes` has a part (PyTorch FSDP2), for
    a model whose weights, gradients and moments do not fit into one. `own`: nothing is trained here; your own
    trainer publishes weights (`gleaner.publisher`), and the job serves them until it is stopped."""
    processes: Annotated[int, Meta(ge=1, le=64)] = 1
    """Processes of the trainer, a gang on the reserved host: if one ends, all are started again. More than
    one needs `backend = "fsdp2"`."""
    exchange_s: Annotated[float, Meta(ge=1)] = 30.0
    """Longest wait of a process of the gang for the others in one exchange; then the gang is started again.
    Far above the time that one layer takes, so that a busy machine is not mistaken for a frozen process."""
    checkpoint_keep: Count = 2
    """Newest checkpoints kept; a second one survives damage to the newest."""

    def __post_init__(self) -> None:
        if self.processes > 1 and self.backend != "fsdp2":
            raise ValueError(
                f'processes: expected 1 where backend is "{self.backend}" (more need "fsdp2"), '
                f"got {self.processes}"
            )
