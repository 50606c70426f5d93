"""AgentFile and other files by which a node agent is found.

`agent.json` contains the address of the agent of a state directory. Owns that file and all file operations:
writing a file whole or not at all, forgetting journals of old jobs, freeing the shared memory of a job,
keeping a folder private. `agent.lock` belongs to `state_lock`.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gleaner.nodeagent.exit_codes import NO_STATE, CannotRun, NoSpace
from gleaner.nodeagent.state_lock import (
    AGENT_FILE,
    CONTROL_SOCKET,
    LOCK_FILE,
    holder,
    is_running,
    not_running,
)
from gleaner.transport.wire import Peer

if TYPE_CHECKING:
    from gleaner.actors.protocol.cluster import JobSpec

STANDBY = "standby"  # the role of a head that waits for the lease; it has no address yet
PROCESSES = "processes"
OVER_FILE = "over"  # beside the journals of a finished job
JOBS_KEPT = 16
"""Journals of the newest jobs on a host; an older one that is over cannot be audited any more."""
MOST_UNFINISHED = 64
"""Unfinished jobs whose journals a host keeps; with so many it takes no other job."""


class AgentFile(msgspec.Struct, frozen=True, kw_only=True):
    """`agent.json`: the agent of this directory and its address, and the address of its metrics ("" where
    they are not served). Also the key directory that a caller on this host may use, and where the host's
    weights may travel unencrypted.
    """

    node: str
    role: str
    endpoint: str
    public_key: str
    pid: int
    keys: str = ""
    bulk: str = "loopback"
    metrics: str = ""

    @property
    def peer(self) -> Peer:
        """Address of the node agent's process."""
        return Peer(self.endpoint, self.public_key)


def write_whole(path: Path, data: bytes) -> None:
    """Write under another name, flush to the disk, rename: readers see all of it or none. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def make_private(directory: Path) -> None:
    """Make the folder private: it, its content, and all files that this process makes from now on are for
    this user alone. Raises OSError."""
    os.umask(0o077)
    directory.mkdir(parents=True, exist_ok=True)
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o700)


def mark_over(folder: Path) -> None:
    """Note in the folder of a job's journals that the job is over. Raises OSError."""
    write_whole(folder / OVER_FILE, b"")


def forget_old_jobs(directory: Path, own: str, count: int = JOBS_KEPT, most: int = MOST_UNFINISHED) -> None:
    """Remove the journals of finished jobs, but for the `count` newest folders in `directory` and `own`.

    Journals of an unfinished job are never removed: it may be resumed. Raises CannotRun if there are `most`
    of them beside `own`.
    """
    folders = sorted((path for path in directory.iterdir() if path.is_dir()), key=_changed_ns, reverse=True)
    others = [folder for folder in folders if folder.name != own]
    unfinished = [folder for folder in others if not (folder / OVER_FILE).exists()]
    refuse_more([folder.name for folder in unfinished], str(directory), "folders", most)
    for folder in folders[count:]:
        if folder in others and folder not in unfinished:
            shutil.rmtree(folder, ignore_errors=True)


def refuse_more(unfinished: Sequence[str], place: str, what: str, most: int) -> None:
    """Raises CannotRun where journals of `most` other jobs that are not over, the newest first, are kept at
    `place`; what: what holds the journals of one job there."""
    if len(unfinished) >= most:
        raise CannotRun(
            NO_STATE,
            f"{place} holds the journals of {len(unfinished)} jobs that are not over, and keeps no more "
            f"(the oldest is {unfinished[-1]}): resume them, or delete the {what} of those that will "
            "not be resumed",
        )


def forget_memory(job: "JobSpec", node: str) -> None:
    """Free the shared memory of a job on a host; a dead process cannot do so itself."""
    from gleaner.actors.cluster.job import (
        memory_dir,  # here: a command that only finds an agent needs no settings
    )

    shutil.rmtree(memory_dir(job, node), ignore_errors=True)


def _changed_ns(path: Path) -> int:
    return path.stat().st_mtime_ns


def state_base() -> Path:
    """The default folder of node agents' state; each agent has a folder of its name there."""
    given = os.environ.get("STATE_DIRECTORY")
    if given:
        return Path(given)  # systemd made it
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "gleaner"


@contextmanager
def space_needed(path: Path) -> Iterator[None]:
    """The content writes this file. Raises NoSpace for a full disk, which may have space again later."""
    try:
        yield
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise NoSpace(f"{path} cannot be written: {problem.strerror}; free space there") from problem


def publish_agent(state_dir: Path, agent: AgentFile) -> None:
    """Write the agent's address. Raises NoSpace, OSError."""
    path = state_dir / AGENT_FILE
    with space_needed(path):
        write_whole(path, msgspec.json.format(msgspec.json.encode(agent), indent=2))


def withdraw_agent(state_dir: Path) -> None:
    """Remove the files with the addresses of the agent and of its children."""
    (state_dir / AGENT_FILE).unlink(missing_ok=True)
    (state_dir / CONTROL_SOCKET).unlink(missing_ok=True)
    shutil.rmtree(state_dir / PROCESSES, ignore_errors=True)


def forget_agent(state_dir: Path) -> None:
    """Remove the file with the address of an agent that ended without order. A running agent is left
    alone."""
    if state_dir.is_dir() and not is_running(state_dir):
        withdraw_agent(state_dir)
        if (state_dir / LOCK_FILE).exists():
            os.truncate(state_dir / LOCK_FILE, 0)


def find_agent(state_dir: Path) -> AgentFile:
    """The agent that runs on `state_dir`. Raises CannotRun when none does."""
    pid = holder(state_dir)
    path = state_dir / AGENT_FILE
    try:
        agent = msgspec.json.decode(path.read_bytes(), type=AgentFile)
    except FileNotFoundError as problem:  # it is just leaving
        raise not_running(state_dir) from problem
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise CannotRun(NO_STATE, f"{path} cannot be read: {problem}") from problem
    if pid != agent.pid:  # of an agent that was killed; the one that runs is just starting
        raise not_running(state_dir)
    return agent


class ProcessFile(msgspec.Struct, frozen=True, kw_only=True):
    """`processes/<kind>.json`: where a child process is reached. One of another `pid` than the child that
    runs is left over from an earlier life."""

    endpoint: str
    public_key: str
    pid: int


def publish_process(state_dir: Path, kind: str, process: ProcessFile) -> None:
    """Write the address of a child process. Raises NoSpace, OSError."""
    path = state_dir / PROCESSES / f"{kind}.json"
    with space_needed(path):
        path.parent.mkdir(exist_ok=True)
        write_whole(path, msgspec.json.encode(process))


def find_process(state_dir: Path, kind: str, pid: int) -> Peer | None:
    """The address of the child process `kind` with this `pid`; None until the process has written it."""
    try:
        data = (state_dir / PROCESSES / f"{kind}.json").read_bytes()
        process = msgspec.json.decode(data, type=ProcessFile)
    except (OSError, msgspec.MsgspecError):
        return None
    return Peer(process.endpoint, process.public_key) if process.pid == pid else None
