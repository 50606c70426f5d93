"""SimHostServices: the simulated `gleaner.nodeagent.host_services.HostServices`, for processes on a virtual
host.

Owns sockets of the simulated network, journals on the host's disk, small files there, and the host's wall
clock. Everything above it is production code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gleaner.actors.cluster import job as places
from gleaner.actors.cluster.local_hosts import Join, OnRestart
from gleaner.actors.protocol.cluster import JobSpec
from gleaner.configs.schema import Traces
from gleaner.nodeagent.adapters import AdapterFactory
from gleaner.nodeagent.cluster_view import ClusterView
from gleaner.nodeagent.exit_codes import IN_USE, USAGE, CannotRun, NoSpace
from gleaner.nodeagent.files import (
    JOBS_KEPT,
    OVER_FILE,
    PROCESSES,
    AgentFile,
    ProcessFile,
    space_needed,
)
from gleaner.nodeagent.host import LOG_BYTES, ProcessLocation
from gleaner.nodeagent.host_services import ClosingTracer, Control, FleetHosts, ResourceHold, Sockets
from gleaner.nodeagent.job_file import job_file
from gleaner.nodeagent.state_lock import AGENT_FILE
from gleaner.sim.hosts import Host, SimProcess
from gleaner.sim.journal import SimJournal
from gleaner.sim.network import SimNet
from gleaner.supervisor import ActorSystem
from gleaner.supervisor.machine import Machine
from gleaner.supervisor.network import Network
from gleaner.transport.wire import Peer

MakeHosts = Callable[[SimProcess, ActorSystem, Join], FleetHosts]


@dataclass(frozen=True, slots=True)
class ClusterContext:
    """The surroundings of a cluster's processes, the same for all.

    Attributes:
        net: carries their bytes. machine: makes what starts the child processes and threads of one.
        adapters: makes what its actors use. fleet: a head's hosts to start.
        opened: called with each actor system once it receives.
        printed: called with each line that a process prints for its starter.
        wire_scale: bytes that one byte of published weights represents.
    """

    net: SimNet
    machine: Callable[[SimProcess], Machine]
    adapters: Callable[[SimProcess], AdapterFactory]
    fleet: MakeHosts
    opened: Callable[[SimProcess, ActorSystem], None]
    printed: Callable[[SimProcess, str], None]
    wire_scale: float = 1.0


class SimHostServices:
    """See `gleaner.nodeagent.host_services.HostServices`; every method is documented there."""

    def __init__(self, process: SimProcess, around: ClusterContext) -> None:
        self.machine: Machine = around.machine(process)
        self.adapters: AdapterFactory = around.adapters(process)
        self._process = process
        self._host: Host = process.host
        self._around = around

    def wall_ms(self) -> int:
        return self._host.loop.wall_ms(self._host.name)

    def figures(self) -> Mapping[str, float]:
        return {"cpu_s": 0.0, "rss_bytes": 0.0, "files": 0.0}

    def say(self, text: str) -> None:
        self._around.printed(self._process, text)

    def watchdog_s(self) -> float:
        return self._process.watchdog_s

    def notify(self, state: str) -> None:
        self._process.notified_s = self._process.loop.time()

    def opened(self, system: ActorSystem) -> None:
        self._around.opened(self._process, system)

    # -- what a process opens --

    def open_log(self, location: ProcessLocation, log_bytes: int = LOG_BYTES) -> None:
        pass

    def open_tracer(self, traces: Traces, location: ProcessLocation, log_bytes: int) -> ClosingTracer | None:
        return None

    def open_sockets(self, location: ProcessLocation, life: int) -> Sockets:
        return sockets(self._around, self._process, location)

    def open_journals(self, location: ProcessLocation, commit_s: float) -> SimJournal:
        return self._host.disk.journal(str(location.journal_file), self._process.loop, commit_s=commit_s)

    async def open_job_journals(self, location: ProcessLocation, commit_s: float) -> SimJournal:
        self._forget_jobs(location)
        return self.open_journals(location, commit_s)

    def _forget_jobs(self, location: ProcessLocation) -> None:
        """Simulated clusters run one job or a few: the oldest by name go, where too many are over."""
        folder, files = f"{location.journal_dir}/", self._host.disk.files
        jobs = {place.removeprefix(folder).partition("/")[0] for place in self._host.disk.places(folder)}
        over = [job for job in sorted(jobs) if files.exists(f"{folder}{job}/{OVER_FILE}")]
        for job in over[:-JOBS_KEPT]:
            for place in self._host.disk.places(f"{folder}{job}/"):
                self._host.disk.delete_journal(place)

    def job_is_over(self, location: ProcessLocation) -> None:
        self._host.disk.files.write(f"{location.journal_dir}/{location.job}/{OVER_FILE}", b"\0")

    # -- the state directory --

    def prepare(self, state_dir: Path) -> None:
        try:
            self._host.disk.files.write(f"{state_dir}/.probe", b"\0")
        except OSError as problem:
            raise NoSpace(f"state directory {state_dir}: {problem}") from problem
        self._host.disk.files.delete(f"{state_dir}/.probe")

    def hold(self, state_dir: Path) -> ResourceHold:
        holder = self._host.locks.get(str(state_dir))
        if holder is not None and holder is not self._process:
            raise CannotRun(IN_USE, f"a node agent ({holder!r}) runs on {state_dir} already")
        self._host.locks[str(state_dir)] = self._process
        return _Lock(self._host, str(state_dir), self._process)

    def publish_agent(self, state_dir: Path, agent: AgentFile) -> None:
        path = state_dir / AGENT_FILE
        with space_needed(path):
            self._host.disk.files.write(str(path), msgspec.json.encode(agent))

    def withdraw_agent(self, state_dir: Path) -> None:
        files = self._host.disk.files
        for path in [f"{state_dir}/{AGENT_FILE}", *files.under(f"{state_dir}/{PROCESSES}")]:
            files.delete(path)

    def forget_agent(self, state_dir: Path) -> None:
        if str(state_dir) not in self._host.locks:
            self.withdraw_agent(state_dir)

    def publish_process(self, state_dir: Path, kind: str, process: ProcessFile) -> None:
        path = state_dir / PROCESSES / f"{kind}.json"
        with space_needed(path):
            self._host.disk.files.write(str(path), msgspec.json.encode(process))

    def find_process(self, state_dir: Path, kind: str, pid: int) -> Peer | None:
        path = f"{state_dir}/{PROCESSES}/{kind}.json"
        if not self._host.disk.files.exists(path):
            return None
        process = msgspec.json.decode(self._host.disk.files.read(path), type=ProcessFile)
        return Peer(process.endpoint, process.public_key) if process.pid == pid else None

    # -- a job and the hosts of it --

    def write_job(self, state_dir: Path, job: JobSpec) -> Path:
        path = job_file(state_dir)
        self._host.disk.files.write(str(path), msgspec.json.encode(job))
        return path

    def read_job(self, path: Path) -> JobSpec:
        try:
            return msgspec.json.decode(self._host.disk.files.read(str(path)), type=JobSpec)
        except OSError as problem:
            raise CannotRun(USAGE, f"{problem}; the node agent writes it") from problem

    def forget_memory(self, job: JobSpec, node: str) -> None:
        if node == self._host.name:
            for path in self._host.memory.under(str(places.memory_dir(job, node))):
                self._host.memory.delete(path)

    def hold_memory(self, job: JobSpec, node: str) -> ResourceHold:
        return _Unshared()

    def free_left_memory(self) -> None:
        """A simulated host has had no other runs."""

    def hosts(self, system: ActorSystem, join: Join, on_restart: OnRestart) -> FleetHosts:
        return self._around.fleet(self._process, system, join)

    async def open_control(self, state_dir: Path, view: ClusterView) -> Control | None:
        return None  # no command runs on a simulated host


class _Unshared:
    """Memory that no other process could free."""

    def release(self) -> None:
        """Nothing is held."""


class _Lock:
    def __init__(self, host: Host, state_dir: str, process: SimProcess) -> None:
        self._host, self._state_dir, self._process = host, state_dir, process

    def release(self) -> None:
        if self._host.locks.get(self._state_dir) is self._process:
            del self._host.locks[self._state_dir]


def sockets(around: ClusterContext, process: SimProcess, location: ProcessLocation) -> Sockets:
    """The listening sockets of a process, at the address of its seat. Raises CannotListen."""
    net, loop, host = around.net, process.loop, process.host
    wire = net.wire(loop, host.name, f"{location.node}/{location.process}", location.listen)
    carrier = net.carrier(
        loop, host.name, files=lambda path: host.memory.read(str(path)), scale=around.wire_scale
    )
    network = Network(location.interface.removeprefix("tcp://"), None, carrier, bulk=location.bulk)
    return Sockets(wire, network, _nothing)


def _nothing() -> None:
    """There is nothing to close."""
