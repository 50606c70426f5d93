"""`TrainerCompute`: one optimizer step of the policy, fed with complete groups.

Owns the weights in training, the optimizer's moments and the gradient accumulated so far. Does not own the
source of samples, the time of publication, or the files of a checkpoint. No actor and no process: plain
calls, one at a time.

Deterministic: the same state and the same samples in the same micro-batches give the same bits, on the same
machine with the same number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from gleaner.actors.model.checkpoint import load_checkpoint
from gleaner.actors.model.qwen3 import Qwen3
from gleaner.actors.training.adamw import AdamW
from gleaner.actors.training.logprobs import token_logprobs
from gleaner.actors.training.losses import LOSSES, loss_sums
from gleaner.actors.training.sample import Sample
from gleaner.actors.training.samples import Batch, by_length, collate
from gleaner.actors.training.work import MicroBatchStats, StepStats
from gleaner.configs.schema import Training

MOST_TOKENS = 8192
"""Padded tokens of one forward and backward pass; bounds activations, and is no slower than larger ones."""

MODEL, FIRST, SECOND, STEP = "model.", "adam.first.", "adam.second.", "adam.step"
"""Names in the state: weights, first and second moments, and the number of optimizer steps."""


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Torch dtypes by the names of `training.rollout_dtype`."""


class BadState(ValueError):
    """A state does not fit this model; nothing of it was taken."""


class OutOfOrder(RuntimeError):
    """A call that the order of a step forbids: begin_step, any number of add_micro_batch, finish_step."""


class NotFinite(ArithmeticError):
    """The gradient is no number. Weights and moments are as before the step, which can be begun again."""


@dataclass(slots=True)
class StepSums:
    """Sums over the samples of a step so far."""

    samples: int = 0
    tokens: int = 0
    loss: float = 0.0
    clipped: float = 0.0
    truncated: float = 0.0
    drift: float = 0.0


class TrainerCompute:
    """The model in training. Its parameters, float32, hold values that `rollout_dtype` can represent. The
    optimizer moves float32 masters of them, or the parameters themselves if that dtype is float32."""

    def __init__(self, model_dir: str | Path, settings: Training, temperature: float = 1.0) -> None:
        """Loads the checkpoint as float32 and starts with empty moments; sets torch's threads of the process.

        `temperature`: the sampling temperature of the responses, so that old and new log-probs are of one
        distribution. Raises `BadCheckpoint`.
        """
        torch.set_num_threads(settings.threads)
        self.model: Qwen3 = self._load(Path(model_dir)).train()
        self._settings = settings
        self._rule = LOSSES[settings.loss]
        self._cap = settings.importance_cap if settings.importance == "truncated" else None
        self._temperature = temperature
        self._weights = dict(self.model.named_parameters())
        self._dtype = DTYPES[settings.rollout_dtype]
        self._masters = self._weights if self._dtype is torch.float32 else _copies(self._weights)
        self._round()
        self._optimizer = AdamW(self._masters, settings.learning_rate, settings.betas, settings.weight_decay)
        self._steps = 0
        self._sums: StepSums | None = None

    @property
    def steps(self) -> int:
        """Optimizer steps taken since the moments were empty."""
        return self._steps

    def begin_step(self) -> None:
        """Drop any gradient gathered so far, whatever the outcome of the previous step."""
        self._forget_gradient()
        self._sums = StepSums()

    def add_micro_batch(self, samples: Sequence[Sample]) -> MicroBatchStats:
        """Add the gradient of these samples, not yet normalised. The order of micro-batches does not matter
        but for rounding."""
        if self._sums is None:
            raise OutOfOrder("add_micro_batch before begin_step")
        before = (self._sums.tokens, self._sums.loss)
        for part in by_length(samples, MOST_TOKENS):
            self._accumulate(self._sums, collate(part))
        return MicroBatchStats(len(samples), self._sums.tokens - before[0], self._sums.loss - before[1])

    def finish_step(self) -> StepStats:
        """Divide the gradient by the step's tokens or samples, clip its norm, and move the weights.

        A step without a token changes nothing: a gradient of zero would, by decay and moments. Raises
        `OutOfOrder` before `begin_step`, `NotFinite` before anything is changed.
        """
        sums = self._sums
        if sums is None:
            raise OutOfOrder("finish_step before begin_step")
        if sums.tokens == 0:
            self._sums = None
            return StepStats.of_nothing(self._steps)
        gradients = [weight.grad for weight in self._weights.values() if weight.grad is not None]
        count = sums.samples if self._rule.per_sample else sums.tokens
        for gradient in gradients:
            gradient.div_(count)
        norm = self._norm(gradients)
        self._sums = None
        if not torch.isfinite(norm):
            raise NotFinite(f"gradient norm {norm.item()} after {self._steps} steps")
        torch.nn.utils.clip_grads_with_norm_(
            self._weights.values(), self._settings.max_grad_norm, norm, foreach=False
        )
        self._optimizer.step({name: weight.grad for name, weight in self._weights.items()})
        self._round()
        self._steps += 1
        return StepStats(
            step=self._steps,
            samples=sums.samples,
            tokens=sums.tokens,
            loss=sums.loss / count,
            grad_norm=norm.item(),
            clipped=sums.clipped / sums.tokens,
            truncated=sums.truncated / sums.tokens,
            drift=sums.drift / sums.tokens,
        )

    def masters(self) -> dict[str, Tensor]:
        """The weights that the optimizer moves, float32, by their names in the checkpoint; the live ones."""
        return {name: master.detach() for name, master in self._masters.items()}

    def state(self) -> dict[str, Tensor]:
        """The complete input of the next step, float32: weights, moments and step count, under flat names.

        No copies: the tensors are the live ones, good until the next `finish_step` or `load_state`. In the
        middle of a step it is the state that the step began with.
        """
        state = {STEP: torch.tensor(float(self._steps))}
        for name, master in self._masters.items():
            state[MODEL + name] = master.detach()
            state[FIRST + name] = self._optimizer.first[name]
            state[SECOND + name] = self._optimizer.second[name]
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state()` bit for bit; a step in progress is dropped. Raises `BadState`."""
        own = self.state()
        if strange := sorted(own.keys() ^ state.keys()):
            raise BadState(f"{len(strange)} tensors are missing or unknown, the first is {strange[0]!r}")
        for name, tensor in own.items():
            if state[name].shape != tensor.shape or state[name].dtype != tensor.dtype:
                raise BadState(
                    f"{name!r} is {state[name].dtype} {list(state[name].shape)}, this model has "
                    f"{tensor.dtype} {list(tensor.shape)}"
                )
        self._steps = int(state[STEP].item())
        self._forget_gradient()
        self._sums = None
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])
            self._round()
            self._optimizer.set_steps(self._steps)

    def _load(self, model_dir: Path) -> Qwen3:
        """The model whose weights are trained. Raises `BadCheckpoint`."""
        return load_checkpoint(model_dir, torch.float32)

    def _forget_gradient(self) -> None:
        for tensors in (self._weights, self._masters):
            for tensor in tensors.values():
                tensor.grad = None

    @torch.no_grad()
    def _round(self) -> None:
        """Round the weights, so that the model computes with the very weights that are rolled out: on-policy,
        a token's log-prob is the same in both. The rounding remainders stay in the masters, and add up there.
        """
        if self._masters is not self._weights:
            for name, weight in self._weights.items():
                weight.copy_(self._masters[name].to(self._dtype))

    def _norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients together, float32 []."""
        return torch.nn.utils.get_total_norm(gradients, foreach=False)

    def _accumulate(self, sums: StepSums, batch: Batch) -> None:
        settings = self._settings
        logprobs = token_logprobs(self.model, batch, self._temperature)
        added = loss_sums(
            self._rule,
            logprobs,
            batch.logprobs,
            batch.advantages,
            batch.lengths,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            importance_cap=self._cap,
        )
        added.loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        sums.tokens += added.tokens
        sums.samples += added.samples
        sums.loss += added.loss.item()
        sums.clipped += added.clipped.item()
        sums.truncated += added.truncated.item()
        sums.drift += added.drift.item()


def _copies(weights: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(weight.detach().clone()) for name, weight in weights.items()}
