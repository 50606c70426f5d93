"""Proof that nothing of a run is left on this machine: no process, no shared memory.

Owns the looking; kills nothing.
"""

import contextlib
import os
from collections.abc import Iterator

import psutil

from rlctl.head import remains
from rlctl.runs import RunDir


def left_behind(run: RunDir) -> list[str]:
    """What is left of a run, in words; empty when it is wholly gone."""
    found = {process.pid: process for process in [*remains(run), *_naming(run)]}
    return [*map(_describe, found.values()), *(f"shared memory {path}" for path in run.memory())]


def _naming(run: RunDir) -> Iterator[psutil.Process]:
    """Processes whose command line names the run's folder, this one and its parents excepted."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            named = any(str(run.path) in argument for argument in process.cmdline())
            if named and process.pid not in own and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _describe(process: psutil.Process) -> str:
    command = "?"
    with contextlib.suppress(psutil.Error):
        command = " ".join(process.cmdline())[:200]
    return f"process {process.pid}: {command}"
