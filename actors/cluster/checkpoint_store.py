"""`CheckpointStore`: durable checkpoints on disk, each one whole or absent.

The last K are kept, and damage is found before a load. Owns the folder `checkpoints/` with its `step-000007`
directories. Does not own the contents of the files. One process writes at a time; any number may read.

A checkpoint is written under a temporary name, with every file on the disk, before one rename makes it
visible; a deletion takes these steps in reverse. However a writer is stopped, readers see only whole
checkpoints.
"""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

from gleaner.actors.cluster import sealed_folder
from gleaner.actors.cluster.saved_state import Damaged, FileInfo, Latest, Note, SealedState
from gleaner.actors.cluster.sealed_folder import Content, Contents

_STEP = re.compile(r"step-(\d{6,})")
_UNFINISHED = ".unfinished"


class CheckpointStore:
    """The `Checkpoints` of a StateManager. `keep`: how many checkpoints stay."""

    def __init__(self, directory: str | Path, *, keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; the last checkpoint must stay")
        self.directory = Path(directory)
        self.keep = keep

    def path(self, step: int) -> Path:
        """The path of the checkpoint after `step` steps, whether it exists or not."""
        return self.directory / f"step-{step:06d}"

    def steps(self) -> list[int]:
        """Steps with a checkpoint, whole or not, ascending."""
        if not self.directory.is_dir():
            return []
        found = (_STEP.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def write(self, step: int, files: Contents, meta: Mapping[str, Note]) -> SealedState:
        """Make a checkpoint durable, then drop all but the last `keep`.

        A whole checkpoint of this step stays as it is: writing it again changes nothing. Raises
        `StateDirFull`.
        """
        return self._write(step, files, meta, {})

    def adopt(self, source: SealedState) -> SealedState:
        """Make another sealed directory (a host copy) durable, under the same step.

        Raises `StateDirFull`, or `Damaged` when the source changed while it was copied.
        """
        files: dict[str, Content] = {name: sealed_folder.copier(source.path / name) for name in source.files}
        try:
            return self._write(source.step, files, source.meta, source.files)
        except FileNotFoundError as error:
            raise Damaged(f"{source.path} vanished while it was copied: {error}") from error

    def load(self, step: int) -> SealedState:
        """A checkpoint, verified. Raises `Damaged`."""
        found = sealed_folder.verify(self.path(step))
        if found.step != step:
            raise Damaged(f"{found.path} holds the state after step {found.step}: it was renamed")
        return found

    def latest(self) -> Latest:
        """The newest checkpoint that verifies. Reads checkpoints until one does."""
        skipped: list[str] = []
        for step in reversed(self.steps()):
            try:
                return Latest(self.load(step), tuple(skipped))
            except Damaged as damage:
                skipped.append(str(damage))
        return Latest(None, tuple(skipped))

    def _write(
        self,
        step: int,
        files: Contents,
        meta: Mapping[str, Note],
        expected: Mapping[str, FileInfo],
    ) -> SealedState:
        final = self.path(step)
        with contextlib.suppress(Damaged):  # absent or damaged: it is written (again)
            return self.load(step)
        self._remove_unfinished()
        temporary = self.directory / f"{final.name}{_UNFINISHED}"
        try:
            written = sealed_folder.write(temporary, step, files, meta, durable=True, expected=expected)
            sealed_folder.remove(final)
            temporary.rename(final)
        except BaseException:
            sealed_folder.remove(temporary)
            raise
        sealed_folder.sync_directory(self.directory)
        for old in self.steps()[: -self.keep]:
            sealed_folder.remove(self.path(old))
        return SealedState(step, final, written.meta, written.files)

    def _remove_unfinished(self) -> None:
        """Remove the unfinished checkpoints of a killed writer."""
        if self.directory.is_dir():
            for path in self.directory.glob(f"*{_UNFINISHED}"):
                sealed_folder.remove(path)
