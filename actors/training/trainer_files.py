"""What the trainer reads and writes: its initial checkpoint, its host copies, the images of its weights.

Adapter: torch and files. A host copy is a directory in shared memory: a complete Hugging Face checkpoint, the
optimizer's state, and the commit of the step that made it. It outlives the trainer's process, not its host.
"""

from pathlib import Path

import msgspec
from safetensors.torch import load_file, save_file

from actors.cluster.host_copy import HostCopies
from actors.cluster.messages import TrainedSample
from actors.engine.checkpoint import save_checkpoint
from actors.engine.tensor_spec import image_bytes
from actors.engine.weight_image import weight_layout, write_weights
from actors.training.messages import StepResult
from actors.training.policy_update import TrainerCompute
from actors.weights.image_store import ImageStore
from actors.weights.messages import Publish
from configs.schema import Config

STATE_FILE = "trainer.safetensors"
COMMIT_FILE = "commit.msgpack"


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What made a version: the result of its step, the samples that went in, the micro-batches (groups)."""

    result: StepResult
    samples: tuple[TrainedSample, ...]
    micro_batches: tuple[tuple[int, ...], ...] = ()


class TrainerFiles:
    """Calls come from one thread at a time; `compute` exists after `load`."""

    compute: TrainerCompute

    def __init__(self, config: Config, model_dir: Path, store_dir: Path, state_dir: Path) -> None:
        self._config = config
        self._model_dir = model_dir
        self._store = ImageStore(store_dir)
        self._copies = HostCopies(state_dir)

    def load(self, path: str) -> Commit | None:
        """Load the initial checkpoint and, where `path` is a host copy or checkpoint, the state in it.

        Raises: BadCheckpoint, BadState.
        """
        self.compute = TrainerCompute(
            self._model_dir, self._config.training, self._config.rollout.temperature
        )
        if not path or not (Path(path) / STATE_FILE).exists():
            return None
        self.compute.load_state(load_file(Path(path) / STATE_FILE))
        return msgspec.msgpack.decode((Path(path) / COMMIT_FILE).read_bytes(), type=Commit)

    def seal(self, commit: Commit) -> None:
        """Make the host copy of a finished step."""

        def write(directory: Path) -> None:
            save_checkpoint(self.compute.model.state_dict(), directory, like=self._model_dir)
            save_file(self.compute.state(), directory / STATE_FILE)
            (directory / COMMIT_FILE).write_bytes(msgspec.msgpack.encode(commit))

        self._copies.write(commit.result.step, write)

    def write_image(self, version: int) -> Publish:
        """Put the weights into the image store; harmless when the same version lies there already."""
        model = self.compute.model
        specs = tuple(weight_layout(model))
        with self._store.create(version, image_bytes(specs)) as draft:
            write_weights(model, draft.view)
            draft.seal()
        return Publish(version=version, tensors=specs, model_config=msgspec.json.encode(model.config))
