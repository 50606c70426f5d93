"""`Draft`: an image that is being written, invisible until it is sealed.

Owns a draft's memory, new or reused from an evicted version, and making it visible. The store (`store`)
chooses the version to evict. Adapter: files.

The folder is locked while its writer lives, so a free lock identifies the folder of a dead writer.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.image.port import VersionConflict
from gleaner.actors.weights.image.reader_locks import exclusive, let_go
from gleaner.actors.weights.image.safetensors_file import begin_of, header

FILE = "model.safetensors"
DRAFT = ".draft"
TRIES = 3


class Draft:
    """An image being written. Leaving the `with` block without `seal` drops it."""

    def __init__(
        self, version: int, folder: Path, final: Path, fds: tuple[int, int], *, left: bool = False
    ) -> None:
        """fds: of the folder, locked, and of the file, which has its header."""
        self.version, self.left = version, left
        self._folder, self._final, self._fds = folder, final, fds
        begin = begin_of(os.pread(fds[1], 8, 0))
        # All pages at once: to fault them in one by one takes longer than to write them.
        self._map = mmap.mmap(fds[1], 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.view = memoryview(self._map)[begin:]

    @property
    def path(self) -> Path:
        """The file until it is sealed, with its header; other processes may write too, behind that."""
        return self._folder / FILE

    def seal(self) -> Path:
        """Make the image visible under its version. Its bytes must not change any more.

        Sealing a version again with equal bytes is harmless. Raises `VersionConflict` for other bytes.
        """
        if self._final.exists():
            if (self._final / FILE).read_bytes()[-len(self.view) :] != self.view:
                raise VersionConflict(f"{self._final} holds another version {self.version}; discard it first")
            self.abandon()
        else:
            self._folder.rename(self._final)
            self._close()
        return self._final

    def abandon(self) -> None:
        """Drop what was written. A second call does nothing, nor does one after `seal`."""
        if self._fds[0] >= 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._close()

    def _close(self) -> None:
        let_go(self.view)
        for fd in self._fds:
            os.close(fd)
        self._fds = (-1, -1)

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()


def new_draft(
    version: int, nbytes: int, tensors: Sequence[TensorSpec], final: Path, used: Path | None
) -> Draft:
    """Allocate an image.

    The memory of the folder `used` is reused if no process reads it any more, and that folder is then gone;
    otherwise new memory is taken. Raises OSError: no space; NotSafetensors."""
    head = header(tensors, nbytes)
    folder = final.with_name(f"{final.name}.{os.getpid()}.{os.urandom(4).hex()}{DRAFT}")
    fds = None if used is None else _reused(used, folder)
    fd_folder, fd_file = fds or _made(folder)
    try:
        size = len(head) + nbytes
        if os.fstat(fd_file).st_size > size:
            os.ftruncate(fd_file, size)
        os.posix_fallocate(fd_file, 0, size)  # now, because a hole that cannot be filled later is a SIGBUS
        os.pwrite(fd_file, head, 0)
        # A reader of the sealed image shares the lock with a writer that has not closed it yet.
        fcntl.flock(fd_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return Draft(version, folder, final, (fd_folder, fd_file))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(fd_folder)
        os.close(fd_file)
        raise


def left_draft(version: int, nbytes: int, tensors: Sequence[TensorSpec], final: Path) -> Draft | None:
    """The draft that a dead writer left for the same version and layout, as it left it."""
    head = header(tensors, nbytes)
    for folder in drafts(final.parent):
        if not folder.name.startswith(f"{final.name}."):
            continue
        fd_folder = exclusive(folder, os.O_RDONLY | os.O_DIRECTORY)
        fd_file = None if fd_folder is None else exclusive(folder / FILE)
        if fd_folder is None or fd_file is None:
            close(fd_folder)
            continue
        same_size = os.fstat(fd_file).st_size == len(head) + nbytes
        if same_size and os.pread(fd_file, len(head), 0) == head:
            fcntl.flock(fd_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return Draft(version, folder, final, (fd_folder, fd_file), left=True)
        close(fd_folder)
        close(fd_file)
    return None


def drafts(store: Path) -> list[Path]:
    """All drafts in a store, of live and dead writers."""
    return sorted(store.glob(f"*{DRAFT}"))


def is_dead(draft: Path) -> bool:
    """Whether no process writes the draft any more."""
    fd = exclusive(draft, os.O_RDONLY | os.O_DIRECTORY)
    close(fd)
    return fd is not None


def is_read(folder: Path) -> bool:
    """Whether any process has a lease on the image in this folder."""
    fd = exclusive(folder / FILE)
    close(fd)
    return fd is None and (folder / FILE).exists()


def close(fd: int | None) -> None:
    """Close a descriptor, if there is one."""
    if fd is not None:
        os.close(fd)


def _made(folder: Path) -> tuple[int, int]:
    """A new folder, locked, and its empty file. Raises OSError."""
    fd_folder = None
    for _ in range(TRIES):
        folder.mkdir(mode=0o700, exist_ok=True)
        # A concurrent cleanup takes it for a dead writer's draft: then it is gone, or locked.
        if (fd_folder := exclusive(folder, os.O_RDONLY | os.O_DIRECTORY)) is not None:
            break
    if fd_folder is None:
        raise OSError(errno.EAGAIN, "another process removes it again and again", str(folder))
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return fd_folder, os.open(folder / FILE, flags, 0o600)
    except BaseException:
        os.close(fd_folder)
        raise


def _reused(used: Path, folder: Path) -> tuple[int, int] | None:
    """The folder and its file under another name, both locked, with nothing else in it.

    None if any process reads or writes the file."""
    fd_folder = exclusive(used, os.O_RDONLY | os.O_DIRECTORY)
    fd_file = None if fd_folder is None else exclusive(used / FILE)
    if fd_folder is None or fd_file is None:
        close(fd_folder)
        return None
    try:
        used.rename(folder)
    except OSError:
        close(fd_folder)
        close(fd_file)
        return None
    for beside in folder.iterdir():
        if beside.name != FILE:
            beside.unlink(missing_ok=True)
    return fd_folder, fd_file
