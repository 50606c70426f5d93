"""Results that all processes of a run of the tests share: the first one that needs a result makes it.

Owns their folder, below pytest's temporary folder of the run.
"""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` fills. It is called with an empty one in one process, and the others wait.

    Where it raises, the next caller tries again.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # that of the run; each worker has one of its own below
    shared = base / "shared"
    shared.mkdir(exist_ok=True)
    folder, unfinished = shared / name, shared / f"{name}.unfinished"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder
