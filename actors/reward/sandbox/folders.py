"""Folders of sandboxes; a dead owner's folder is removed by the next owner.

Owners may be killed at any time.

A folder belongs to the process that holds the lock of the file in it.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "gleaner-sandbox-"
LOCK = "owner"


def make() -> tuple[str, int]:
    """A new folder that other users may search and not list, and the descriptor that holds it."""
    remove_orphans()
    folder = tempfile.mkdtemp(prefix=PREFIX)
    os.chmod(folder, 0o711)
    new = f"{folder}/{LOCK}.new"
    held = os.open(new, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    os.rename(new, f"{folder}/{LOCK}")  # locked before another process can find it
    return folder, held


def remove(folder: str, held: int) -> None:
    """Remove a folder and let go of it."""
    with contextlib.suppress(OSError):
        emptied(folder)
        os.rmdir(folder)
    os.close(held)


def emptied(folder: str) -> bool:
    """Remove what is in a folder; whether nothing is left. Raises OSError if the folder cannot be opened.

    Follows no link. Folders in it are moved up before they are removed, as a program may nest them deeper
    than a path is long. A folder may have been made without the right to list it.
    """
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        left = os.listdir(top)
        if not left:
            return True
        prefix = os.urandom(8).hex()
        moved = 0
        with contextlib.suppress(OSError):
            while left:
                name = left.pop()
                for inner, descriptor in _unlinked(top, name):
                    moved += 1
                    os.rename(inner, f"{prefix}-{moved}", src_dir_fd=descriptor, dst_dir_fd=top)
                    left.append(f"{prefix}-{moved}")
        return not os.listdir(top)
    finally:
        os.close(top)


def _unlinked(parent: int, name: str) -> Iterator[tuple[str, int]]:
    """Remove an entry; of a folder, after each folder in it was yielded, with its parent, and moved."""
    with contextlib.suppress(IsADirectoryError):
        os.unlink(name, dir_fd=parent)
        return
    folder = _unlocked(parent, name)
    try:
        for inner in os.listdir(folder):
            try:
                os.unlink(inner, dir_fd=folder)
            except IsADirectoryError:
                os.close(_unlocked(folder, inner))
                yield inner, folder
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)


def _unlocked(parent: int, name: str) -> int:
    """A folder's descriptor, after its owner was given all rights."""
    path = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{path}", 0o700)
        return os.open(f"/proc/self/fd/{path}", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(path)


def remove_orphans() -> None:
    """Remove the folders of dead owners, as far as this user may."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):
            held = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                emptied(str(lock.parent))
                os.rmdir(lock.parent)
            finally:
                os.close(held)
