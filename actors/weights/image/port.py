"""`Images`: port to the weight images of a host, used by TransferAgent.

Pure: `store` keeps images as files in shared memory. A sealed image is whole and does not change while
any process reads it; its memory is reused only after that. An image that is being written is a draft and
belongs to its writer alone.
"""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from gleaner.actors.model.tensor_spec import TensorSpec


class ImageStoreError(RuntimeError):
    """The store cannot do what was asked."""


class ImageStoreFull(ImageStoreError):
    """The file system is full, or every kept version is in use."""


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
        """The file of the draft until it is sealed. Its last bytes are the image, and other processes may
        write too."""

    @property
    def left(self) -> bool:
        """Whether a dead writer of the same version left it; some of its bytes may be right already."""

    def seal(self) -> object:
        """Make it visible. Raises VersionConflict if other bytes were sealed under its version."""

    def abandon(self) -> None:
        """Discard it; does nothing after `seal`."""


class Images(Protocol):
    """The images of one job on one host, the same for all processes that write, serve and read there."""

    def versions(self) -> list[int]:
        """Sealed versions, ascending."""

    def place(self, version: int) -> str:
        """The file in which an engine of this host finds the image once it is sealed: of safetensors, in a
        folder that is a checkpoint."""

    def open(self, version: int) -> OpenImage:
        """A sealed image. Raises NoSuchImage."""

    def content(self, version: int) -> memoryview:
        """The bytes of a sealed image; it counts as read as long as anything holds them. Raises
        NoSuchImage.
        """

    def create(self, version: int, nbytes: int, tensors: Sequence[TensorSpec] = ()) -> ImageDraft:
        """Allocate an image of these tensors; older versions without readers are evicted.

        The image may be the one that a dead writer left of the same version. Raises ImageStoreFull."""

    def note(self, version: int, note: bytes, settings: bytes = b"") -> None:
        """Store a small note beside a sealed version, such as its manifest, and the model's `config.json`;
        they replace the previous ones. Raises NoSuchImage, ImageStoreFull."""

    def noted(self, version: int) -> bytes | None:
        """The note of a version, if any. Raises NoSuchImage."""

    def discard(self, version: int) -> None:
        """Remove a version. Processes that have it open keep the bytes until they close it. An absent version
        is fine.
        """
