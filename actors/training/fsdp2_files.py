"""`GangFiles`: `work.TrainerWork` of rank 0 in a trainer of several processes.

The other ranks run `fsdp2_rank`. Owns the order of the work: rank 0 distributes the samples, sends each order
to all ranks, and adds up their results. It seals a host copy or an image only when every rank has written its
rows. So a torn one is detected by its missing or wrong seal, like that of a single process. Any failure of a
rank ends the gang: its supervisor restarts all ranks, and the step begins anew with the collected responses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from gleaner.actors.cluster.host_copy import HostCopies
from gleaner.actors.model.tensor_spec import image_bytes
from gleaner.actors.protocol.weights import Publish
from gleaner.actors.training.fsdp2_compute import join_group, passes
from gleaner.actors.training.fsdp2_shard import Shard
from gleaner.actors.training.gang import Gang
from gleaner.actors.training.gang_orders import (
    Add,
    Begin,
    Finish,
    Load,
    Order,
    Row,
    Sums,
    WriteImage,
    WriteState,
)
from gleaner.actors.training.policy_update import NotFinite
from gleaner.actors.training.sample import Sample
from gleaner.actors.training.settings import ComputeSettings
from gleaner.actors.training.shares import shares
from gleaner.actors.training.trainer_files import COMMIT_FILE, READERS_S
from gleaner.actors.training.work import Commit, MicroBatchStats, StepStats
from gleaner.actors.weights.image.store import ImageStore

JOIN_S = 120.0  # a rank loads its libraries first, which is slow on a busy machine
SLOWEST_BYTES_S = 20e6  # of reading or writing a state; a slower disk exceeds the deadline

T = TypeVar("T")


class GangFiles:
    """A `TrainerWork`; `shard` exists after `load`.

    Args:
        settings: sections `training`, `rollout` and `seeding`.
        model_dir: the initial checkpoint.
        store_dir: images of weights. state_dir: host copies. gang_dir: where the ranks meet.
    """

    shard: Shard

    def __init__(
        self, settings: ComputeSettings, model_dir: Path, store_dir: Path, state_dir: Path, gang_dir: Path
    ) -> None:
        self._settings = settings
        self._model_dir = model_dir
        self._store = ImageStore(store_dir)
        self._copies = HostCopies(state_dir)
        self._ranks = settings.training.processes
        self._gang = Gang(gang_dir, self._ranks, settings.training.exchange_s)
        self._sums: list[Sums] = []  # of each rank, of the step so far
        self._reports: list[Sums] = []  # reports of the other ranks for their last order
        self._half = False

    def load(self, path: str) -> Commit | None:
        """See `TrainerWork`; first the ranks meet. Raises GangBroken, BadCheckpoint, BadState."""
        self._gang.meet(JOIN_S)
        join_group(self._gang.store, 0, self._ranks, self._settings.training.exchange_s)
        read_s = _files_bytes(self._model_dir, *([Path(path)] if path else [])) / SLOWEST_BYTES_S
        self.shard = self._together(
            [Load(path)] * (self._ranks - 1), lambda: Shard(self._settings, self._model_dir, path), read_s
        )
        if not self.shard.resumed:
            return None
        return msgspec.msgpack.decode((Path(path) / COMMIT_FILE).read_bytes(), type=Commit)

    def begin_step(self) -> None:
        """See `TrainerWork`."""
        self._together([Begin()] * (self._ranks - 1), self.shard.compute.begin_step)
        self._sums = [{} for _ in range(self._ranks)]
        self._half = False

    def add_micro_batch(self, samples: Sequence[Sample]) -> MicroBatchStats:
        """See `TrainerWork`. Each rank trains on a share of about equally many tokens; on half of the devices
        the ranks of the other half have none, and make no pass."""
        before = _added(self._sums)
        trains = self._ranks // 2 if self._half else self._ranks
        dealt = shares(samples, trains)
        most = max(map(passes, dealt))
        orders = [Add(tuple(map(Row.of, share)), most) for share in dealt[1:]]
        orders += [Add((), 0)] * (self._ranks - trains)
        own = self._together(orders, lambda: self.shard.compute.add_share(dealt[0], most))
        self._sums = [own, *self._reports]
        after = _added(self._sums)
        return MicroBatchStats(
            samples=len(samples),
            tokens=int(after["tokens"] - before.get("tokens", 0)),
            loss_sum=after["loss"] - before.get("loss", 0.0),
        )

    @property
    def halves(self) -> bool:
        """See `TrainerWork`."""
        return self._settings.seeding.stairs != "off"

    def train_on_half(self, half: bool) -> None:
        """See `TrainerWork`: on the ranks of the first half."""
        if half and not self.halves:
            raise ValueError("seeding.stairs is off: the ranks have one model together, no half has it whole")
        self._half = half

    def finish_step(self) -> StepStats:
        """See `TrainerWork`."""
        sums = _added(self._sums)
        orders = [Finish(sums)] * (self._ranks - 1)
        return self._together(orders, lambda: self.shard.compute.finish_together(sums))

    def seal(self, commit: Commit) -> None:
        """See `TrainerWork`."""

        def write(directory: Path) -> None:
            self.shard.create_state(directory)
            self._together(
                [WriteState(str(directory))] * (self._ranks - 1),
                lambda: self.shard.write_state(directory),
                self.shard.state_bytes / SLOWEST_BYTES_S,
            )
            (directory / COMMIT_FILE).write_bytes(msgspec.msgpack.encode(commit))

        self._copies.write(commit.result.step, write)

    def write_image(self, version: int) -> Publish:
        """See `TrainerWork`."""
        layout = self.shard.image_layout()
        nbytes = image_bytes(layout)
        with self._store.create(version, nbytes, layout, patience_s=READERS_S) as draft:
            self._together(
                [WriteImage(str(draft.path))] * (self._ranks - 1),
                lambda: self.shard.write_image(draft.path),
                nbytes / SLOWEST_BYTES_S,
            )
            draft.seal()
        model_config = msgspec.json.encode(self.shard.compute.model.config)
        return Publish(version=version, tensors=layout, model_config=model_config)

    def _together(self, orders: Sequence[Order], own: Callable[[], T], extra_s: float = 0.0) -> T:
        """Run an order on every rank, this one included, and return this rank's result. The other ranks'
        replies are in `_said`. Raises GangBroken where another rank failed or did not answer."""
        self._gang.tell(orders)
        try:
            done = own()
        except NotFinite:  # the others found the same, and changed nothing either
            self._gang.gather(extra_s)
            raise
        except RuntimeError as problem:  # an error of torch in an exchange: find the rank that is gone
            raise self._gang.blame(problem) from problem
        self._reports = [report.sums for report in self._gang.gather(extra_s)]
        return done


def _added(sums: Sequence[Sums]) -> Sums:
    """Field by field, in the order of the ranks: the same bits on every run."""
    total: Sums = {}
    for one in sums:
        for name, value in one.items():
            total[name] = total.get(name, 0) + value
    return total


def _files_bytes(*directories: Path) -> int:
    return sum(path.stat().st_size for folder in directories for path in folder.glob("*.safetensors"))
