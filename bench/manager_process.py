"""The `rollout` process of production under a supervisor, with its head.

Token benches send to it. Owns the start, the lookup and the signals of that one process. Its instances are
the caller's.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.cluster import JobSpec
from gleaner.actors.protocol.rollout import RolloutFigures, RolloutStatus
from gleaner.configs.load import dump
from gleaner.configs.schema import Config
from gleaner.nodeagent.host import Bounds, ProcessLocation
from gleaner.nodeagent.job_file import write_job
from gleaner.nodeagent.process_arguments import arguments
from gleaner.nodeagent.system import open_system
from gleaner.supervisor import ActorSystem, Intensity, ProcessSpec, Registry, Supervisor, child, one_for_one
from gleaner.supervisor.names.client import REGISTRY
from gleaner.transport.wire import Peer

START_S = 90.0  # until the manager answers; a second on a quiet machine
NODE = "bench"
MANY = Intensity(restarts=1000, within_s=2.0)
"""Every death counts as a first one: the bench measures a restart, not the pauses between many."""


@dataclass(slots=True)
class ManagerProcess:
    """A running one: the head's actor system, and the supervisor of the process."""

    system: ActorSystem
    tree: Supervisor
    state_dir: Path

    @property
    def head(self) -> Peer:
        """Address that instances join."""
        return self.system.wire.local

    @property
    def pid(self) -> int:
        """Process id of the present life; 0 between two lives."""
        process = self.tree.process("rollout")
        return process.pid if process is not None else 0

    def cpu_s(self) -> float:
        """Processor seconds of this life, all threads."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def run_on(self, cores: set[int]) -> None:
        """Pin every present thread, and those that they start, to these cores."""
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)

    async def figures(self, deadline_s: float = START_S) -> RolloutFigures:
        """Summary of the manager."""
        return await self.system.ask(MANAGER, RolloutStatus(), deadline_s=deadline_s, expect=RolloutFigures)


@asynccontextmanager
async def manager_process(scratch: Path, config: Config) -> AsyncIterator[ManagerProcess]:
    """A head with a registry, and under its supervisor the `rollout` process with these settings, once it
    answers. Its journal is a file under `scratch`. Raises the failure of its supervisor."""
    state = scratch / "manager"
    job = JobSpec(run_id="bench", run_dir=str(scratch), model_dir="", config=dump(config))
    state.mkdir(parents=True, exist_ok=True)
    write_job(state / "job.json", job)
    location = ProcessLocation(NODE, "head", scratch / "head")
    async with open_system(location, Bounds.of(config)) as system:
        system.spawn(REGISTRY, lambda: Registry(lambda: system.limits.lease_s))
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = ProcessLocation(NODE, "rollout", state, head=system.wire.local)
        spec = ProcessSpec(arguments("rollout", place, state / "job.json"), state / "rollout.out")
        tree = Supervisor(
            system,
            one_for_one(child("rollout", spec, shutdown_s=1.0), name="bench", intensity=MANY),
            on_failure=failed.set_exception,
        )
        await tree.start()
        try:
            running = ManagerProcess(system, tree, state)
            await running.figures()
            yield running
            if failed.done():
                failed.result()
        finally:
            await tree.stop()
