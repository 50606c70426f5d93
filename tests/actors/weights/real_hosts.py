"""Hosts with real `transfer` processes, sockets and shared memory for tests.

Processes are killed by pid. The head (registry, scheduler, manager) and the trainer are in the test's own
process. The state of a version on a host is read from outside, in the host's memory.
"""

import asyncio
import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import torch

from gleaner.actors.cluster.job import memory_dir, store_dir
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.cluster import HostsUp, JobIs, JobSpec, JobStatus, WhoIsUp
from gleaner.actors.protocol.weights import Fetch, Fetched, Publish, Published
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.actors.weights.image.draft import FILE
from gleaner.actors.weights.image.reader_locks import mapped
from gleaner.actors.weights.image.safetensors_file import header
from gleaner.actors.weights.image.store import ImageStore
from gleaner.configs.load import dump, from_tree
from gleaner.nodeagent.host import ProcessLocation
from gleaner.nodeagent.job_file import write_job
from gleaner.nodeagent.process_arguments import arguments
from gleaner.nodeagent.system import open_system
from gleaner.rlctl.client import Cluster, connect
from gleaner.rlctl.weight_publisher import Publication
from gleaner.supervisor import Actor, Registry, handles
from gleaner.supervisor.address import Address
from gleaner.supervisor.inspection.messages import ActorDescribed, Describe
from gleaner.supervisor.names.client import REGISTRY

CHUNK = 64 * 1024
CHUNKS = 64
SIZE = CHUNKS * CHUNK
TENSORS = (TensorSpec("w", "bfloat16", (SIZE // 2,), 0, SIZE),)
HEADER = len(header(TENSORS, SIZE))
WITHIN_S = 120.0  # every wait takes only seconds on a quiet machine
CHAINS = {"link_bytes_s": 1e5}  # so that the image is worth a chain, where a host serves one other
SLOW = {"pull_limit_bytes_s": 4e6}  # a second per image, so that it can be hit in the middle
TRIES = 20
OWN_TREE: dict[str, object] = {"training": {"backend": "own"}}
OWN = from_tree({**OWN_TREE, "weights": {"require_finite": False}}, "test")  # random bytes


class JobOf(Actor):
    """Answers a foreign trainer's questions to the scheduler: the job, and its hosts."""

    def __init__(self, run_id: str, roles: dict[str, str]) -> None:
        self._run_id, self._roles = run_id, roles

    @handles(JobStatus)
    async def status(self, message: JobStatus) -> JobIs:
        return JobIs(state="running", run_id=self._run_id)

    @handles(WhoIsUp)
    async def members(self, message: WhoIsUp) -> HostsUp:
        return HostsUp(boot=1, roles=self._roles)


class Forks:
    """Starts processes by forking one that has imported everything."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.actors.weights.forked_hosts"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def start(self, words: list[str]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def forks() -> Iterator[Forks]:
    started = Forks()
    try:
        yield started
    finally:
        started.close()


class RealHosts:
    """The publisher's host "a", and the hosts of receivers, named by letters."""

    def __init__(self, folder: Path, forked: Forks, cluster: Cluster, head: ProcessLocation) -> None:
        self.cluster, self._folder, self._forks, self._head = cluster, folder, forked, head
        self.run_id = folder.name
        self.pids: dict[str, int] = {}
        self.names: set[str] = set()
        self.published: dict[int, bytes] = {}
        self._seen: set[Path] = set()

    # -- processes --

    def job(self, weights: dict[str, object]) -> JobSpec:
        tree = {**OWN_TREE, "weights": {"chunk_bytes": CHUNK, "require_finite": False, **weights}}
        return JobSpec(
            run_id=self.run_id,
            run_dir=str(self._folder),
            model_dir=str(self._folder),
            config=dump(from_tree(tree, "test")),
        )

    def start(self, name: str, **weights: object) -> None:
        """Start this host's process with these settings of `weights`, also again after its end."""
        state = self._folder / name
        state.mkdir(exist_ok=True)
        self.names.add(name)
        write_job(state / "job.json", self.job(weights))
        location = ProcessLocation(name, "transfer", state, head=self._head.head)
        self.pids[name] = self._forks.start(arguments("transfer", location, state / "job.json")[3:])

    def kill(self, name: str) -> None:
        """SIGKILL; returns when the process is gone and the kernel has released its resources."""
        pid = self.pids.pop(name)
        with contextlib.suppress(ProcessLookupError):
            ended = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
            select.select([ended], [], [], WITHIN_S)
            os.close(ended)

    async def up(self, *names: str) -> None:
        """Wait until the hosts are known."""
        for name in names:
            async with asyncio.timeout(WITHIN_S):
                while (await self._where(name)) is None:
                    await asyncio.sleep(0.01)

    async def figures(self, name: str) -> dict[str, str | int | float]:
        """The counts of its agent in this life."""
        async with asyncio.timeout(WITHIN_S):
            while (address := await self._where(name)) is None:
                await asyncio.sleep(0.01)
        described = await self.cluster.ask_process(
            address.peer, Describe(name=address.name), expect=ActorDescribed, deadline_s=WITHIN_S
        )
        return dict(described.figures)

    def log(self, name: str) -> str:
        """The log of its process over all its lives."""
        return (self._folder / name / "logs" / "transfer.log").read_text()

    async def _where(self, name: str) -> Address | None:
        known = await self.cluster.names()
        return next((one for one in known if one.name == f"{name}/transfer"), None)

    # -- versions --

    async def publish(self, version: int, data: bytes) -> Fetch:
        """Written by the trainer beside its agent, which is notified; returns what a receiver must fetch."""
        with await asyncio.to_thread(
            ImageStore(self._store("a")).create, version, SIZE, TENSORS, patience_s=60.0
        ) as draft:
            draft.view[:] = data
            draft.seal()
        self.published[version] = data
        message = Publish(version=version, tensors=TENSORS, model_config=b"{}")
        published = await self.cluster.ask("a/transfer", message, expect=Published, deadline_s=WITHIN_S)
        return Fetch(version=version, root=published.root, sources=("a/transfer",))

    async def hand_over(self, version: int, data: bytes) -> Publication:
        """Publish by the call of a foreign trainer."""
        self.published[version] = data
        state = {"w": torch.frombuffer(bytearray(data), dtype=torch.bfloat16)}
        return await self.cluster.publish(state, version, config=b"{}", wait_s=WITHIN_S)

    async def pull(self, name: str, fetch: Fetch) -> Fetched:
        """Wait until this host has the version."""
        return await self.cluster.ask(f"{name}/transfer", fetch, expect=Fetched, deadline_s=WITHIN_S)

    async def hit(self, victim: str, receivers: str) -> tuple[Fetch, dict[str, "asyncio.Task[Fetched]"]]:
        """Publish a version, and kill `victim` when each of `receivers` has a part of it and none has all.

        If a version was complete too early, repeat with another version."""
        for version in range(1, TRIES):
            data = os.urandom(SIZE)
            fetch = await self.publish(version, data)
            pulls = {name: asyncio.create_task(self.pull(name, fetch)) for name in receivers}
            some = [0] * len(receivers)
            while min(some) < CHUNKS // 8 and max(some) < CHUNKS:
                await asyncio.sleep(0.005)
                some = [self.chunks(name, version) for name in receivers]
            self.kill(victim)
            if all(0 < self.chunks(name, version) < CHUNKS for name in receivers):
                return fetch, pulls
            self.start(victim, **CHAINS, **SLOW)
            await asyncio.gather(*pulls.values(), return_exceptions=True)
        raise AssertionError(f"none of {TRIES} versions was on its way when it was looked at")

    # -- the images of a host --

    def path(self, name: str, version: int) -> Path:
        """The file of a complete image."""
        return self._store(name) / f"v{version:09d}" / FILE

    def image(self, name: str, version: int) -> bytes:
        """The bytes that any engine of this host would read."""
        return bytes(mapped(self.path(name, version)))

    def chunks(self, name: str, version: int) -> int:
        """The number of correct chunks of a version on this host."""
        if self.path(name, version).exists():
            return CHUNKS
        data = self.published[version]
        for draft in self._store(name).glob(f"v{version:09d}.*.draft"):
            with contextlib.suppress(OSError):  # the draft is being sealed
                there = (draft / FILE).read_bytes()[HEADER:]
                return sum(
                    there[at : at + CHUNK] == data[at : at + CHUNK] for at in range(0, len(there), CHUNK)
                )
        return 0

    def look(self) -> None:
        """Check that every version that a host shows for the first time equals the published one."""
        for name in self.pids:
            for path in set(self._store(name).glob(f"v{'?' * 9}/{FILE}")) - self._seen:
                with contextlib.suppress(OSError):  # the version was evicted
                    there = mapped(path)
                    assert there == self.published[int(path.parent.name[1:])], f"{path} was never published"
                    self._seen.add(path)

    def _store(self, name: str) -> Path:
        return store_dir(self.job({}), name)

    async def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait until `holds` is true."""
        try:
            async with asyncio.timeout(WITHIN_S):
                while not holds():
                    self.look()
                    await asyncio.sleep(0.005)
        except TimeoutError:
            logs = "\n".join(self.log(name)[-2000:] for name in self.pids)
            raise AssertionError(f"{what}: not within {WITHIN_S} s\n{logs}") from None


async def _look(hosts: RealHosts) -> None:
    while True:
        hosts.look()
        await asyncio.sleep(0.02)


@asynccontextmanager
async def real_hosts(folder: Path, forked: Forks, names: str, **weights: object) -> AsyncIterator[RealHosts]:
    """Running hosts with these settings of `weights`. At the end no process and no shared memory is left,
    whatever happened."""
    place = folder / f"faults-{secrets.token_hex(4)}"
    place.mkdir()
    location = ProcessLocation("head", "head", place / "head", listen="tcp://127.0.0.1:0")
    async with open_system(location) as system:
        system.spawn(REGISTRY, lambda: Registry(lambda: system.limits.lease_s))
        system.spawn("cluster/scheduler", lambda: JobOf(place.name, {"a": "reserved"}))
        system.spawn("rollout/balancer", lambda: LoadBalancer(1))
        system.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(OWN)))
        head = ProcessLocation("head", "head", place / "head", head=system.wire.local)
        async with connect(system.wire.local.endpoint) as cluster:
            hosts = RealHosts(place, forked, cluster, head)
            try:
                for name in names:
                    hosts.start(name, **weights)
                await hosts.up(*names)
                looking = asyncio.create_task(_look(hosts))
                yield hosts
                looking.cancel()
                hosts.look()
                if looking.done() and not looking.cancelled():
                    looking.result()
            finally:
                for name in list(hosts.pids):
                    hosts.kill(name)
                for name in hosts.names:
                    shutil.rmtree(memory_dir(hosts.job({}), name), ignore_errors=True)
