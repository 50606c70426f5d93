"""`ShardedCompute`: one rank's part of an optimizer step (FSDP2).

A rank has its rows of weights and moments, and its share of the samples. Owns the sharded model, torch's
group of ranks, and the sums over ranks. `policy_update` makes a gradient from a batch and applies it, the
same for any number of ranks. Every rank makes the same calls in the same order, or the others wait for it
until the deadline of the group.

Between steps a rank holds its rows alone; in a pass it has one layer whole at a time, and the embedding.
Gradients are summed over the ranks, not averaged: a step's gradient is the sum over the tokens of all ranks
divided by their number, as with one process.

With `halves` each half of the ranks has the whole model, sharded over its ranks (a mesh of 2 x n/2): one half
can train while the other does nothing. Gradients are then added over the halves, once a step.

Source: PyTorch FSDP2 (`torch.distributed.fsdp.fully_shard`), arXiv:2304.11277 for the method.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from gleaner.actors.model.checkpoint import empty_model, read_rows, read_state
from gleaner.actors.model.qwen3 import Qwen3
from gleaner.actors.training.gang_orders import Sums
from gleaner.actors.training.logprobs import token_logprobs
from gleaner.actors.training.policy_update import MOST_TOKENS, BadState, OutOfOrder, StepSums, TrainerCompute
from gleaner.actors.training.sample import Sample
from gleaner.actors.training.samples import by_length, collate
from gleaner.actors.training.shares import rows_of
from gleaner.actors.training.work import StepStats
from gleaner.configs.schema import Training

_IDLE = Sample(prompt=[0], response=[0], logprobs=[0.0], advantage=0.0)


def join_group(store: Path, rank: int, ranks: int, deadline_s: float) -> None:
    """Make this process `rank` of torch's default group, over gloo on the loopback interface. `deadline_s`:
    of each exchange between ranks. Raises RuntimeError if the others do not join."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # the ranks of a gang share a host; gloo knows no keys
    dist.init_process_group(
        "cpu:gloo",
        store=dist.FileStore(str(store), ranks),  # type: ignore[attr-defined]  # it is documented there
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=deadline_s),
    )


def passes(samples: Sequence[Sample]) -> int:
    """The number of passes through the model that a rank needs for its share."""
    return sum(1 for _ in by_length(samples, MOST_TOKENS))


class ShardedCompute(TrainerCompute):
    """This rank's part of the model in training; call `join_group` first."""

    def __init__(
        self, model_dir: str | Path, settings: Training, temperature: float = 1.0, *, halves: bool = False
    ) -> None:
        """As `TrainerCompute`; of the checkpoint, only the rows of this rank are read. Raises ValueError if
        an odd number of ranks is to be halved."""
        ranks = dist.get_world_size()
        if halves and ranks % 2:
            raise ValueError(f"{ranks} ranks have no halves: their number must be even")
        self.sharers = ranks // 2 if halves else ranks
        """Ranks that have one model together."""
        mesh = init_device_mesh("cpu", (ranks // self.sharers, self.sharers), mesh_dim_names=("half", "part"))
        self._sharing = mesh["part"]
        self._halves = mesh.get_group("half") if halves else None
        self.first_half = dist.get_rank() < self.sharers
        self.rows = partial(rows_of, rank=dist.get_rank() % self.sharers, ranks=self.sharers)
        super().__init__(model_dir, settings, temperature)

    def add_share(self, samples: Sequence[Sample], passes: int) -> Sums:
        """Accumulate the gradient of this rank's share in `passes` passes, as many on every rank. Returns the
        sums over this rank's samples of the step so far."""
        if self._sums is None:
            raise OutOfOrder("add_share before begin_step")
        done = 0
        for part in by_length(samples, MOST_TOKENS):
            self._accumulate(self._sums, collate(part))
            done += 1
        for _ in range(passes - done):
            self._pass_idly()
        return asdict(self._sums)

    def finish_together(self, sums: Sums) -> StepStats:
        """`finish_step`, of what the samples of all ranks have added up to."""
        self._sums = StepSums(**sums)  # type: ignore[arg-type]  # its own fields, from another rank
        if self._halves is not None:
            self._add_halves(self._halves)
        return self.finish_step()

    def state(self) -> dict[str, Tensor]:
        """As `TrainerCompute.state`: the rows of this rank."""
        return {name: _local(tensor) for name, tensor in super().state().items()}

    def masters(self) -> dict[str, Tensor]:
        """As `TrainerCompute.masters`: the rows of this rank."""
        return {name: _local(master) for name, master in super().masters().items()}

    def served(self) -> dict[str, Tensor]:
        """This rank's rows of the rollout weights, in their dtype."""
        return {
            name: _local(weight.detach()).to(self._dtype, copy=False)
            for name, weight in self._weights.items()
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the whole state, by the names of `state`."""
        return {name: tuple(tensor.shape) for name, tensor in super().state().items()}

    def load_rows(self, path: Path) -> None:
        """Load a state from a safetensors file, written by any number of ranks. Raises `BadState`."""
        try:
            with safe_open(path, framework="pt") as file:
                names = list(file.keys())
                self._fit({name: tuple(file.get_slice(name).get_shape()) for name in names})
                state = {
                    name: read_rows(file, name, self.rows)
                    if file.get_slice(name).get_shape()
                    else file.get_tensor(name)
                    for name in names
                }
        except (SafetensorError, OSError) as problem:
            raise BadState(f"{path} cannot be read: {problem}") from problem
        self.load_state(state)

    def _fit(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        for name, shape in self.shapes().items():
            if shapes.get(name, shape) != shape:
                raise BadState(f"{name!r} is {list(shapes[name])}, this model has {list(shape)}")

    def _load(self, model_dir: Path) -> Qwen3:
        model = empty_model(model_dir)
        mine = read_state(model_dir, model, rows=self.rows)
        for layer in model.model.layers:
            fully_shard(layer, mesh=self._sharing)
        # The embedding is used again after the pass, as output matrix, so it stays until the backward pass.
        fully_shard(model, mesh=self._sharing, reshard_after_forward=False)
        register_fsdp_forward_method(model, "response_states")
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        model.to_empty(device="cpu")
        with torch.no_grad():
            for name, weight in model.named_parameters():
                _local(weight).copy_(mine[name])
        return model

    def _norm(self, gradients: Sequence[Tensor]) -> Tensor:
        local = [_local(gradient) for gradient in gradients]
        square: Tensor = torch.nn.utils.get_total_norm(local, foreach=False).square()
        dist.all_reduce(square, group=self._sharing.get_group())  # every rank gets the same bits
        return square.sqrt()

    @torch.no_grad()
    def _add_halves(self, halves: dist.ProcessGroup) -> None:
        """Sum the gradients of both halves; one that has trained nothing adds zeros."""
        for weight in self._weights.values():
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            dist.all_reduce(_local(weight.grad), group=halves)

    def _pass_idly(self) -> None:
        """A pass that adds nothing: other ranks still have samples and need the rows of every rank."""
        logprobs = token_logprobs(self.model, collate([_IDLE]), self._temperature)
        (logprobs.sum() * 0.0).backward()  # type: ignore[no-untyped-call]


def _local(tensor: Tensor) -> Tensor:
    """The rows that this rank holds, sharing memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
