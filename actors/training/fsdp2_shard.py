"""`Shard`: one rank's rows of a state or image on disk, and its compute.

Adapter between `fsdp2_compute` and the files of the job. The ranks together write the same files that one
process would write: a Hugging Face checkpoint with the optimizer's state beside it, or an image of the
weights. So no rank ever needs the whole. Any number of ranks can resume from it, and so can one process of
the other backend. Rank 0 (`fsdp2_files`) makes the files and seals them.
"""

from __future__ import annotations

from pathlib import Path

import torch

from gleaner.actors.model.checkpoint import SINGLE, save_companions
from gleaner.actors.model.flat_image import weight_layout
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.training.fsdp2_compute import ShardedCompute
from gleaner.actors.training.policy_update import DTYPES
from gleaner.actors.training.row_files import RowFile, row_file, write_rows
from gleaner.actors.training.settings import ComputeSettings
from gleaner.actors.training.trainer_files import STATE_FILE
from gleaner.actors.weights.image.reader_locks import in_file


class Shard:
    """One rank of a gang; join torch's group of ranks first.

    Args:
        settings: sections `training` and `rollout`.
        model_dir: the initial checkpoint.
        path: a host copy or checkpoint to go on from; "" for none. Raises: BadCheckpoint, BadState.
    """

    def __init__(self, settings: ComputeSettings, model_dir: Path, path: str) -> None:
        self.compute = ShardedCompute(
            model_dir,
            settings.training,
            settings.rollout.temperature,
            halves=settings.seeding.stairs != "off",
        )
        self._model_dir = model_dir
        self._dtype = DTYPES[settings.training.rollout_dtype]
        self.resumed = bool(path) and (Path(path) / STATE_FILE).exists()
        if self.resumed:
            self.compute.load_rows(Path(path) / STATE_FILE)

    @property
    def state_bytes(self) -> int:
        """Bytes of a state that this rank writes."""
        tensors = [*self.compute.masters().values(), *self.compute.state().values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def image_layout(self) -> tuple[TensorSpec, ...]:
        """The layout of the whole image."""
        return tuple(weight_layout(self.compute.model, self._dtype))

    def create_state(self, directory: Path) -> None:
        """Rank 0: make the files that all fill. Raises OSError, with no space for instance."""
        directory.mkdir(parents=True, exist_ok=True)
        save_companions(directory, self._model_dir, torch.float32)
        for name, file in self._files().items():
            file.create(directory / name)

    def write_state(self, directory: Path) -> None:
        """Write the rows of this rank into them; the second half has those of the first. Raises OSError."""
        if not self.compute.first_half:
            return
        files = self._files()
        compute = self.compute
        write_rows(directory / SINGLE, files[SINGLE].tensors, compute.masters(), compute.rows)
        write_rows(directory / STATE_FILE, files[STATE_FILE].tensors, compute.state(), compute.rows)

    def write_image(self, path: Path) -> None:
        """Write the rows of this rank into the file of an image, as in `write_state`. Raises OSError."""
        if not self.compute.first_half:
            return
        write_rows(path, in_file(path, self.image_layout()), self.compute.served(), self.compute.rows)

    def _files(self) -> dict[str, RowFile]:
        """The contents of a state, by the names of its files."""
        weights = [(spec.name, "float32", spec.shape) for spec in self.image_layout()]
        shapes = self.compute.shapes()
        state = [(name, "float32", shapes[name]) for name in sorted(shapes)]
        return {SINGLE: row_file(weights), STATE_FILE: row_file(state)}
