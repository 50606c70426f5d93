"""Weights from a user's own trainer, over real sockets.

A manager and an engine serve them.
"""

import asyncio
import json
import math
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch

from gleaner.actors.cluster.job import memory_dir, store_dir
from gleaner.actors.engine.builtin.host import BuiltinHost
from gleaner.actors.engine.builtin.settings import BuiltinSettings
from gleaner.actors.engine.servers.port import LoadFailed
from gleaner.actors.engine.worker import served_weights
from gleaner.actors.engine.worker.settings import WorkerSettings
from gleaner.actors.engine.worker.worker import RolloutWorker
from gleaner.actors.model.checkpoint import save_checkpoint
from gleaner.actors.model.qwen3 import Qwen3
from gleaner.actors.model.qwen3_config import Qwen3Config
from gleaner.actors.protocol.cluster import HostsUp, JobIs, JobSpec, JobStatus, WhoIsUp
from gleaner.actors.protocol.instances import InstancesAre, ListInstances
from gleaner.actors.protocol.weights import Fetched
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.actors.weights.agent import TransferAgent
from gleaner.actors.weights.image.store import ImageStore
from gleaner.actors.weights.settings import TransferSettings
from gleaner.configs.load import from_tree
from gleaner.rlctl import CannotPublish, Cluster, connect, publisher
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.errors import FAILED, OK
from gleaner.supervisor import (
    Actor,
    ActorSystem,
    Incarnations,
    ProcessIdentity,
    Registry,
    SqliteJournal,
    SystemPorts,
    handles,
)
from gleaner.supervisor.network import Network
from gleaner.transport.mesh import ZmqWire

CONFIG = from_tree({"training": {"backend": "own"}, "engine": {"slots": 2}}, "test")
TRAINS = from_tree({}, "test")
DOCS = Path(__file__).parents[2] / "docs" / "weights.md"
WITHIN_S = 60.0


class JobOf(Actor):
    """Answers a client's requests to the scheduler."""

    def __init__(self, run_id: str, roles: dict[str, str]) -> None:
        self._run_id, self._roles = run_id, roles

    @handles(JobStatus)
    async def status(self, message: JobStatus) -> JobIs:
        return JobIs(state="running", run_id=self._run_id)

    @handles(WhoIsUp)
    async def list_hosts(self, message: WhoIsUp) -> HostsUp:
        return HostsUp(boot=1, roles=self._roles)


@dataclass
class World:
    """A job without a trainer: a manager, the agent of the trainer's host and an instance, in one process."""

    system: ActorSystem
    job: JobSpec
    folder: Path

    @property
    def address(self) -> str:
        return self.system.wire.local.endpoint

    def model(self, name: str, seed: int) -> Path:
        """A checkpoint with other weights for each seed."""
        torch.manual_seed(seed)
        like = self.folder / "like"
        like.mkdir(exist_ok=True)
        (like / "config.json").write_text(json.dumps(MODEL))
        save_checkpoint(Qwen3(Qwen3Config.load(like)).state_dict(), self.folder / name, like=like)
        return self.folder / name

    async def seen(self) -> InstancesAre:
        return await self.system.ask("rollout/manager", ListInstances(), deadline_s=60.0, expect=InstancesAre)

    async def serves(self, version: int) -> None:
        """Wait until the instance serves this version."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                seen = await self.seen()
                if [one.version for one in seen.instances] == [version]:
                    return
                await asyncio.sleep(0.02)


MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
    "eos_token_id": 1,
}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[JobSpec]:
    spec = JobSpec(run_id=f"publish-{time.time_ns()}", run_dir="", model_dir="", config="")
    yield spec
    shutil.rmtree(memory_dir(spec, "box"), ignore_errors=True)


@pytest.fixture
async def world(tmp_path: Path, job: JobSpec) -> AsyncIterator[World]:
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
    system.spawn("cluster/scheduler", lambda: JobOf(job.run_id, {"spot": "preemptible", "box": "reserved"}))
    system.spawn("rollout/balancer", lambda: LoadBalancer(4))
    system.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(CONFIG)))
    store, other = store_dir(job, "box"), tmp_path / "spot-store"
    system.spawn("box/transfer", lambda: TransferAgent(ImageStore(store), TransferSettings.of(CONFIG)))
    system.spawn("spot/transfer", lambda: TransferAgent(ImageStore(other), TransferSettings.of(CONFIG)))
    system.spawn(
        "spot/engine",
        lambda: RolloutWorker(
            WorkerSettings.of(CONFIG), "spot", "preemptible", BuiltinHost(BuiltinSettings.of(CONFIG))
        ),
    )
    yield World(system, job, tmp_path)
    await system.close()


@pytest.fixture
async def cluster(world: World) -> AsyncIterator[Cluster]:
    async with connect(world.address) as client:
        yield client


def test_documented_example_has_about_ten_lines() -> None:
    assert 8 <= len(example().splitlines()) <= 12


def example() -> str:
    """The code in the section about one's own trainer."""
    section = DOCS.read_text().split("## From your own trainer")[1].split("\n## ")[0]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


async def test_documented_example_trains_and_its_version_is_served(world: World) -> None:
    directory = world.model("my-model", 0)
    program = example().replace('"my-model"', repr(str(directory))).replace('"runs"', repr(world.address))
    names: dict[str, object] = {"batches": [torch.tensor([[5, 6, 7, 8]])] * 3}
    await asyncio.to_thread(exec, program, names)
    await world.serves(2)
    trained = names["model"]
    assert isinstance(trained, torch.nn.Module)
    store = ImageStore(store_dir(world.job, "box"))
    with store.open(2) as image, ImageStore(world.folder / "spot-store").open(2) as pulled:
        assert bytes(image.view) == bytes(pulled.view)
        head = trained.state_dict()["model.embed_tokens.weight"].numpy().tobytes()
        assert head in bytes(image.view)


async def test_successive_folders_are_served_without_a_restart(world: World, cluster: Cluster) -> None:
    copied: list[int] = []
    handed = await cluster.publish(world.model("a", 1), 4, progress=lambda done, _all: copied.append(done))
    assert handed.host == "box"
    assert copied == sorted(copied)
    assert len(copied) == handed.tensors > 0
    first = await handed.known()
    await world.serves(4)
    second = await (await cluster.publish(world.model("b", 2), 7)).known()
    await world.serves(7)
    assert first.root != second.root


async def test_tensors_may_change_after_the_call_returns(world: World, cluster: Cluster) -> None:
    weight = torch.ones(1 << 16)
    handed = await cluster.publish({"w": weight}, 0, config=b"{}")
    weight.zero_()
    await handed.known()
    with ImageStore(store_dir(world.job, "box")).open(0) as image:
        assert bytes(image.view) == torch.ones(1 << 16).numpy().tobytes()


async def test_versions_increase_and_keep_their_bytes(world: World, cluster: Cluster) -> None:
    async def publish(value: float, version: int) -> bytes:
        handed = await cluster.publish({"w": torch.full((64,), value)}, version, config=b"{}")
        return (await handed.known()).root

    root = await publish(1.0, 3)
    assert await publish(1.0, 3) == root, "publishing the same again is allowed"
    with pytest.raises(CannotPublish, match="version 3 was published before with other bytes"):
        await publish(2.0, 3)
    await publish(2.0, 5)
    with pytest.raises(CannotPublish, match="version 4 cannot be published, version 5 is the newest"):
        await publish(3.0, 4)
    with pytest.raises(CannotPublish, match="numbers from 0 up"):
        await publish(3.0, -1)
    await publish(3.0, 6)


async def test_unpublished_image_does_not_block_a_publish(world: World, cluster: Cluster) -> None:
    with ImageStore(store_dir(world.job, "box")).create(1, 256) as draft:
        draft.view[:] = b"\x01" * 256
        draft.seal()
    await (await cluster.publish({"w": torch.zeros(64)}, 1, config=b"{}")).known()


async def test_invalid_publish_is_refused_before_any_write(
    world: World, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CannotPublish, match="needs config="):
        await cluster.publish({"w": torch.zeros(4)}, 0)
    with pytest.raises(CannotPublish, match="not a tensor"):
        await cluster.publish({"w": 3}, 0, config={})  # type: ignore[dict-item]
    with pytest.raises(CannotPublish, match="is no directory"):
        await cluster.publish(world.folder / "absent", 0, config={})
    assert ImageStore(store_dir(world.job, "box")).versions() == []
    with pytest.raises(CannotPublish, match="no node agent of job .* on this host as nobody"):
        await cluster.publish({"w": torch.zeros(4)}, 0, config={}, host="nobody", wait_s=0.0)


async def test_training_job_takes_no_other_weights(world: World, cluster: Cluster) -> None:
    cell = world.system.cell("box/transfer")
    assert cell is not None
    cell.crash(RuntimeError("by the test"))
    store = store_dir(world.job, "box")
    world.system.spawn("box/transfer", lambda: TransferAgent(ImageStore(store), TransferSettings.of(TRAINS)))
    with pytest.raises(CannotPublish, match=r"this job trains its own weights .*training.backend"):
        await cluster.publish({"w": torch.zeros(4)}, 0, config={})


async def in_thread(work: Callable[[], object]) -> object:
    return await asyncio.to_thread(work)


async def test_blocking_publisher_raises_the_error_at_next_call(world: World) -> None:
    def train() -> str:
        with publisher(world.address) as weights:
            weights.publish({"w": torch.zeros(64)}, 1, config=b"{}")
            weights.wait()
            weights.publish({"w": torch.ones(64)}, 2)
            with pytest.raises(CannotPublish, match="version 1 cannot be published"):
                weights.publish({"w": torch.ones(64)}, 1)
        return "ended"

    assert await in_thread(train) == "ended"
    with pytest.raises(CannotPublish, match="nothing runs in"):
        publisher(str(world.folder))


async def test_command_publishes_a_folder_and_waits_until_served(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = world.model("m", 3)
    at = ["--head", world.address]
    code = await in_thread(
        lambda: main(["publish", str(directory), "--version", "1", "--wait", str(WITHIN_S), "--json", *at])
    )
    assert code == OK
    result = msgspec.json.decode(capsys.readouterr().out)
    assert (result["version"], result["host"], result["served_by"]) == (1, "box", 1)
    code = await in_thread(lambda: main(["publish", str(directory), "--version", "0", *at]))
    assert code == FAILED
    assert "versions go up, go on with 2" in capsys.readouterr().err


class Picky(BuiltinHost):
    """Does not load version 2."""

    def stage(self, fetched: Fetched) -> None:
        if fetched.version == 2:
            raise LoadFailed("norm.weight has 63 columns, the model has 64")
        super().stage(fetched)


async def test_failed_load_raises_once_at_the_next_publish(
    world: World, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(served_weights, "LOAD_AGAIN_S", 0.01)
    picky = Picky(BuiltinSettings.of(CONFIG))
    world.system.cell("spot/engine").crash(RuntimeError("by the test"))  # type: ignore[union-attr]
    world.system.spawn(
        "box/engine", lambda: RolloutWorker(WorkerSettings.of(CONFIG), "box", "preemptible", picky)
    )
    await (await cluster.publish(world.model("a", 1), 1)).known()
    await world.serves(1)
    await (await cluster.publish(world.model("b", 2), 2)).known()
    async with asyncio.timeout(WITHIN_S):
        while not (await world.seen()).failed:
            await asyncio.sleep(0.02)
    good = world.model("c", 3)
    with pytest.raises(CannotPublish, match=r"could not load version 2, they serve version 1: .*63 columns"):
        await cluster.publish(good, 3)
    assert 3 not in ImageStore(store_dir(world.job, "box")).versions()
    with pytest.raises(CannotPublish, match="version 2 is the newest: versions go up, go on with 3"):
        await cluster.publish(good, 1)
    at = ["--head", world.address]
    code = await in_thread(lambda: main(["publish", str(good), "--version", "2", "--wait", "5", *at]))
    assert code == FAILED
    assert "version 2 was published before with other bytes" in capsys.readouterr().err
    await (await cluster.publish(good, 3)).known()
    await world.serves(3)


async def test_tensors_of_another_model_are_refused_before_copying(
    world: World, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(tensors: dict[str, torch.Tensor], why: str) -> None:
        with pytest.raises(CannotPublish, match=re.escape(f"version 2 is not like version 1: {why}")):
            await cluster.publish(tensors, 2)
        assert ImageStore(store_dir(world.job, "box")).versions() == [1]

    before = {"a": torch.zeros(4, 8), "b": torch.zeros(3)}
    await (await cluster.publish(before, 1, config=b"{}")).known()
    await refused({"a": torch.zeros(4, 7), "b": torch.zeros(3)}, "'a' has shape [4, 7], it had [4, 8]")
    await refused(before | {"b": torch.zeros(3).half()}, "'b' is float16, it was float32")
    await refused({"a": torch.zeros(4, 8)}, "1 tensor is there no longer, first 'b'")
    await refused(before | {"c": torch.zeros(1), "d": torch.zeros(1)}, "2 tensors are new, first 'c'")
    await (await cluster.publish({"a": torch.zeros(4, 8)}, 2, model_changed=True)).known()
    with pytest.raises(CannotPublish, match="not like version 2"):
        await cluster.publish(before, 3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
async def test_non_finite_weights_are_never_served(world: World, cluster: Cluster, value: float) -> None:
    tensors = {"a": torch.zeros(1 << 20), "b": torch.zeros(3, dtype=torch.bfloat16)}
    await (await cluster.publish(tensors, 1, config=b"{}")).known()
    tensors["b"][2] = value
    handed = await cluster.publish(tensors, 2)
    with pytest.raises(CannotPublish, match="version 2 holds NaN or infinity, first in 'b'"):
        await handed.known()
    assert (await world.seen()).published == 1
