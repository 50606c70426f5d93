"""A sharded trainer on two hosts, of which each rank publishes its own part.

Instances pull each chunk from its owner.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from gleaner.actors.cluster.job import memory_dir, store_dir
from gleaner.actors.engine.images.shards import layout_of
from gleaner.actors.protocol.cluster import HostsUp, JobIs, JobSpec, JobStatus, WhoIsUp
from gleaner.actors.protocol.instances import InstancesAre, ListInstances
from gleaner.actors.protocol.weights import Fetch, Fetched, Published
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.actors.weights.agent import TransferAgent
from gleaner.actors.weights.delta.service import JOIN_DELTA_S
from gleaner.actors.weights.disk.layout import INDEX
from gleaner.actors.weights.disk.writer import DiskWriter
from gleaner.actors.weights.image.store import ImageStore
from gleaner.actors.weights.settings import TransferSettings
from gleaner.actors.weights.shards import owners
from gleaner.actors.weights.shards.layout import Part, fsdp_parts
from gleaner.configs.load import from_tree
from gleaner.configs.schema import Config
from gleaner.rlctl import CannotPublish, connect
from gleaner.rlctl.sharded_publisher import OwnParts, Ranks
from gleaner.supervisor import (
    Actor,
    ActorSystem,
    AskTimeout,
    Incarnations,
    ProcessIdentity,
    Registry,
    SqliteJournal,
    SystemPorts,
    handles,
)
from gleaner.supervisor.network import Network
from gleaner.transport.mesh import ZmqWire
from tests.actors.weights import published_reader

CHUNK = 64 * 1024
CONFIG = from_tree({"training": {"backend": "own"}, "weights": {"chunk_bytes": CHUNK}}, "test")
OWNERS, RECEIVERS = ("one", "two"), ("x", "y")
RANKS = 4
MODEL = {
    "embed": torch.randn(101, 512),
    "a": torch.randn(1000, 256).to(torch.bfloat16),
    "b": torch.randn(7, 64, 33),
    "norm": torch.randn(3),
    "scale": torch.tensor(2.5),
}
WHOLE = layout_of({name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in MODEL.items()})


class JobOf(Actor):
    """Answers a client's requests to the scheduler."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    @handles(JobStatus)
    async def status(self, message: JobStatus) -> JobIs:
        return JobIs(state="running", run_id=self._run_id)

    @handles(WhoIsUp)
    async def list_hosts(self, message: WhoIsUp) -> HostsUp:
        return HostsUp(boot=1, roles=dict.fromkeys(OWNERS, "reserved"))


class Job:
    """Two hosts of a trainer and two receivers, in one process and over real sockets."""

    def __init__(self, system: ActorSystem, spec: JobSpec) -> None:
        self.system, self.spec = system, spec

    @property
    def address(self) -> str:
        return self.system.wire.local.endpoint

    def start(self, host: str, config: Config = CONFIG) -> None:
        store = ImageStore(store_dir(self.spec, host))

        def disk() -> DiskWriter:
            return DiskWriter(Path(config.weights.disk), encoding="xor", checksum="xxh3-128")

        self.system.spawn(
            f"{host}/transfer", lambda: TransferAgent(store, TransferSettings.of(config), "", disk)
        )

    def shown(self, host: str, figure: str) -> str | int | float:
        cell = self.system.cell(f"{host}/transfer")
        assert cell is not None
        return cell.actor.summary()[figure]

    def kill(self, host: str) -> None:
        cell = self.system.cell(f"{host}/transfer")
        assert cell is not None
        cell.crash(RuntimeError("killed by the test"))

    def served_bytes(self, host: str) -> int:
        return int(self.shown(host, "served_bytes"))

    async def fetch(self, host: str, version: int, root: bytes) -> dict[str, bytes]:
        """The tensors that this host has by name after a whole pull."""
        asked = Fetch(version=version, root=root, sources=tuple(f"{one}/transfer" for one in OWNERS))
        fetched = await self.system.ask(f"{host}/transfer", asked, deadline_s=60.0, expect=Fetched)
        with ImageStore(store_dir(self.spec, host)).open(version) as image:
            return {
                spec.name: bytes(image.view[spec.offset : spec.offset + spec.nbytes])
                for spec in fetched.tensors
            }


@pytest.fixture
def spec() -> Iterator[JobSpec]:
    spec = JobSpec(run_id=f"parts-{time.time_ns()}", run_dir="", model_dir="", config="")
    yield spec
    for host in (*OWNERS, *RECEIVERS):
        shutil.rmtree(memory_dir(spec, host), ignore_errors=True)


@pytest.fixture
async def job(tmp_path: Path, spec: JobSpec) -> AsyncIterator[Job]:
    system = ActorSystem(
        ProcessIdentity("box", "agent", Incarnations(lambda: 0)),
        SystemPorts(
            wire=ZmqWire("box", 1),
            journals=SqliteJournal(tmp_path / "box.sqlite"),
            network=Network("127.0.0.1", None),
        ),
    )
    system.start()
    system.spawn("registry", lambda: Registry(lambda: 3.0))
    system.spawn("cluster/scheduler", lambda: JobOf(spec.run_id))
    system.spawn("rollout/balancer", lambda: LoadBalancer(4))
    system.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(CONFIG)))
    found = Job(system, spec)
    for host in (*OWNERS, *RECEIVERS):
        found.start(host)
    yield found
    await system.close()


def raw(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


EXPECTED = {name: raw(tensor) for name, tensor in MODEL.items()}


def rows(parts: Sequence[Part], model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A rank's own tensors, each under the name given by its part."""
    found = {part.local: model[part.tensor] for part in parts}
    lows = {part.local: slice(part.low, part.high) for part in parts}
    return {name: one[lows[name]] if one.dim() else one for name, one in found.items()}


def shares() -> list[list[Part]]:
    """The parts of four ranks, as FSDP2 would cut them."""
    return [list(fsdp_parts(WHOLE, rank, RANKS)) for rank in range(RANKS)]


async def publish(
    job: Job,
    version: int,
    parts: Mapping[int, Sequence[Part]] | None = None,
    model: Mapping[str, Tensor] = MODEL,
) -> list[Published | BaseException]:
    """Publish from all ranks at once, two on each host; returns the result of each."""

    async def one(rank: int, parts: Sequence[Part]) -> Published:
        own = [replace(part, local=f"{part.tensor} from {part.low}") for part in parts]
        async with connect(job.address) as cluster:
            handed = await cluster.publish(
                rows(own, model),
                version,
                config=b"{}",
                host=OWNERS[rank // 2],
                ranks=Ranks(rank, RANKS, 2),
                parts=OwnParts(WHOLE, own),
            )
            return await handed.known()

    all_parts = parts if parts is not None else dict(enumerate(shares()))
    work = (one(rank, own) for rank, own in all_parts.items())
    return await asyncio.gather(*work, return_exceptions=True)


async def root_of(job: Job, version: int, model: Mapping[str, Tensor] = MODEL) -> bytes:
    results = await publish(job, version, model=model)
    roots = {one.root for one in results if isinstance(one, Published)}
    assert len(roots) == 1, results
    return roots.pop()


async def test_each_rank_publishes_its_part_and_receivers_get_all(job: Job) -> None:
    root = await root_of(job, 1)
    assert await job.fetch("x", 1, root) == EXPECTED
    assert all(job.served_bytes(host) > 0 for host in OWNERS)
    assert await root_of(job, 1) == root, "publishing the same again is allowed"
    assert await job.fetch("y", 1, root) == EXPECTED
    again = await root_of(job, 2)
    assert await job.fetch("x", 2, again) == EXPECTED


async def test_overlapping_or_missing_bytes_are_refused_with_owners(job: Job) -> None:
    twice = dict(enumerate(shares()))
    twice[1] = [*twice[1], Part("a", 0, 10)]
    results = await publish(job, 1, twice)
    assert any("are held by rank" in str(one) for one in results), results
    across = dict(enumerate(shares()))
    across[3] = [*across[3], Part("a", 0, 10)]
    results = await publish(job, 2, across)
    assert all(isinstance(one, CannotPublish) for one in results)
    for owner in ("one/transfer (rank 0, 1)", "two/transfer (rank 2, 3)"):
        assert all(f"by {owner}" in str(one) for one in results), results
    incomplete = dict(enumerate(shares()))
    incomplete[2] = [part for part in incomplete[2] if part.tensor != "a"]
    results = await publish(job, 3, incomplete)
    assert {"have no holder" in str(one) for one in results} == {True}, results
    assert await job.fetch("x", 4, await root_of(job, 4)) == EXPECTED, "the next ones are accepted"


async def test_returning_owner_serves_its_part_again(job: Job) -> None:
    root = await root_of(job, 1)
    job.kill("two")
    pulling = asyncio.create_task(job.fetch("x", 1, root))
    await asyncio.sleep(0.3)
    assert not pulling.done()
    job.start("two")
    assert await pulling == EXPECTED


async def test_part_of_a_dead_owner_comes_from_other_holders(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "OFFER_DEADLINE_S", 0.5)
    root = await root_of(job, 1)
    assert await job.fetch("x", 1, root) == EXPECTED
    job.kill("two")
    assert await job.fetch("y", 1, root) == EXPECTED


async def test_corrupt_part_is_not_taken_from_its_owner(job: Job) -> None:
    root = await root_of(job, 1)
    path = ImageStore(store_dir(job.spec, "two")).path(1)
    job.kill("two")
    with path.open("r+b") as image:
        image.seek(path.stat().st_size - 300_000)
        image.write(bytes(200_000))
    job.start("two")
    asked = Fetch(version=1, root=root, sources=("one/transfer",))
    with pytest.raises(AskTimeout):
        await job.system.ask("x/transfer", asked, deadline_s=1.0, expect=Fetched)
    assert ImageStore(store_dir(job.spec, "x")).versions() == []


def trained(steps: int) -> dict[str, Tensor]:
    """One row of each tensor changed in each step."""
    model = {name: tensor.clone() for name, tensor in MODEL.items()}
    for step in range(1, steps + 1):
        for tensor in model.values():
            row = tensor if tensor.dim() == 0 else tensor[step % tensor.shape[0]]
            row += 1
    return model


async def on_disk(job: Job, version: int) -> None:
    async with asyncio.timeout(JOIN_DELTA_S + 60):  # the part of a killed owner is waited for
        while job.shown("one", "on_disk") != str(version):
            await asyncio.sleep(0.02)


def start_with_disk(job: Job, shared: Path) -> None:
    """Start the hosts of the trainer, both with the folder."""
    config = msgspec.structs.replace(
        CONFIG, weights=msgspec.structs.replace(CONFIG.weights, disk=str(shared))
    )
    for host in OWNERS:
        job.kill(host)
        job.start(host, config)


async def test_joining_host_writes_multi_host_versions_to_disk(job: Job, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    start_with_disk(job, shared)
    expected = {}
    for version in range(3):
        await root_of(job, version, trained(version))
        await on_disk(job, version)
        about = json.loads((shared / f"weight_v{version:06d}" / INDEX).read_text())["metadata"]
        assert ("delta_encoding" in about) == (version > 0)
        expected = {name: raw(tensor) for name, tensor in trained(version).items()}
    published_reader.pull(tmp_path / "engine", shared / "weight_v000000", shared, 2)
    assert published_reader.tensors(tmp_path / "engine") == expected
    assert job.shown("two", "on_disk") == "-", "one host writes"
    given = job.served_bytes("two")
    assert given < sum(map(len, expected.values())), "only the changes are pulled for it"


async def test_owner_death_during_disk_pull_delays_the_disk(job: Job, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    start_with_disk(job, shared)
    await root_of(job, 0, trained(0))
    await on_disk(job, 0)
    await root_of(job, 1, trained(1))
    job.kill("two")
    await asyncio.sleep(0.1)
    job.start("two")
    await on_disk(job, 1)
    published_reader.pull(tmp_path / "engine", shared / "weight_v000000", shared, 1)
    expected = {name: raw(tensor) for name, tensor in trained(1).items()}
    assert published_reader.tensors(tmp_path / "engine") == expected


RANK = """
import os, sys, torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from gleaner.rlctl import publisher
address, host, store, rank = *sys.argv[1:4], int(sys.argv[4])
torch.set_num_threads(1)
distributed.init_process_group("gloo", store=distributed.FileStore(store, 2), rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
model = torch.load(sys.argv[5])
cut = {"embed": Shard(0), "a": Shard(1), "b": Shard(0), "norm": Replicate()}
state = {name: distribute_tensor(t, mesh, [cut[name]]) if name in cut else t for name, t in model.items()}
with publisher(address, host=host) as weights:
    weights.publish(state, 5, config=b"{}")
    weights.wait()
distributed.destroy_process_group()
"""


@pytest.mark.realprocess
@pytest.mark.long
async def test_rank_processes_publish_their_dtensors_on_two_hosts(job: Job, tmp_path: Path) -> None:
    torch.save(MODEL, tmp_path / "model")
    arguments = [(host, str(rank)) for rank, host in enumerate(OWNERS)]
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                RANK,
                job.address,
                host,
                str(tmp_path / "store"),
                rank,
                str(tmp_path / "model"),
            ],
            env={**os.environ, "LOCAL_WORLD_SIZE": "1"},
        )
        for host, rank in arguments
    ]
    try:
        codes = await asyncio.gather(*(asyncio.to_thread(rank.wait, 120) for rank in ranks))
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0, 0]
    store = ImageStore(store_dir(job.spec, "one"))
    assert store.versions() == [5]
    seen = await job.system.ask("rollout/manager", ListInstances(), deadline_s=5.0, expect=InstancesAre)
    assert seen.published == 5
