"""JobMemoryHold: shared memory of jobs on this host, held while used, then freed.

Owns the locks on folders `/dev/shm/gleaner-JOB-HOST`, and the search for orphans of dead runs. A run that was
killed as a whole, agents too, leaves its folders there: images of weights, which are published and pulled
again, and host copies of the trainer's state, from which `rlctl resume` continues. A folder in use is left
alone, and so is one that changed a moment ago, because a killed agent is restarted. Adapter: files.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gleaner.actors.cluster.job import SHARED_MEMORY, memory_dir
from gleaner.actors.protocol.cluster import JobSpec
from gleaner.actors.weights.control.file import has_writer
from gleaner.actors.weights.control.page import SUFFIX
from gleaner.actors.weights.image.reader_locks import exclusive

QUIET_S = 60.0  # time without a change before a folder is freed; killed agents restart within seconds
STATE = "state"  # host copies of the trainer's state, `gleaner.actors.cluster.job.state_copy_dir`
BLOCK_BYTES = 512  # of `st_blocks`

log = logging.getLogger("nodeagent")


class JobMemoryHold:
    """The memory of a job on this host; it is not freed until `release` or the end of this process."""

    def __init__(self, folder: Path) -> None:
        while True:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._fd, fcntl.LOCK_SH)  # a process that frees it locks it for a moment
            with contextlib.suppress(FileNotFoundError):
                if os.stat(folder).st_ino == os.fstat(self._fd).st_ino:
                    return
            os.close(self._fd)  # it was freed in this moment

    def release(self) -> None:
        """A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True, slots=True)
class JobFolder:
    """A folder of a job. `image_bytes`: of all but host copies, which have `state_bytes`. `used`: why it is
    left alone, "" if it has no user any more."""

    path: Path
    image_bytes: int
    state_bytes: int
    used: str


def hold(job: JobSpec, node: str) -> JobMemoryHold:
    """Keep the memory of the job on this host from being freed, until its release. Raises OSError."""
    return JobMemoryHold(memory_dir(job, node))


def found(root: Path, quiet_s: float) -> list[JobFolder]:
    """The folders of this user's jobs, used or not. quiet_s: a dead run's folder must be unchanged for so
    long."""
    folders = [path for path in sorted(root.glob("gleaner-*")) if _is_ours(path)]
    open_paths = tuple(_open_paths(root)) if folders else ()
    return [
        JobFolder(
            path,
            _bytes_of(entry for entry in _entries(path) if STATE not in entry.relative_to(path).parts[:1]),
            _bytes_of(_entries(path / STATE)),
            _used(path, open_paths, quiet_s),
        )
        for path in folders
    ]


def free(one: JobFolder, quiet_s: float, *, whole: bool) -> int:
    """Remove a dead run's folder; with `whole` its host copies too. Returns the freed bytes, 0 if the folder
    is in use again."""
    if (fd := exclusive(one.path, os.O_RDONLY | os.O_DIRECTORY)) is None:
        return 0
    try:
        if _used(one.path, tuple(_open_paths(one.path.parent)), quiet_s, held=True):
            return 0
        for entry in list(one.path.iterdir()):
            if entry.name == STATE and not whole:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # host copies stay in it
            one.path.rmdir()
    finally:
        os.close(fd)
    return one.image_bytes + (one.state_bytes if whole else 0)


def free_images_of_dead_runs(root: Path = SHARED_MEMORY, quiet_s: float = QUIET_S) -> None:
    """Called at the start of a node agent. Host copies stay: a run may be resumed. A failure is logged."""
    try:
        for one in found(root, quiet_s):
            if not one.used and one.image_bytes and (freed := free(one, quiet_s, whole=False)):
                log.info("freed %d bytes of weights that a dead run left in %s", freed, one.path)
    except OSError as problem:
        log.warning("what dead runs left in %s is not freed: %s", root, problem)


def _is_ours(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.geteuid()
    return False


def _used(folder: Path, open_paths: Iterable[str], quiet_s: float, *, held: bool = False) -> str:
    """Why it is not to be touched; `held`: this process holds the folder itself."""
    if not held:
        if (fd := exclusive(folder, os.O_RDONLY | os.O_DIRECTORY)) is None:
            return "a node agent runs its job"
        os.close(fd)
    begin = f"{folder}/"
    if any(path.startswith(begin) for path in open_paths):
        return "a process has files of it open"
    newest_s = 0.0
    for entry in _entries(folder):
        with contextlib.suppress(FileNotFoundError):
            newest_s = max(newest_s, entry.lstat().st_ctime)
            if entry.name.endswith(SUFFIX) and has_writer(entry):
                return "an instance of it lives"
            if entry != folder and _is_locked(entry):
                return "its weights are read or written"
    return "it changed a moment ago" if time.time() - newest_s < quiet_s else ""


def _is_locked(entry: Path) -> bool:
    """Also by a process in another container, which `/proc` does not show."""
    if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
        return False
    fd = os.open(entry, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _open_paths(root: Path) -> Iterator[str]:
    """Files below `root` that a process has open or mapped, of the processes that this user may inspect."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text(errors="replace").splitlines():
                if (at := line.find(f" {root}/")) >= 0:
                    yield line[at + 1 :]
        with contextlib.suppress(OSError):
            for fd in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if (path := os.readlink(fd)).startswith(f"{root}/gleaner-"):
                        yield path


def _entries(folder: Path) -> list[Path]:
    """It and all below it; what vanishes meanwhile is left out, for other runs begin and end (`os.walk`)."""
    walk = os.walk(folder)
    return [path for at, _, files in walk for path in (Path(at), *(Path(at, name) for name in files))]


def _bytes_of(entries: Iterable[Path]) -> int:
    total = 0
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):
            total += entry.lstat().st_blocks * BLOCK_BYTES
    return total
