"""`Copies`, `Checkpoints`: ports of the StateManager to the saved state.

The state is the trainer's. Owns the types and the ports. Pure: `host_copy` and `checkpoint_store` keep them
in directories under a seal (`sealed_folder`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

Note = str | int | float | bool | None


class StateDirFull(RuntimeError):
    """No space for a copy of the state. Nothing half-written is left, and older copies are intact."""

    def __init__(self, path: Path, needed: int, free: int) -> None:
        super().__init__(
            f"{path}: {needed} bytes are needed for a copy of the state and {free} are free. Older copies "
            "are intact and the job can go on from them: free space there, or move the state directory to "
            "another disk"
        )
        self.path, self.needed, self.free = path, needed, free


class Damaged(RuntimeError):
    """The files differ from the sealed ones; the text names the first that differs."""


class FileInfo(msgspec.Struct, frozen=True):
    """Size in bytes and xxh3-128 digest (hex) of a file."""

    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class SealedState:
    """A whole directory: the state after `step` finished steps, its files, and the note with it."""

    step: int
    path: Path
    meta: Mapping[str, Note]
    files: Mapping[str, FileInfo]


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest whole checkpoint, if any, and why newer ones were skipped."""

    checkpoint: SealedState | None
    skipped: tuple[str, ...]


class Copies(Protocol):
    """Host copies: they outlive the trainer's process, not its host. Calls block."""

    def newest(self) -> SealedState | None:
        """The newest state that is whole."""


class Checkpoints(Protocol):
    """Durable checkpoints: each one whole or absent, the last few kept. Calls block."""

    @property
    def directory(self) -> Path:
        """Their directory, for messages."""

    def path(self, step: int) -> Path:
        """The path of the checkpoint after `step` steps, whether it exists or not."""

    def steps(self) -> list[int]:
        """Steps with a checkpoint, whole or not, ascending."""

    def latest(self) -> Latest:
        """The newest checkpoint that is whole."""

    def adopt(self, source: SealedState) -> SealedState:
        """Make a host copy durable, under the same step. Raises StateDirFull, or Damaged where the source
        changed meanwhile."""
