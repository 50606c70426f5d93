"""HostServices: the port for all that a node's processes do to their machine.

Owns the port and its real implementation. Above it `node`, `children`, `process` and `system` are the same
wherever they run; below it are the state directory, the log, the sockets, the journals and the clock.
`adapters` makes what actors use; child processes and threads are in `gleaner.supervisor.machine`.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gleaner.actors.cluster.local_hosts import Join, LocalHosts, OnRestart
from gleaner.actors.cluster.provider import Hosts
from gleaner.actors.protocol.cluster import JobSpec
from gleaner.actors.training.job_journal import JobOver
from gleaner.configs.schema import Traces
from gleaner.nodeagent import files, host, job_file, job_memory, state_lock, wall_clock
from gleaner.nodeagent.adapters import AdapterFactory, RealAdapterFactory
from gleaner.nodeagent.cluster_view import ClusterView
from gleaner.nodeagent.control_socket import open_control
from gleaner.nodeagent.files import JOBS_KEPT, AgentFile, ProcessFile
from gleaner.nodeagent.host import CLUSTER, LOG_BYTES, ProcessLocation, load_keys
from gleaner.nodeagent.service_manager import ServiceManager
from gleaner.nodeagent.traces import open_tracer
from gleaner.supervisor import ActorSystem
from gleaner.supervisor.fork_server.client import ForkServer
from gleaner.supervisor.journal.group_commit import GroupCommit
from gleaner.supervisor.journal.port import Journals
from gleaner.supervisor.machine import Machine, RealMachine
from gleaner.supervisor.network import Network
from gleaner.supervisor.tracing import Tracer
from gleaner.transport.key_follower import KeyFollower
from gleaner.transport.mesh import ZmqWire
from gleaner.transport.wire import Peer, Wire


@dataclass(frozen=True, slots=True)
class Sockets:
    """How a process reaches others. `close` releases the helpers opened beside `wire` and the sockets that
    `network` opened; it is called first."""

    wire: Wire
    network: Network
    close: Callable[[], None]


class ResourceHold(Protocol):
    """A state directory that is this process's own."""

    def release(self) -> None:
        """Let another have it; a second call does nothing."""


class ClosingTracer(Tracer, Protocol):
    """A tracer that was opened."""

    async def close(self) -> None:
        """Send the waiting spans, for a bounded time."""


class FleetHosts(Hosts, Protocol):
    """The hosts that a head starts itself."""

    def forget_memory(self) -> None:
        """Free the shared memory of all of them; their processes are gone."""

    def state_dirs(self) -> list[Path]:
        """State directories of every host that was started."""


class Control(Protocol):
    """The server that answers commands of this host."""

    def close(self) -> None:
        """Answer none any longer."""


class HostServices(Protocol):
    """See the module; one a process."""

    @property
    def machine(self) -> Machine:
        """The machine that starts its child processes and threads."""

    @property
    def adapters(self) -> AdapterFactory:
        """The fittings of its actors."""

    def wall_ms(self) -> int:
        """The wall clock of the host in ms since 1970; incarnations are derived from it."""

    def figures(self) -> Mapping[str, float]:
        """Figures of this process from the operating system: `cpu_s`, `rss_bytes`, `files`."""

    def say(self, text: str) -> None:
        """Print a line for the parent or the user that started this process, on standard error."""

    def watchdog_s(self) -> float:
        """Within which time the service manager expects the next `notify`, repeatedly; 0: it expects none."""

    def notify(self, state: str) -> None:
        """Report the state of this process to its service manager, in terms of sd_notify(3)."""

    def opened(self, system: ActorSystem) -> None:
        """Called with the process's actor system once it receives."""

    # -- what a process opens --

    def open_log(self, location: ProcessLocation, log_bytes: int = LOG_BYTES) -> None:
        """Send every log record of this process to its file. Raises CannotRun."""

    def open_tracer(self, traces: Traces, location: ProcessLocation, log_bytes: int) -> ClosingTracer | None:
        """The tracer that the settings ask for, if any. Raises CannotRun."""

    def open_sockets(self, location: ProcessLocation, life: int) -> Sockets:
        """Listen at `location.listen`; `life` distinguishes this life of the process from others. On the
        running loop. Raises BadKeys, RefusedToListen, CannotListen."""

    def open_journals(self, location: ProcessLocation, commit_s: float) -> Journals:
        """The journals of the process that sits there. Raises JournalError."""

    async def open_job_journals(self, location: ProcessLocation, commit_s: float) -> Journals:
        """Journals of a job's actors in the node agent's process; those of finished old jobs are deleted.
        Raises OSError, JournalError, CannotRun."""

    def job_is_over(self, location: ProcessLocation) -> None:
        """Note that the job of these journals is over, so that they may be forgotten. Raises OSError."""

    # -- the state directory --

    def prepare(self, state_dir: Path) -> None:
        """Make it and prove that it can be written. Raises CannotRun."""

    def hold(self, state_dir: Path) -> ResourceHold:
        """Keep other node agents off until `release` or the end of this process. Raises CannotRun."""

    def publish_agent(self, state_dir: Path, agent: AgentFile) -> None:
        """Write the agent's address. Raises NoSpace, OSError."""

    def withdraw_agent(self, state_dir: Path) -> None:
        """Remove the files with the addresses of the agent and of its children."""

    def forget_agent(self, state_dir: Path) -> None:
        """Remove the file with the address of an agent that ended without order. A running agent is left
        alone."""

    def publish_process(self, state_dir: Path, kind: str, process: ProcessFile) -> None:
        """Write the address of a child process. Raises NoSpace, OSError."""

    def find_process(self, state_dir: Path, kind: str, pid: int) -> Peer | None:
        """The address of the child process `kind` with this `pid`; None until the process has written it."""

    # -- a job and the hosts of it --

    def write_job(self, state_dir: Path, job: JobSpec) -> Path:
        """Write the job file for child processes; returns its path. Raises OSError."""

    def read_job(self, path: Path) -> JobSpec:
        """The job that a node agent wrote. Raises CannotRun."""

    def forget_memory(self, job: JobSpec, node: str) -> None:
        """Free the shared memory of a job on a host."""

    def hold_memory(self, job: JobSpec, node: str) -> ResourceHold:
        """Keep others from freeing it, until `release` or the end of this process. Raises OSError."""

    def free_left_memory(self) -> None:
        """Free the weights that dead runs left on this machine; state from which a run may be resumed
        stays."""

    def hosts(self, system: ActorSystem, join: Join, on_restart: OnRestart) -> FleetHosts:
        """The hosts that a head may start itself."""

    async def open_control(self, state_dir: Path, view: ClusterView) -> Control | None:
        """Answer commands of this host, for a head; None if it cannot."""


class RealHostServices:
    """The machine that this process runs on. forks: forks its child processes; None: they are executed."""

    def __init__(self, forks: ForkServer | None = None) -> None:
        self.machine: Machine = RealMachine(forks)
        self.adapters: AdapterFactory = RealAdapterFactory()
        self._service = ServiceManager.of(os.environ)

    def wall_ms(self) -> int:
        """See `HostServices`."""
        return wall_clock.wall_ms()

    def figures(self) -> Mapping[str, float]:
        """See `HostServices`."""
        return host.process_figures()

    def say(self, text: str) -> None:
        """See `HostServices`."""
        print(text, file=sys.stderr, flush=True)

    def watchdog_s(self) -> float:
        """See `HostServices`: systemd's."""
        return self._service.watchdog_s

    def notify(self, state: str) -> None:
        """See `HostServices`."""
        self._service.notify(state)

    def opened(self, system: ActorSystem) -> None:
        """See `HostServices`: not used here."""

    def open_log(self, location: ProcessLocation, log_bytes: int = LOG_BYTES) -> None:
        """See `HostServices`."""
        host.open_log(location, log_bytes)

    def open_tracer(self, traces: Traces, location: ProcessLocation, log_bytes: int) -> ClosingTracer | None:
        """See `HostServices`."""
        return open_tracer(traces, location.node, location.process, location.log_file, log_bytes)

    def open_sockets(self, location: ProcessLocation, life: int) -> Sockets:
        """See `HostServices`."""
        keys = load_keys(location.keys)
        wire = ZmqWire(f"{location.node}/{location.process}", life, location.listen, keys)
        follower = (
            KeyFollower(keys, location.keys) if keys is not None and location.keys is not None else None
        )
        network = Network(
            location.interface.removeprefix("tcp://").strip("[]"),
            keys,
            bulk=location.bulk,
            key_state=follower.state if follower is not None else None,
        )
        return Sockets(wire, network, follower.close if follower is not None else _nothing)

    def open_journals(self, location: ProcessLocation, commit_s: float) -> Journals:
        """See `HostServices`."""
        return host.open_journals(location, commit_s)

    async def open_job_journals(self, location: ProcessLocation, commit_s: float) -> Journals:
        """See `HostServices`."""
        return await asyncio.to_thread(_open_job_journals, location, commit_s)

    def job_is_over(self, location: ProcessLocation) -> None:
        """See `HostServices`. (A head's journals in a database record it themselves.)"""
        if location.journal_file.parent.is_dir():
            files.mark_over(location.journal_file.parent)

    def prepare(self, state_dir: Path) -> None:
        """See `HostServices`."""
        host.prepare_state_dir(state_dir)

    def hold(self, state_dir: Path) -> ResourceHold:
        """See `HostServices`."""
        return state_lock.StateLock(state_dir)

    def publish_agent(self, state_dir: Path, agent: AgentFile) -> None:
        """See `HostServices`."""
        files.publish_agent(state_dir, agent)

    def withdraw_agent(self, state_dir: Path) -> None:
        """See `HostServices`."""
        files.withdraw_agent(state_dir)

    def forget_agent(self, state_dir: Path) -> None:
        """See `HostServices`."""
        files.forget_agent(state_dir)

    def publish_process(self, state_dir: Path, kind: str, process: ProcessFile) -> None:
        """See `HostServices`."""
        files.publish_process(state_dir, kind, process)

    def find_process(self, state_dir: Path, kind: str, pid: int) -> Peer | None:
        """See `HostServices`."""
        return files.find_process(state_dir, kind, pid)

    def write_job(self, state_dir: Path, job: JobSpec) -> Path:
        """See `HostServices`."""
        path = job_file.job_file(state_dir)
        job_file.write_job(path, job)
        return path

    def read_job(self, path: Path) -> JobSpec:
        """See `HostServices`."""
        return job_file.read_job(path)

    def forget_memory(self, job: JobSpec, node: str) -> None:
        """See `HostServices`."""
        files.forget_memory(job, node)

    def hold_memory(self, job: JobSpec, node: str) -> ResourceHold:
        """See `HostServices`."""
        return job_memory.hold(job, node)

    def free_left_memory(self) -> None:
        """See `HostServices`."""
        job_memory.free_images_of_dead_runs()

    def hosts(self, system: ActorSystem, join: Join, on_restart: OnRestart) -> FleetHosts:
        """See `HostServices`."""
        return LocalHosts(system, join, self.forget_memory, on_restart)

    async def open_control(self, state_dir: Path, view: ClusterView) -> Control | None:
        """See `HostServices`."""
        return await open_control(state_dir, view)


def _open_job_journals(location: ProcessLocation, commit_s: float) -> GroupCommit:
    if location.database:
        from gleaner.supervisor.journal.postgres import forget_jobs
        from gleaner.supervisor.journal.postgres_layout import without_password

        stay = (CLUSTER, location.job)
        unfinished = forget_jobs(location.database, stay, JOBS_KEPT, over=JobOver.__name__)
        files.refuse_more(unfinished, without_password(location.database), "rows", files.MOST_UNFINISHED)
    else:
        location.journal_file.parent.mkdir(parents=True, exist_ok=True)
        files.forget_old_jobs(location.journal_dir, location.job)
    return host.open_journals(location, commit_s)


def _nothing() -> None:
    """There is nothing to close."""
