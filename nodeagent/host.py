"""One OS process of a node: state directory, log, keys, journal, loop, signals.

Owns the edge: what touches the machine is here and in `files`, behind `host_services`. Knows no actor by
name. Whatever can be wrong with the machine ends the process with one clear line and an exit code.
"""

import asyncio
import errno
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from logging.handlers import RotatingFileHandler
from pathlib import Path

import uvloop

from gleaner.configs.schema import Config
from gleaner.nodeagent import garbage
from gleaner.nodeagent.exit_codes import FAILED, NO_STATE, CannotRun, NoSpace, as_cannot_run
from gleaner.nodeagent.shutdown import Shutdown
from gleaner.supervisor import Limits, SqliteJournal
from gleaner.supervisor.journal.group_commit import GroupCommit
from gleaner.supervisor.journal.store_choice import need_client
from gleaner.transport.keys import Bulk, NodeKeys
from gleaner.transport.wire import Peer

LOOPBACK = "tcp://127.0.0.1:0"
LOG_BYTES = 16 << 20
"""Size of one log file before it is rotated, if no settings give another; one older file is kept."""
COMMIT_S = 0.005
CLUSTER = "cluster"  # in a database, the space of what belongs to no job
LEASE = "head"  # its name in the database
LEASE_S = 10.0
"""Default of the head's lease: above a restart of the database's server, and about as long as a cluster is
without a head."""
MIN_LEASE_S = 2.0  # a busy machine may stall for a second

log = logging.getLogger("nodeagent")


@dataclass(frozen=True, slots=True)
class ProcessLocation:
    """Where a process sits: its names, its folder, its address, its keys, and the head that it belongs to.

    `listen` is "tcp://host:port" (port 0: any). `head` is None in the head's own node agent. `keys` is a key
    directory, None for loopback only. `job` is the id of the job whose process it is, "" for the node agent:
    a host that runs one job after the other keeps their journals apart. `bulk`: where weights may travel
    unencrypted. `others`: other addresses of the head, used after a failover. `database`: of a head's
    journals, "" where they are files; `term`: the lease term under which it may write there. `datacenter`:
    where the host is; links between two of them are slow.
    """

    node: str
    process: str
    state_dir: Path
    listen: str = LOOPBACK
    keys: Path | None = None
    head: Peer | None = None
    job: str = ""
    bulk: Bulk = "loopback"
    others: tuple[Peer, ...] = ()
    database: str = ""
    term: int = 0
    datacenter: str = ""

    @property
    def heads(self) -> tuple[Peer, ...]:
        """The possible addresses of the head, the likeliest first."""
        return self.others if self.head is None else (self.head, *self.others)

    @property
    def log_file(self) -> Path:
        """The process's log."""
        return self.state_dir / "logs" / f"{self.process}.log"

    @property
    def journal_file(self) -> Path:
        """The journal of the process's actors."""
        return self.journal_dir / self.job / f"{self.process}.sqlite"

    @property
    def journal_dir(self) -> Path:
        """The node agent's journal, and a folder for each job's."""
        return self.state_dir / "journal"

    @property
    def interface(self) -> str:
        """`listen` without its port: what the other sockets of the node bind to."""
        return self.listen.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits and times of a process; the defaults hold until a job is known."""

    limits: Limits = field(default_factory=Limits)
    commit_s: float = COMMIT_S
    log_bytes: int = LOG_BYTES
    seed: int = 0
    force_out: bool = False
    """Each commit of its journals is on the disk before it is acknowledged."""

    @classmethod
    def of(cls, config: Config) -> "Bounds":
        """The bounds from the settings of a job."""
        return cls(
            limits=Limits(
                mailbox=config.limits.mailbox,
                beat_s=config.liveness.beat_s,
                silent_s=config.liveness.dead_s,
                lease_s=config.liveness.lease_s,
            ),
            commit_s=config.rollout.journal_commit_ms / 1000,
            log_bytes=config.limits.log_bytes,
            seed=config.job.seed,
            force_out=config.job.journal_fsync == "commit",
        )


def prepare_state_dir(state_dir: Path) -> None:
    """Make the folder and prove that it can be written. Raises CannotRun."""
    probe = state_dir / f".probe-{os.getpid()}"
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(bytes(4096))
    except FileExistsError as problem:
        raise CannotRun(
            NO_STATE, f"state directory {state_dir}: it is a file; give another one with --state-dir"
        ) from problem
    except OSError as problem:
        text = f"state directory {state_dir}: {problem.strerror}"
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(f"{text}; free space there, or give another one with --state-dir") from problem
        raise CannotRun(NO_STATE, f"{text}; give another one with --state-dir") from problem
    finally:
        try:
            probe.unlink(missing_ok=True)
        except OSError as problem:  # never made: the folder itself is not one
            log.debug("no probe to remove: %s", problem)


def open_log(location: ProcessLocation, log_bytes: int = LOG_BYTES) -> None:
    """Send every log record of this process to its rotating file. Raises CannotRun."""
    try:
        location.log_file.parent.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(location.log_file, maxBytes=log_bytes, backupCount=1)
    except OSError as problem:
        raise CannotRun(NO_STATE, f"{location.log_file}: {problem.strerror}; make it writable") from problem
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def load_keys(directory: Path | None) -> NodeKeys | None:
    """The keys of this node, None without a directory. Raises BadKeys."""
    return NodeKeys.load(directory) if directory is not None else None


def open_journals(location: ProcessLocation, commit_s: float) -> GroupCommit:
    """The journals of a process: a file of its own, or a space of its own in the head's database.

    Raises JournalError and its kinds.
    """
    if not location.database:
        return SqliteJournal(location.journal_file, commit_s=commit_s)
    need_client(location.database)
    from gleaner.supervisor.journal.postgres import PostgresJournal
    from gleaner.supervisor.journal.postgres_layout import LeaseTerm

    space = f"{location.job or CLUSTER}/{location.process}"
    return PostgresJournal(
        location.database, space=space, commit_s=commit_s, lease=LeaseTerm(LEASE, location.term)
    )


def process_figures() -> dict[str, float]:
    """Figures of this process from the operating system: processor seconds, resident bytes, open files."""
    import psutil  # here: only processes that serve need it

    me = psutil.Process()
    with me.oneshot():
        times = me.cpu_times()
        return {
            "cpu_s": times.user + times.system,
            "rss_bytes": float(me.memory_info().rss),
            "files": float(me.num_fds()),
        }


def run_process(main: Callable[[Shutdown], Coroutine[object, object, int]], name: str) -> int:
    """Run `main` on the process's event loop; its event is set by SIGTERM, SIGINT or SIGHUP: stop in order.
    A second signal ends the process at once (see `shutdown`).

    Returns the exit code. A failure that has one of its own (see `exit_codes`) becomes one line on standard
    error and in the log; anything else is logged with its traceback.
    """

    async def edge() -> int:
        stop = Shutdown(name)
        stop.listen()
        return await main(stop)

    logging.getLogger().addHandler(logging.NullHandler())  # nothing goes to stderr unasked
    garbage.look_rarely()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(edge())
    except (Exception, asyncio.CancelledError, KeyboardInterrupt) as problem:  # noqa: BLE001 (the outermost edge)
        code, message = end_of(problem, name)
        print(message, file=sys.stderr)
        return code


def end_of(problem: BaseException, name: str) -> tuple[int, str]:
    """Exit code and last line of the process `name` that raised `problem`; the line is logged."""
    known = as_cannot_run(problem)
    if known is None:
        log.critical("a defect ended %s", name, exc_info=problem)
    reason = f"{type(problem).__name__}: {problem}" if known is None else str(known)
    log.critical("%s ends: %s", name, reason)
    return FAILED if known is None else known.code, f"{name}: error: {reason}"
