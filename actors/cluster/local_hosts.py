"""`LocalHosts`: hosts as processes of this machine, started by the head.

Each is a node agent with a state directory. The adapter behind `provider.Hosts`; it outlives the Provider
actor, so a restarted one finds the running hosts. Owns their processes and their cleanup. A host dies with
the head, and its children die with it, so no kill leaves an orphan.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gleaner.actors.cluster.fleet import RESERVED
from gleaner.actors.cluster.job import config_of, health_of, host_dir
from gleaner.actors.protocol.cluster import JobSpec, StopNode
from gleaner.supervisor import (
    ActorSystem,
    AskFailed,
    Done,
    Intensity,
    ProcessExit,
    ProcessSpec,
    Restarted,
    Supervisor,
    SupervisorFailed,
    child,
    one_for_one,
)
from gleaner.supervisor.machine import Child
from gleaner.supervisor.watch.turn_clock import timeout_in_turns
from gleaner.transport.keys import Bulk
from gleaner.transport.wire import Peer

HOPELESS = frozenset(
    {2, 6}
)  # exit codes of a node agent: usage, a damaged journal (gleaner.nodeagent.exit_codes)
OnRestart = Callable[[Restarted], None]

ORDER_S = 2.0  # for a host to accept an order; a hung host gets as long after SIGTERM
STOP_S = 12.0  # for a host to stop its children in order; then it is killed


@dataclass(frozen=True, slots=True)
class Join:
    """The data with which a new host joins the head: its address, the interface to listen on, the key
    directory, and the networks on which weights may travel unencrypted."""

    head: Peer
    interface: str
    keys: Path | None = None
    bulk: Bulk = "loopback"


class LocalHosts:
    """Node agents as child processes: one reserved for good, preemptible ones by name.

    Args:
        system: of the head's node agent.
        join: how they find the head.
        forget_memory: frees the shared memory of a job on a host that is gone, which cannot do so itself.
        on_restart: called for each node agent that ended by itself and was started again, as `<host>/agent`.
    """

    def __init__(
        self,
        system: ActorSystem,
        join: Join,
        forget_memory: Callable[[JobSpec, str], None],
        on_restart: OnRestart,
    ) -> None:
        self._system = system
        self._join = join
        self._forget_memory = forget_memory
        self._on_restart = on_restart
        self._failed: dict[str, Restarted] = {}  # hosts that ended by themselves: reported if they return
        self._restarts: Counter[str] = Counter()
        self._taken: set[str] = set()  # hosts that `kill` ended, until they are gone
        self._preemptible: dict[str, Child] = {}
        self._ended: list[tuple[str, ProcessExit]] = []  # bounded: the consumer starts each of them again
        self._reserved: Supervisor | None = None
        self._on_give_up: Callable[[str], None] = lambda _reason: None
        self._stopping: asyncio.Task[None] | None = None
        self._used: dict[str, JobSpec] = {}

    def running(self) -> list[str]:
        """Preemptible hosts that have not ended."""
        return list(self._preemptible)

    def take_ended(self) -> list[tuple[str, ProcessExit]]:
        """Preemptible hosts that have ended since the last call, and how."""
        ended, self._ended = self._ended, []
        return ended

    async def keep_reserved(self, job: JobSpec, on_give_up: Callable[[str], None]) -> None:
        """Run the reserved host, restarted with back-off; `on_give_up` when it fails too often."""
        self._on_give_up = on_give_up
        if self._reserved is not None:
            return
        fleet = config_of(job).fleet
        spec = one_for_one(
            child(RESERVED, self._spec(RESERVED, "reserved", job), shutdown_s=STOP_S),
            name="hosts",
            intensity=Intensity(restarts=fleet.restarts, within_s=fleet.restarts_within_s),
        )
        self._reserved = Supervisor(
            self._system, spec, on_failure=self._gave_up, on_restart=self._reserved_restarts
        )
        try:
            await self._reserved.start()
        except SupervisorFailed as problem:
            self._reserved = None
            self._gave_up(problem)

    def _gave_up(self, problem: Exception) -> None:
        self._on_give_up(f"the reserved host: {problem}")

    def _reserved_restarts(self, restarted: Restarted) -> None:
        self._on_restart(replace(restarted, name=f"{restarted.name}/agent"))

    def start(self, name: str, job: JobSpec) -> None:
        """Bring a preemptible host up. Raises OSError."""

        def ended(exit_: ProcessExit) -> None:
            self._preemptible.pop(name, None)
            self._forget_memory(job, name)
            self._ended.append((name, exit_))
            if exit_.abnormal and name not in self._taken:
                self._restarts[name] += 1
                self._failed[name] = Restarted(f"{name}/agent", exit_.cause, self._restarts[name])
            self._taken.discard(name)

        self._preemptible[name] = self._system.start_process(self._spec(name, "preemptible", job), ended)
        if (restarted := self._failed.pop(name, None)) is not None:
            self._on_restart(restarted)

    def kill(self, name: str) -> None:
        """Kill a host without notice."""
        process = self._preemptible.get(name)
        if process is not None:
            self._taken.add(name)
            process.send_signal(9)

    async def stop(self) -> None:
        """Stop every host in order, all at once, and free their shared memory. Once begun it goes on, even if
        its caller is cancelled."""
        if self._stopping is None or self._stopping.done():
            self._stopping = asyncio.get_running_loop().create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        reserved, self._reserved = self._reserved, None
        stops = [self._let_go(name, process) for name, process in self._preemptible.items()]
        await asyncio.gather(*stops, *([reserved.stop()] if reserved is not None else []))
        self.forget_memory()

    async def _let_go(self, name: str, process: Child) -> None:
        """Stop a host by an order: a signal would be a notice, after which it drains its requests."""
        try:
            await self._system.ask(f"{name}/agent", StopNode(), deadline_s=ORDER_S, expect=Done)
            async with timeout_in_turns(STOP_S):
                await process.wait()
        except (AskFailed, TimeoutError):
            await process.stop(ORDER_S)

    def forget_memory(self) -> None:
        """Free the shared memory of every host that was started here; they are gone."""
        for name, job in self._used.items():
            self._forget_memory(job, name)

    def state_dirs(self) -> list[Path]:
        """State directories of every host that was started here."""
        return [host_dir(job, name) for name, job in self._used.items()]

    def _spec(self, name: str, role: str, job: JobSpec) -> ProcessSpec:
        self._used[name] = job
        state_dir = host_dir(job, name)
        argv = [sys.executable, "-m", "gleaner.nodeagent", "start", "--join", self._join.head.endpoint]
        argv += ["--role", role, "--name", name, "--state-dir", str(state_dir)]
        argv += ["--listen", f"{self._join.interface}:0", "--bulk", self._join.bulk]
        argv += ["--notices", "none"]  # only the provider's notices count, on any cloud
        if self._join.keys is not None:
            argv += ["--keys", str(self._join.keys), "--head-key", self._join.head.public_key]
        return ProcessSpec(
            argv,
            state_dir / "logs" / "agent.out",
            hopeless=HOPELESS,
            health=health_of(config_of(job)),
        )
