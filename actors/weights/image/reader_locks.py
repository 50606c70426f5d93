"""`ReaderLock`: shared file lock of the readers of an image file.

Owns the rule for all processes of a host. A reader holds a shared `flock` on the file as long as it reads the
file or has it mapped. A process that reuses the file needs an exclusive lock, and does not wait for it. A
Python mapping holds its own descriptor of the file, so it is a lease as long as it lives, with everything
made from it. The kernel releases the locks of a dead process. Adapter: files.
"""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.image.safetensors_file import begin_of


class ImageLocked(OSError):
    """A process writes the file."""


class ReaderLock:
    """The file at `path` is neither written again nor removed by name until `close`. Raises OSError: it is
    not there, or being written."""

    def __init__(self, path: str | Path) -> None:
        self._fd = _shared(Path(path))

    def close(self) -> None:
        """Let go; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def mapped(path: str | Path, *, private: bool = False) -> memoryview:
    """The image in a file, mapped; a lease as long as anything made from it lives.

    Read-only, or `private`: then a write changes only the writer's own copy of the page. Raises OSError,
    NotSafetensors.
    """
    fd = _shared(Path(path))
    try:
        access = mmap.ACCESS_COPY if private else mmap.ACCESS_READ
        begin = begin_of(os.pread(fd, 8, 0))
        return memoryview(mmap.mmap(fd, 0, access=access))[begin:]
    finally:
        os.close(fd)


def in_file(path: str | Path, tensors: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """These tensors of an image, with offsets from the beginning of its file. Raises OSError,
    NotSafetensors."""
    with open(path, "rb") as file:
        begin = begin_of(file.read(8))
    return tuple(msgspec.structs.replace(spec, offset=begin + spec.offset) for spec in tensors)


def let_go(view: memoryview) -> None:
    """Release a mapping from `mapped` now, or when the last object made from it is gone."""
    whole = view.obj
    with contextlib.suppress(BufferError):
        view.release()
        if isinstance(whole, mmap.mmap):
            whole.close()


def exclusive(path: Path, flags: int = os.O_RDWR) -> int | None:
    """A descriptor of a file or folder with an exclusive lock; None if another process holds one, or the file
    is gone.
    """
    try:
        fd = os.open(path, flags | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(fd, path):
            return fd
    except BlockingIOError:
        pass
    os.close(fd)
    return None


def _shared(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if not _is_at(fd, path):  # it was reused for another version at this moment
            raise FileNotFoundError(f"{path} is gone")
    except BlockingIOError:
        os.close(fd)
        raise ImageLocked(f"{path} is being written") from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _is_at(fd: int, path: Path) -> bool:
    try:
        named, held = os.stat(path), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)
