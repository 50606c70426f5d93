"""TransferAgents by their messages: versions published once and pulled whole."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.weights import (
    DropVersion,
    Fetch,
    Fetched,
    FindSource,
    Offer,
    Offered,
    Publish,
    Published,
    WhatComes,
)
from gleaner.actors.weights.agent import TransferAgent
from gleaner.actors.weights.image.draft import FILE
from gleaner.actors.weights.image.manifest import Manifest
from gleaner.actors.weights.image.safetensors_file import header
from gleaner.actors.weights.image.store import ImageStore
from gleaner.actors.weights.settings import TransferSettings
from gleaner.actors.weights.transfer import fetch as fetching
from gleaner.actors.weights.transfer import source_lookup as finding
from gleaner.actors.weights.transfer.waves import Sources
from gleaner.configs.load import from_tree
from gleaner.supervisor import Done, Refused
from gleaner.supervisor.testing import TestSystem
from gleaner.transport.bulk import BulkSource, Chunk, PullResult, PullTimeout, SourceGone

CHUNK = 64 * 1024
SIZE = 20 * CHUNK + 17
CONFIG = from_tree({"weights": {"chunk_bytes": CHUNK, "require_finite": False}}, "test")  # random bytes
TENSORS = (TensorSpec("w", "uint8", (SIZE,), 0, SIZE),)


def image_in(path: str) -> bytes:
    return Path(path).read_bytes()[-SIZE:]


@dataclass
class Pair:
    """A source with an agent "a", and a receiver with an agent "b"."""

    source: TestSystem
    receiver: TestSystem
    directory: Path

    def start(self, name: str) -> None:
        system = self.source if name == "a" else self.receiver
        system.spawn(
            f"{name}/transfer",
            lambda: TransferAgent(ImageStore(self.directory / name), TransferSettings.of(CONFIG)),
        )

    async def publish(self, version: int, data: bytes) -> bytes:
        with ImageStore(self.directory / "a").create(version, len(data)) as draft:
            draft.view[:] = data
            draft.seal()
        message = Publish(version=version, tensors=TENSORS, model_config=b"{}")
        return (await self.source.ask("a/transfer", message, Published)).root

    async def fetch(self, version: int, root: bytes) -> Fetched:
        message = Fetch(version=version, root=root, sources=("a/transfer",))
        return await self.receiver.ask("b/transfer", message, Fetched, deadline_s=60)


@asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[Pair]:
    async with TestSystem(directory, node="a") as a, TestSystem(directory, node="b", join=a) as b:
        found = Pair(a, b, directory)
        found.start("a")
        found.start("b")
        yield found


async def test_pulled_image_equals_the_published_one(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        data = os.urandom(SIZE)
        root = await two.publish(3, data)
        fetched = await two.fetch(3, root)
        assert image_in(fetched.path) == data
        assert (fetched.root, fetched.pulled_bytes, fetched.tensors) == (root, SIZE, TENSORS)
        assert (await two.fetch(3, root)).pulled_bytes == 0, "the version was already here"


async def test_model_of_a_version_is_known_in_advance(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        root = await two.publish(3, os.urandom(SIZE))
        with pytest.raises(Refused, match="does not have version 3"):
            await two.receiver.ask("b/transfer", WhatComes(version=3, root=root), Fetched)
        pulling = asyncio.create_task(two.fetch(3, root))
        await asyncio.sleep(0)
        model = await two.receiver.ask("b/transfer", WhatComes(version=3, root=root), Fetched, deadline_s=60)
        here = await pulling
        assert (model.version, model.path, model.tensors, model.model_config) == (
            3,
            here.path,
            TENSORS,
            here.model_config,
        )


async def test_concurrent_fetches_of_a_version_share_one_pull(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        root = await two.publish(1, os.urandom(SIZE))
        fetched = await asyncio.gather(*(two.fetch(1, root) for _ in range(5)))
        assert {one.pulled_bytes for one in fetched} == {SIZE}


async def test_restarted_agent_serves_its_versions(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        data = os.urandom(SIZE)
        root = await two.publish(1, data)
        two.source.kill("a/transfer")
        pulling = asyncio.create_task(two.fetch(1, root))
        await asyncio.sleep(0.1)
        two.start("a")
        assert image_in((await pulling).path) == data


async def test_rotten_source_image_is_not_served_by_receivers(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        root = await two.publish(1, os.urandom(SIZE))
        with ImageStore(tmp_path / "a").path(1).open("r+b") as image:
            image.seek(-SIZE, os.SEEK_END)
            image.seek(5 * CHUNK - SIZE, os.SEEK_END)
            image.write(b"rotten")
        with pytest.raises(Refused, match="could not be pulled"):
            await two.fetch(1, root)
        assert ImageStore(tmp_path / "b").versions() == []


def rot(folder: Path) -> None:
    """Damage the image of version 1 there."""
    with ImageStore(folder).path(1).open("r+b") as image:
        image.seek(5 * CHUNK - SIZE, os.SEEK_END)
        image.write(b"rotten")


async def pulled_again(two: Pair, root: bytes, data: bytes) -> None:
    fetched = await two.fetch(1, root)
    assert fetched.pulled_bytes == SIZE
    assert image_in(fetched.path) == data


async def test_rotten_image_is_pulled_again_after_a_restart(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as two:
        data = os.urandom(SIZE)
        root = await two.publish(1, data)
        await two.fetch(1, root)
        two.receiver.kill("b/transfer")
        rot(tmp_path / "b")
        two.start("b")
        await pulled_again(two, root, data)


async def test_rotten_image_is_pulled_again_for_the_next_engine(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        data = os.urandom(SIZE)
        root = await two.publish(1, data)
        await two.fetch(1, root)
        again = await two.fetch(1, root)
        assert (again.pulled_bytes, image_in(again.path)) == (0, data)
        rot(tmp_path / "b")
        await pulled_again(two, root, data)


async def test_image_that_rots_after_a_restart_is_pulled_again(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        data = os.urandom(SIZE)
        root = await two.publish(1, data)
        await two.fetch(1, root)
        two.receiver.kill("b/transfer")
        two.start("b")
        here = WhatComes(version=1, root=root)
        await two.receiver.ask("b/transfer", here, Fetched)  # it has looked at what was left
        rot(tmp_path / "b")
        await pulled_again(two, root, data)


async def test_version_is_published_once_under_one_root(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        data = os.urandom(SIZE)
        root = await two.publish(1, data)
        assert await two.publish(1, data) == root
        ImageStore(tmp_path / "a").discard(1)
        with pytest.raises(Refused, match="published before with other bytes"):
            await two.publish(1, os.urandom(SIZE))
        with pytest.raises(Refused, match="does not have version 1 with that root"):
            await two.source.ask("a/transfer", Offer(version=1, root=b"another"), Offered)


async def test_agent_answers_while_it_checks_a_leftover_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, answered = threading.Event(), threading.Event()
    missing = Manifest.missing

    def long(manifest: Manifest, image: memoryview) -> list[Chunk]:
        begun.set()
        assert answered.wait(60.0), "the loop was blocked meanwhile"
        return missing(manifest, image)

    async with pair(tmp_path) as two:
        data = os.urandom(SIZE)
        root = await two.publish(1, data)
        left = tmp_path / "b" / "v000000001.7.beef.draft"
        left.mkdir(parents=True)
        (left / FILE).write_bytes(header(TENSORS, SIZE) + data)
        monkeypatch.setattr(Manifest, "missing", long)
        fetching = asyncio.create_task(two.fetch(1, root))
        async with asyncio.timeout(60):
            while not begun.is_set():
                await asyncio.sleep(0.01)
        with pytest.raises(Refused, match="does not have version 9"):
            await two.receiver.ask("b/transfer", Offer(version=9, root=b"another"), Offered)
        answered.set()
        assert image_in((await fetching).path) == data


async def test_pull_with_progress_is_never_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "ATTEMPTS", 2)
    monkeypatch.setattr(finding, "RETRY_S", 0.001)
    async with pair(tmp_path) as two:
        network = two.receiver.system.network
        whole, pulls = network.pull, 0

        async def one_chunk(
            source: BulkSource, version: int, ranges: list[Chunk], into: memoryview, **options: object
        ) -> PullResult:
            nonlocal pulls
            pulls += 1
            result: PullResult = await whole(source, version, ranges[:1], into, **options)  # type: ignore[arg-type]
            if len(ranges) > 1:
                raise PullTimeout("the link is slow", ranges[:1])
            return result

        monkeypatch.setattr(network, "pull", one_chunk)
        data = os.urandom(SIZE)
        fetched = await two.fetch(1, await two.publish(1, data))
        assert image_in(fetched.path) == data
        assert (pulls, fetched.pulled_bytes) == (21, SIZE), "one chunk at a time, and none twice"


async def test_pull_without_progress_ends_and_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "ATTEMPTS", 3)
    monkeypatch.setattr(finding, "RETRY_S", 0.001)
    async with pair(tmp_path) as two:

        async def nothing(*_: object, **__: object) -> PullResult:
            raise PullTimeout("nothing arrived")

        monkeypatch.setattr(two.receiver.system.network, "pull", nothing)
        root = await two.publish(1, os.urandom(SIZE))
        with pytest.raises(Refused, match="could not be pulled: nothing arrived"):
            await two.fetch(1, root)
        assert list((tmp_path / "b").iterdir()) == []


async def test_version_with_a_missing_chunk_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "ATTEMPTS", 2)
    monkeypatch.setattr(finding, "RETRY_S", 0.001)
    async with pair(tmp_path) as two:
        network = two.receiver.system.network
        pull = network.pull

        async def all_but_the_last(
            source: BulkSource, version: int, ranges: list[Chunk], into: memoryview, **options: object
        ) -> PullResult:
            result: PullResult = await pull(source, version, ranges[:-1], into, **options)  # type: ignore[arg-type]
            return result

        monkeypatch.setattr(network, "pull", all_but_the_last)
        root = await two.publish(1, os.urandom(SIZE))
        with pytest.raises(Refused, match=f"1 of 21 chunks did not come, the first at {20 * CHUNK}"):
            await two.fetch(1, root)
        assert ImageStore(tmp_path / "b").versions() == []


async def test_source_that_disconnects_is_asked_ever_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source accepts a limited number of pullers and closes all other connections, perhaps a thousand."""
    pauses: list[float] = []
    monkeypatch.setattr(finding, "RETRY_S", 0.001)
    monkeypatch.setattr(finding, "MAX_RETRY_S", 0.02)
    async with pair(tmp_path) as two:

        async def full(*_: object, **__: object) -> PullResult:
            pauses.append(asyncio.get_running_loop().time())
            raise SourceGone("it hung up")

        monkeypatch.setattr(two.receiver.system.network, "pull", full)
        root = await two.publish(1, os.urandom(SIZE))
        with pytest.raises(Refused, match="could not be pulled: it hung up"):
            await two.fetch(1, root)
    between = [later - sooner for sooner, later in pairwise(pauses)]
    assert len(between) == fetching.ATTEMPTS - 1
    assert min(between[-5:]) >= 0.01, "pauses far above the first keep the load low"


async def test_receiver_reports_its_best_rate_after_sharing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[FindSource] = []
    find = Sources.find

    def noted(self: Sources, message: FindSource, *more: object) -> str:
        asked.append(message)
        return find(self, message, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Sources, "find", noted)
    took_s = iter((1.0, 4.0, 1.0))
    async with pair(tmp_path) as two:
        network = two.receiver.system.network
        pull = network.pull

        async def timed(*of: object, **options: object) -> PullResult:
            await pull(*of, **options)  # type: ignore[arg-type]
            return PullResult(32 << 20, 0, next(took_s))

        monkeypatch.setattr(network, "pull", timed)
        for version in (1, 2, 3):
            await two.fetch(version, await two.publish(version, os.urandom(SIZE)))
    last = [message for message in asked if message.version == 3]
    assert [message.down_bytes_s for message in last] == [32 << 20] * len(last)


async def test_dropped_version_is_replaced_by_the_one_before(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as two:
        before, bad = await two.publish(3, os.urandom(SIZE)), await two.publish(4, os.urandom(SIZE))
        await two.fetch(4, bad)
        for name, system in (("a", two.source), ("b", two.receiver)):
            for root in (before, bad):  # the request for another root has no effect
                await system.ask(f"{name}/transfer", DropVersion(version=4, root=root), Done)
        assert ImageStore(tmp_path / "a").versions() == [3]
        assert ImageStore(tmp_path / "b").versions() == []
        with pytest.raises(Refused, match="does not have version 4"):
            await two.source.ask("a/transfer", WhatComes(version=4, root=bad), Fetched)
        await two.publish(5, os.urandom(SIZE))
        assert (await two.fetch(3, before)).pulled_bytes == SIZE
