"""Small cluster of production's own processes on this machine.

It has a head, the manager, a publisher's host, and hosts that join and leave. Owns their processes and their
shared memory, from start to end. The caller plays the trainer: it writes images where a trainer writes them.
"""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.manager_process import ManagerProcess, manager_process
from bench.runtime.harness import ROOT
from bench.weights.pause.versions import Layout, first, following
from gleaner.actors.cluster.job import memory_dir, store_dir
from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.cluster import JobSpec
from gleaner.actors.protocol.instances import InstanceIs, InstancesAre, ListInstances
from gleaner.actors.protocol.rollout import PublishVersion, Weights
from gleaner.actors.protocol.weights import Publish, Published
from gleaner.actors.weights.image.store import ImageStore
from gleaner.configs.load import dump
from gleaner.configs.schema import Config
from gleaner.nodeagent.files import find_process
from gleaner.nodeagent.host import ProcessLocation
from gleaner.nodeagent.job_file import write_job
from gleaner.nodeagent.process_arguments import arguments
from gleaner.nodeagent.process_trees import threads
from gleaner.supervisor import Address, AskFailed, Done
from gleaner.supervisor.system_messages import SYSTEM, Inspect, SystemState

PUBLISHER = "publisher"
SOURCE = f"{PUBLISHER}/transfer"
START_S = 600.0
STOP_S = 10.0
PUBLISH_S = 120.0
LOOK_S = 0.02

Figures = dict[str, str | int | float]


@dataclass(slots=True)
class Host:
    """A host of the job."""

    name: str
    state_dir: Path
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def instance(self) -> str:
        """The name of its worker."""
        return f"{self.name}/engine"


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A version that was published. Seconds on the machine's monotonic clock: when the trainer had written it
    and called, when the publisher had described it, and when the manager had registered it. `wrote_s`: how
    long the image took."""

    version: int
    wrote_s: float
    called_s: float
    described_s: float
    known_s: float


class Cluster:
    """See the module."""

    def __init__(self, manager: ManagerProcess, scratch: Path, config: Config, layout: Layout) -> None:
        self.manager, self._scratch, self._config, self.layout = manager, scratch, config, layout
        self.job = JobSpec(
            run_id=f"pause{os.getpid()}", run_dir=str(scratch), model_dir="", config=dump(config)
        )
        self._job_file = scratch / "job.json"
        write_job(self._job_file, self.job)
        self._hosts: list[Host] = []
        self._images = ImageStore(store_dir(self.job, PUBLISHER), keep=2)
        self.version = 0

    def start(self, name: str, *kinds: str) -> Host:
        """A host with these processes, which need time to start."""
        host = Host(name, self._scratch / name)
        host.state_dir.mkdir(exist_ok=True)
        self._hosts.append(host)
        for kind in kinds:
            location = ProcessLocation(name, kind, host.state_dir, head=self.manager.head)
            env = {
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": str(threads(kind, self._config)),
            }
            with (host.state_dir / f"{kind}.out").open("ab") as out:
                host.processes[kind] = subprocess.Popen(
                    arguments(kind, location, self._job_file), stdout=out, stderr=out, env=env
                )
        return host

    def stop(self, host: Host) -> None:
        """End it, in order where possible, and free its shared memory."""
        self._hosts.remove(host)
        for process in host.processes.values():
            process.terminate()
        for process in host.processes.values():
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(memory_dir(self.job, host.name), ignore_errors=True)

    def close(self) -> None:
        """End all of it."""
        for host in list(self._hosts):
            self.stop(host)
        shutil.rmtree(memory_dir(self.job, PUBLISHER), ignore_errors=True)

    # -- versions --

    async def publish(self, share: float) -> PublishedVersion:
        """The next version, of which this share of elements differs from the last one."""
        version = self.version + 1
        began_s = time.monotonic()
        await asyncio.to_thread(self._write, version, share)
        called_s = time.monotonic()
        publish = Publish(version=version, tensors=self.layout.tensors, model_config=self.layout.model_config)
        published = await self._asked_source(publish)
        described_s = time.monotonic()
        weights = Weights(version=version, root=published.root, sources=(SOURCE,))
        await self.manager.system.ask(
            MANAGER, PublishVersion(weights=weights), deadline_s=PUBLISH_S, expect=Done
        )
        self.version = version
        return PublishedVersion(version, called_s - began_s, called_s, described_s, time.monotonic())

    def image(self) -> Path:
        """Newest version, as its publisher has it."""
        return self._images.path(self.version)

    def _write(self, version: int, share: float) -> None:
        with self._images.create(version, self.layout.nbytes, self.layout.tensors) as draft:
            if not self.version:
                first(self.layout, draft.view)
            else:
                with self._images.open(self.version) as before:
                    following(before.view, draft.view, share, seed=version)
            draft.seal()

    async def _asked_source(self, publish: Publish) -> Published:
        until_s = time.monotonic() + PUBLISH_S
        while True:  # its process may be starting
            try:
                return await self.manager.system.ask(SOURCE, publish, deadline_s=PUBLISH_S, expect=Published)
            except AskFailed:
                if time.monotonic() > until_s:
                    raise
                await asyncio.sleep(LOOK_S)

    # -- instances --

    async def instance(self, host: Host) -> InstanceIs | None:
        """The manager's entry of the host's worker; None: it has not registered."""
        found = await self.manager.system.ask(
            MANAGER, ListInstances(), deadline_s=PUBLISH_S, expect=InstancesAre
        )
        return next((one for one in found.instances if one.name == host.instance), None)

    async def until_registered(self, host: Host) -> float:
        """Wait for the registration; return the time of the observation, on the machine's monotonic clock."""
        await self._until(host, lambda one: one is not None)
        return time.monotonic()

    async def until_serving(self, host: Host) -> float:
        """Wait until it serves the newest version; return the time of the observation, on the machine's
        monotonic clock."""
        await self._until(host, lambda one: one is not None and one.version == self.version)
        return time.monotonic()

    async def _until(self, host: Host, holds: Callable[[InstanceIs | None], bool]) -> None:
        until_s = time.monotonic() + START_S
        while not holds(await self.instance(host)):
            for kind, process in host.processes.items():
                if process.poll() is not None:
                    output = (host.state_dir / f"{kind}.out").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"{host.name}/{kind} ended with {process.returncode}: {output}")
            if time.monotonic() > until_s:
                raise TimeoutError(f"{host.instance} does not serve after {START_S:.0f} s")
            await asyncio.sleep(LOOK_S)

    async def figures(self, host: Host, kind: str, actor: str) -> Figures:
        """Summary of an actor of a host, as `rlctl ps` shows it."""
        where = find_process(host.state_dir, kind, host.processes[kind].pid)
        if where is None:
            raise RuntimeError(f"{host.name}/{kind} has not reported its address")
        runtime = Address(name=SYSTEM, endpoint=where.endpoint, public_key=where.public_key)
        state = await self.manager.system.ask(runtime, Inspect(), deadline_s=PUBLISH_S, expect=SystemState)
        return next(one.figures for one in state.actors if one.name == actor)


@asynccontextmanager
async def cluster(scratch: Path, config: Config, layout: Layout) -> AsyncIterator[Cluster]:
    """A head, a manager and a publisher with its first version."""
    async with manager_process(scratch, config) as manager:
        running = Cluster(manager, scratch, config, layout)
        try:
            running.start(PUBLISHER, "transfer")
            await running.publish(1.0)
            yield running
        finally:
            await asyncio.to_thread(running.close)
