"""Images of versions of the weights on a host: the port behind which a TransferAgent has them.

Owns the words. Pure: `image_store` keeps images as files in shared memory. A sealed image is whole and stays
as it is while anybody reads it, in whatever process: its memory is used again only after that. One that is
being written is a draft, and no one else's.
"""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from actors.engine.tensor_spec import TensorSpec


class ImageStoreError(RuntimeError):
    """The store cannot do what was asked."""


class ImageStoreFull(ImageStoreError):
    """No room for an image: the file system is full, or every kept version is in use."""


class NoSuchImage(ImageStoreError):
    """The version is not (or no longer) here."""


class VersionConflict(ImageStoreError):
    """Other bytes were sealed under this version before."""


class OpenImage(Protocol):
    """A sealed image, read-only; it is not evicted until it is closed."""

    @property
    def view(self) -> memoryview:
        """Its bytes."""

    def __enter__(self) -> "OpenImage": ...

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ImageDraft(Protocol):
    """An image that is being written."""

    @property
    def view(self) -> memoryview:
        """Its bytes, to be written."""

    @property
    def path(self) -> Path:
        """The file that it is until it is sealed, whose last bytes are the image: other processes may write
        too."""

    @property
    def left(self) -> bool:
        """Whether a dead writer of the same version left it: some of it may be right already."""

    def seal(self) -> object:
        """Make it visible. Raises VersionConflict where other bytes were sealed under its version."""

    def abandon(self) -> None:
        """Drop it; nothing after `seal`."""


class Images(Protocol):
    """The images of one job on one host: whoever writes, serves and reads them there has the same ones."""

    def versions(self) -> list[int]:
        """Sealed versions, ascending."""

    def place(self, version: int) -> str:
        """The file in which an engine of this host finds the image once it is sealed: of safetensors, in a
        folder that is a checkpoint."""

    def open(self, version: int) -> OpenImage:
        """A sealed image. Raises NoSuchImage."""

    def content(self, version: int) -> memoryview:
        """The bytes of a sealed image; it is read until nothing holds them any more. Raises NoSuchImage."""

    def create(self, version: int, nbytes: int, tensors: Sequence[TensorSpec] = ()) -> ImageDraft:
        """Room for an image of these tensors; older versions that nobody reads make way. It may be what a
        dead writer left of the same version. Raises ImageStoreFull."""

    def note(self, version: int, note: bytes, settings: bytes = b"") -> None:
        """Keep something small beside a sealed version, such as its manifest, and the model's `config.json`;
        replaces what was noted. Raises NoSuchImage, ImageStoreFull."""

    def noted(self, version: int) -> bytes | None:
        """What was noted of a version, if anything. Raises NoSuchImage."""

    def discard(self, version: int) -> None:
        """Remove a version; who has it open keeps the bytes until they close it. Absent is fine."""
