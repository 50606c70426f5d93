"""Publication of a job's versions on a shared file system for foreign engines."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.weights import Publish, Published
from gleaner.actors.weights.agent import TransferAgent
from gleaner.actors.weights.disk.layout import INDEX
from gleaner.actors.weights.disk.writer import DiskWriter
from gleaner.actors.weights.image.store import ImageStore
from gleaner.actors.weights.settings import TransferSettings
from gleaner.configs.load import ConfigError, from_tree
from gleaner.supervisor.testing import TestSystem
from tests.actors.weights import published_reader

SIZE = 200_000
TENSORS = (TensorSpec("w", "bfloat16", (SIZE // 2,), 0, SIZE),)


@dataclass
class Trainer:
    """A host that publishes, and a folder that others read."""

    system: TestSystem
    directory: Path
    whole_every: int = 0
    agent: TransferAgent = field(init=False)

    @property
    def shared(self) -> Path:
        return self.directory / "shared"

    def start(self) -> None:
        weights = {"disk_whole_every": self.whole_every, "require_finite": False}  # random bytes
        config = from_tree({"weights": weights}, "test")
        store = ImageStore(self.directory / "store")

        def disk() -> DiskWriter:
            return DiskWriter(self.shared, encoding="xor", checksum="xxh3-128")

        def made() -> TransferAgent:
            self.agent = TransferAgent(store, TransferSettings.of(config), "", disk)
            return self.agent

        self.system.spawn("a/transfer", made)

    async def publish(self, version: int, data: bytes) -> None:
        """Publish, and wait until the version is on disk."""
        with ImageStore(self.directory / "store").create(version, len(data)) as draft:
            draft.view[:] = data
            draft.seal()
        message = Publish(version=version, tensors=TENSORS, model_config=b"{}")
        await self.system.ask("a/transfer", message, Published)

    async def written(self, version: int) -> dict[str, str]:
        """The metadata of the version's index, once the index exists."""
        path = self.shared / f"weight_v{version:06d}" / INDEX
        await become(path.exists)
        about: dict[str, str] = json.loads(path.read_text())["metadata"]
        return about


async def become(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def trainer(directory: Path, whole_every: int = 0) -> AsyncIterator[Trainer]:
    async with TestSystem(directory, node="a") as system:
        found = Trainer(system, directory, whole_every)
        found.start()
        yield found


def versions(count: int) -> list[bytes]:
    rng = np.random.default_rng(5)
    data = rng.integers(0, 256, SIZE, np.uint8)
    found = []
    for _ in range(count):
        found.append(data.tobytes())
        data[rng.choice(SIZE, 300, replace=False)] ^= 1
    return found


async def test_foreign_engine_follows_the_versions_of_a_job(tmp_path: Path) -> None:
    async with trainer(tmp_path) as job:
        datas = versions(3)
        for version, data in enumerate(datas):
            await job.publish(version, data)
            about = await job.written(version)
            assert ("delta_encoding" in about) == (version > 0)
        published_reader.pull(tmp_path / "engine", job.shared / "weight_v000000", job.shared, 2)
        assert published_reader.tensors(tmp_path / "engine") == {"w": datas[2]}


async def test_restarted_agent_continues_with_differences(tmp_path: Path) -> None:
    async with trainer(tmp_path) as job:
        first, second = versions(2)
        await job.publish(7, first)
        await job.written(7)
        job.system.kill("a/transfer")
        job.start()
        await job.publish(8, second)
        assert (await job.written(8))["base_version"] == "000007"


async def test_version_missing_in_the_folder_is_no_base(tmp_path: Path) -> None:
    async with trainer(tmp_path) as job:
        datas = versions(3)
        await job.publish(1, datas[0])
        await job.written(1)
        await job.publish(3, datas[2])
        assert "delta_encoding" not in await job.written(3)
        published_reader.pull(tmp_path / "engine", tmp_path / "none", job.shared, 3)
        assert published_reader.tensors(tmp_path / "engine") == {"w": datas[2]}


async def test_older_versions_are_removed_when_unneeded(tmp_path: Path) -> None:
    async with trainer(tmp_path, whole_every=2) as job:
        for version, data in enumerate(versions(6)):
            await job.publish(version, data)
            await job.written(version)
        left = sorted(path.name for path in job.shared.iterdir())
        assert left == [f"weight_v{version:06d}" for version in (2, 3, 4, 5)], "4 and 2 are whole"


async def test_folder_of_another_run_is_left_unchanged(tmp_path: Path) -> None:
    DiskWriter(tmp_path / "shared", encoding="xor", checksum="xxh3-128").write_whole(
        1, memoryview(bytes(SIZE)), TENSORS, b"another"
    )
    before = sorted((tmp_path / "shared").rglob("*"))
    async with trainer(tmp_path) as job:
        await job.publish(1, versions(1)[0])
        await become(lambda: job.agent.summary()["on_disk"] == "stopped")
        assert sorted(job.shared.rglob("*")) == before


def test_stitch_layout_refuses_encodings_it_cannot_read() -> None:
    with pytest.raises(ConfigError, match="disk_encoding"):
        from_tree({"weights": {"disk_layout": "stitch", "disk_encoding": "overwrite"}}, "test")
