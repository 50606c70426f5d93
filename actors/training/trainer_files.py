"""`TrainerFiles`: trainer on torch and files (checkpoint, host copies, images).

Adapter behind `work.TrainerWork`. A host copy is a directory in shared memory: a complete Hugging Face
checkpoint, the optimizer's state, and the commit of the step that made it. It outlives the trainer's process,
not its host.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from safetensors.torch import load_file, save_file

from gleaner.actors.cluster.host_copy import HostCopies
from gleaner.actors.model.checkpoint import save_checkpoint
from gleaner.actors.model.flat_image import weight_layout, write_weights
from gleaner.actors.model.tensor_spec import image_bytes
from gleaner.actors.protocol.weights import Publish
from gleaner.actors.training.policy_update import DTYPES, TrainerCompute
from gleaner.actors.training.sample import Sample
from gleaner.actors.training.settings import ComputeSettings
from gleaner.actors.training.work import Commit, MicroBatchStats, StepStats
from gleaner.actors.weights.image.store import ImageStore

STATE_FILE = "trainer.safetensors"
COMMIT_FILE = "commit.msgpack"
READERS_S = 10.0  # for readers of a version that must be evicted; the error names a reader that takes longer


class TrainerFiles:
    """A `TrainerWork`; `compute` exists after `load`.

    Args:
        settings: sections `training` and `rollout`.
        model_dir: the initial checkpoint.
        store_dir: images of weights. state_dir: host copies.
    """

    compute: TrainerCompute

    def __init__(self, settings: ComputeSettings, model_dir: Path, store_dir: Path, state_dir: Path) -> None:
        self._settings = settings
        self._model_dir = model_dir
        self._store = ImageStore(store_dir)
        self._copies = HostCopies(state_dir)

    def load(self, path: str) -> Commit | None:
        """See `TrainerWork`. Raises: BadCheckpoint, BadState."""
        self.compute = TrainerCompute(
            self._model_dir, self._settings.training, self._settings.rollout.temperature
        )
        if not path or not (Path(path) / STATE_FILE).exists():
            return None
        self.compute.load_state(load_file(Path(path) / STATE_FILE))
        return msgspec.msgpack.decode((Path(path) / COMMIT_FILE).read_bytes(), type=Commit)

    def begin_step(self) -> None:
        """See `TrainerWork`."""
        self.compute.begin_step()

    def add_micro_batch(self, samples: Sequence[Sample]) -> MicroBatchStats:
        """See `TrainerWork`."""
        return self.compute.add_micro_batch(samples)

    @property
    def halves(self) -> bool:
        """See `TrainerWork`: one process is not halved."""
        return False

    def train_on_half(self, half: bool) -> None:
        """See `TrainerWork`."""
        raise ValueError("a trainer of one process trains on all of its devices or on none")

    def finish_step(self) -> StepStats:
        """See `TrainerWork`."""
        return self.compute.finish_step()

    def seal(self, commit: Commit) -> None:
        """See `TrainerWork`."""

        def write(directory: Path) -> None:
            weights = {**self.compute.model.state_dict(), **self.compute.masters()}
            save_checkpoint(weights, directory, like=self._model_dir)
            save_file(self.compute.state(), directory / STATE_FILE)
            (directory / COMMIT_FILE).write_bytes(msgspec.msgpack.encode(commit))

        self._copies.write(commit.result.step, write)

    def write_image(self, version: int) -> Publish:
        """See `TrainerWork`."""
        model = self.compute.model
        dtype = DTYPES[self._settings.training.rollout_dtype]
        specs = tuple(weight_layout(model, dtype))
        with self._store.create(version, image_bytes(specs), specs, patience_s=READERS_S) as draft:
            write_weights(model, draft.view, dtype)
            draft.seal()
        return Publish(version=version, tensors=specs, model_config=msgspec.json.encode(model.config))
