"""A gang of trainer processes in a test: forked from a server that has loaded torch, so each starts at once.

It does the given steps and can signal a rank at one of its orders. It returns what rank 0 saw.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from gleaner.actors.protocol.training import StepResult
from gleaner.actors.training import fsdp2_rank
from gleaner.actors.training.fsdp2_files import GangFiles
from gleaner.actors.training.fsdp2_rank import GangRank
from gleaner.actors.training.gang import GangBroken
from gleaner.actors.training.policy_update import NotFinite
from gleaner.actors.training.sample import Sample
from gleaner.actors.training.settings import ComputeSettings
from gleaner.actors.training.work import Commit, StepStats, TrainerWork
from gleaner.actors.weights.image.store import ImageStore
from gleaner.configs.schema import Config, Seeding, Training

END_S = 200.0  # for a whole script: only a hang takes as long
FORKS = multiprocessing.get_context("forkserver")
# These names resolve without the path of the tests, which the server does not get.
FORKS.set_forkserver_preload(
    ["gleaner.actors.training.fsdp2_files", "gleaner.actors.training.fsdp2_rank", "torch._dynamo"]
)

Step = list[list[Sample]]
"""Micro-batches."""


def settings(
    processes: int,
    exchange_s: float = 600.0,
    loss: str = "dapo",
    rollout_dtype: str = "float32",
    stairs: str = "off",
) -> Config:
    """`float32`: ranks are compared with one process to within a few units of rounding."""
    backend = "fsdp2" if processes > 0 else "torch"
    return Config(
        seeding=Seeding(stairs=stairs),  # type: ignore[arg-type]
        training=Training(
            backend=backend,  # type: ignore[arg-type]
            processes=max(processes, 1),
            exchange_s=exchange_s,
            loss=loss,  # type: ignore[arg-type]
            learning_rate=1e-3,
            weight_decay=0.1,
            rollout_dtype=rollout_dtype,  # type: ignore[arg-type]
        ),
    )


@dataclass(frozen=True)
class Places:
    """Places of a trainer's files."""

    model_dir: Path
    root: Path

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def copies(self) -> Path:
        return self.root / "copies"

    @property
    def gang(self) -> Path:
        return self.root / "gang"

    def image(self, version: int) -> bytes:
        return bytes(ImageStore(self.store).content(version))


@dataclass(frozen=True)
class Harm:
    """Before its `at`-th order (from 1), rank `rank` gets this signal."""

    rank: int
    at: int
    signal: int


@dataclass
class Seen:
    """Observations of rank 0."""

    stats: list[StepStats] = field(default_factory=list)
    commit: Commit | None = None
    not_finite: str = ""
    broken: str = ""
    gathers: int = 0
    gathers_to_write: int = 0
    gathered_bytes: int = 0  # the largest
    held_bytes: int = 0


def commit(step: int) -> Commit:
    result = StepResult(
        step=step, root=b"", reward=0.5, samples=4, tokens=9, loss=0.1, grad_norm=0.2,
        seeding_s=0.1, waiting_s=0.1, training_s=0.1, weights_s=0.1,
    )  # fmt: skip
    return Commit(result=result, samples=())


def run_steps(work: TrainerWork, first: int, steps: Sequence[Step], seen: Seen, on_half: int = 0) -> None:
    """Run each step, then seal and publish it. on_half: so many of its first micro-batches are trained on
    half of the devices."""
    for number, micro_batches in enumerate(steps, first):
        work.begin_step()
        for index, samples in enumerate(micro_batches):
            if on_half:
                work.train_on_half(index < on_half)
            work.add_micro_batch(samples)
        seen.stats.append(work.finish_step())
        work.seal(commit(number))
        work.write_image(number)


def run_gang(
    places: Places,
    processes: int,
    steps: Sequence[Step],
    *,
    path: str = "",
    harm: Harm | None = None,
    loss: str = "dapo",
    rollout_dtype: str = "float32",
    on_half: int = 0,
) -> Seen:
    """Load from `path`, publish the loaded weights and run the steps, until the end of all ranks. A first
    step whose gradient is no number is left out."""
    ours, theirs = FORKS.Pipe()
    exchange_s = 3.0 if harm is not None and harm.signal == signal.SIGSTOP else 600.0
    config = settings(processes, exchange_s, loss, rollout_dtype, "paper" if on_half else "off")
    started: list[BaseProcess] = [
        FORKS.Process(target=_rank_0, args=(places, config, path, list(steps), theirs, on_half), daemon=True)
    ]
    for rank in range(1, processes):
        started.append(FORKS.Process(target=_other, args=(places, config, rank, harm), daemon=True))
    for process in started:
        process.start()
    theirs.close()
    try:
        assert ours.poll(END_S), "rank 0 sent nothing"
        seen: Seen = ours.recv()
    finally:
        for process in started:
            process.kill()
            process.join()
    return seen


def _rank_0(
    places: Places, config: Config, path: str, steps: list[Step], out: Connection, on_half: int
) -> None:
    torch.set_num_threads(1)
    seen = Seen()
    work = GangFiles(ComputeSettings.of(config), places.model_dir, places.store, places.copies, places.gang)
    try:
        seen.commit = work.load(path)
        done = 0 if seen.commit is None else seen.commit.result.step
        seen.held_bytes = work.shard.state_bytes
        _watch_gathers(work, seen)
        work.write_image(done)
        try:
            run_steps(work, done + 1, steps, seen, on_half)
        except NotFinite as problem:
            seen.not_finite = str(problem)
            run_steps(work, done + 1, steps[1:], seen)
    except GangBroken as broken:
        seen.broken = str(broken)
    out.send(seen)
    out.close()


def _other(places: Places, config: Config, rank: int, harm: Harm | None) -> None:
    torch.set_num_threads(1)
    fsdp2_rank.LEAVE_S = 0.0  # no supervisor here
    work = GangRank(ComputeSettings.of(config), rank, places.model_dir, places.gang)
    if harm is not None and harm.rank == rank:
        do, orders = work._do, iter(range(1, 10**6))

        def harmed(order: object) -> object:
            if next(orders) == harm.at:
                os.kill(os.getpid(), harm.signal)
            return do(order)  # type: ignore[arg-type]

        work._do = harmed  # type: ignore[assignment,method-assign]
    try:
        while True:
            work.serve(1.0)
    except GangBroken:
        return


def _watch_gathers(work: GangFiles, seen: Seen) -> None:
    """Record each call that gathers a tensor: its size, and whether a copy or an image was being written."""
    writing = False

    def noted(call: Callable[..., object]) -> Callable[..., object]:
        def inner(*args: object, **kwargs: object) -> object:
            whole = kwargs.get("output_tensor", args[0] if args else None)
            nbytes = whole.numel() * whole.element_size() if isinstance(whole, torch.Tensor) else 0
            seen.gathered_bytes = max(seen.gathered_bytes, nbytes)
            seen.gathers += 1
            seen.gathers_to_write += writing
            return call(*args, **kwargs)

        return inner

    def written(call: Callable[..., object]) -> Callable[..., object]:
        def inner(*args: object) -> object:
            nonlocal writing
            writing = True
            try:
                return call(*args)
            finally:
                writing = False

        return inner

    DTensor.full_tensor = noted(DTensor.full_tensor)  # type: ignore[method-assign,assignment]
    for name in (name for name in dir(dist) if "gather" in name or name.startswith("broadcast")):
        setattr(dist, name, noted(getattr(dist, name)))
    for name in ("seal", "write_image"):
        setattr(work, name, written(getattr(work, name)))
