"""Folders of sandboxes, whose owners may be killed at any time: what a dead one left is removed by the next.

A folder belongs to the process that holds the lock of the file in it.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
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
    shutil.rmtree(folder, ignore_errors=True)
    os.close(held)


def remove_orphans() -> None:
    """Remove the folders of owners that are dead, as far as this user may."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):
            held = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(held)
