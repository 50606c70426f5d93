"""State directory of a node agent: its lock, and the names of the agent's files.

`agent.lock` is locked while the agent lives (by the kernel, so a kill cannot leave it locked), and keeps a
second agent off. Imports little: a command on this host looks here before it imports a client of the cluster.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gleaner.nodeagent.exit_codes import IN_USE, NO_STATE, NOT_RUNNING, CannotRun

AGENT_FILE = "agent.json"
LOCK_FILE = "agent.lock"
CONTROL_SOCKET = "control"


class StateLock:
    """Holds a state directory for this process until `release` or its end. Raises CannotRun."""

    def __init__(self, state_dir: Path) -> None:
        path = state_dir / LOCK_FILE
        try:
            self._file: IO[str] = path.open("a+")
        except OSError as problem:
            raise CannotRun(NO_STATE, f"{path}: {problem.strerror}") from problem
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            self._file.seek(0)
            holder = self._file.read(32).strip() or "unknown"
            self._file.close()
            raise CannotRun(
                IN_USE,
                f"a node agent (pid {holder}) runs on {state_dir} already: stop it with `nodeagent stop "
                f"--state-dir {state_dir}`, or give another --state-dir",
            ) from problem
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        """Release the directory for another agent. The file stays, or two agents could hold one each; it is
        empty from now on."""
        if not self._file.closed:
            self._file.truncate(0)
            self._file.close()


def is_running(state_dir: Path) -> bool:
    """Whether a node agent holds `state_dir`."""
    try:
        with (state_dir / LOCK_FILE).open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def holder(state_dir: Path) -> int:
    """The process of the agent that runs on `state_dir`, once it can be found. Raises CannotRun when none
    does."""
    if not is_running(state_dir) or not (state_dir / AGENT_FILE).exists():
        raise not_running(state_dir)
    path = state_dir / LOCK_FILE
    try:
        text = path.read_text().strip()
    except FileNotFoundError as problem:
        raise not_running(state_dir) from problem
    except (OSError, UnicodeDecodeError) as problem:
        raise CannotRun(NO_STATE, f"{path} cannot be read: {problem}") from problem
    if not text.isdecimal():  # it is just starting, or just leaving
        raise not_running(state_dir)
    return int(text)


def not_running(state_dir: Path) -> CannotRun:
    """Error text for a state directory without an agent."""
    return CannotRun(NOT_RUNNING, f"no node agent runs on {state_dir}; start one with `nodeagent start`")


@contextmanager
def short_path(state_dir: Path) -> Iterator[Path]:
    """A short name of the folder, while it is used: the path of a Unix socket has 107 bytes at most. Raises
    OSError."""
    descriptor = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
