"""Faults of weight transfers: false offers of relays, full memory, broken deltas.

A receiver ends with the published version, or with a reason and the version that it had."""

import asyncio
import contextlib
import errno
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import xxhash

from gleaner.actors.protocol.weights import DeltaLink, FindSource, Offered
from gleaner.actors.weights.image.draft import is_read
from gleaner.actors.weights.image.store import ImageStore
from gleaner.actors.weights.transfer import fetch as fetching
from gleaner.actors.weights.transfer import source_lookup as finding
from gleaner.actors.weights.transfer.payload import Payload
from gleaner.actors.weights.transfer.waves import Sources
from gleaner.supervisor import Refused
from gleaner.transport.bulk import BulkServer, BulkSource, Chunk, PartialContent, pull
from tests.actors.weights.weight_hosts import CHUNK, CHUNKS, SIZE, SLOW, Hosts, changed, hosts, slow_links


def another(offered: Offered, **fields: object) -> Offered:
    return msgspec.structs.replace(offered, **fields)


FALSE_OFFERS: dict[str, Callable[[Offered], Offered]] = {
    "no manifest": lambda it: another(it, manifest=b"\x93nonsense"),
    "the manifest of something else": lambda it: another(
        it, manifest=it.manifest.replace(b"bfloat16", b"float16_")
    ),
    "no endpoint": lambda it: another(it, endpoint="somewhere"),
    "a port that cannot be": lambda it: another(it, endpoint="tcp://127.0.0.1:9999999"),
    "an endpoint without a listener": lambda it: another(it, endpoint="tcp://127.0.0.1:1"),
    "no token": lambda it: another(it, token=b"short"),
    "a foreign token": lambda it: another(it, token=bytes(len(it.token))),
}


def falsify(all: Hosts, name: str, change: Callable[[Offered], Offered]) -> list[int]:
    """Change all later offers of this host by `change`; returns their count."""
    offers, count = all.agents[name]._offers, [0]
    honest = offers._offered

    def offered(*args: object, **options: object) -> Offered:
        count[0] += 1
        return change(honest(*args, **options))  # type: ignore[arg-type]

    offers._offered = offered  # type: ignore[method-assign]
    return count


@pytest.mark.parametrize("change", FALSE_OFFERS.values(), ids=FALSE_OFFERS.keys())
async def test_relay_with_false_offers_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Offered], Offered]
) -> None:
    monkeypatch.setattr(finding, "RETRY_S", 0.01)
    async with hosts(tmp_path, "abcd", **SLOW) as all:
        data = os.urandom(SIZE)
        root = await all.publish(1, data)
        await all.fetch("b", 1, root)
        count = falsify(all, "b", change)
        slow_links(monkeypatch)
        other = asyncio.create_task(all.fetch("d", 1, root))  # the publisher has one slot
        await asyncio.sleep(0.1)
        fetched = await all.fetch("c", 1, root)
        await other
        assert count[0] >= 1, "no receiver was sent to the false relay"
        assert all.image("c", 1) == data
        assert fetched.pulled_bytes == SIZE


def other_key(offered: Offered) -> Offered:
    links = (DeltaLink(link.table, 1, link.token) for link in offered.deltas)
    return another(offered, deltas=tuple(links))


async def test_delta_under_an_image_key_replaces_no_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosts(tmp_path, "abc") as all:
        old = os.urandom(SIZE)
        new = changed(old, every=100)
        first = await all.publish(1, old)
        await all.fetch("b", 1, first)
        falsify(all, "a", other_key)
        fetched = await all.fetch("b", 2, await all.publish(2, new))
        assert (all.image("b", 2), fetched.deltas) == (new, 0), "the image was pulled whole"
        monkeypatch.setattr(Sources, "find", lambda *_: "b/transfer")
        assert (await all.fetch("c", 1, first)).pulled_bytes == SIZE, "b still serves version 1"
        assert all.image("c", 1) == old


# -- connections --


async def test_pull_continues_from_its_last_chunk_after_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "RETRY_S", 0.01)
    breaks = {CHUNKS // 10, CHUNKS // 2, CHUNKS * 9 // 10}
    landed = Payload.landed
    async with hosts(tmp_path, "ab") as all:

        def come(payload: Payload, chunk: Chunk) -> None:
            landed(payload, chunk)
            if len(payload.done) in breaks:
                breaks.remove(len(payload.done))
                server = all.agents["a"]._server
                for task in server._tasks:
                    if task is not server._accepting:
                        task.cancel()

        monkeypatch.setattr(Payload, "landed", come)
        data = os.urandom(SIZE)
        fetched = await all.fetch("b", 1, await all.publish(1, data))
        assert not breaks
        assert all.image("b", 1) == data
        assert fetched.pulled_bytes == SIZE, "no chunk counts twice"
        assert all.served("a") <= SIZE + 3 * 5 * CHUNK, "a break costs at most the window"


# -- memory --


def fill(monkeypatch: pytest.MonkeyPatch, store: Path) -> list[int]:
    """Report this many free bytes for that store from now on."""
    free = [0]
    monkeypatch.setattr(ImageStore, "_free", lambda self: free[0] if self.directory == store else 1 << 40)
    return free


async def test_host_with_full_memory_waits_for_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "ATTEMPTS", 3)
    monkeypatch.setattr(finding, "RETRY_S", 0.01)
    async with hosts(tmp_path, "ab", delta=False) as all:
        old, new = os.urandom(SIZE), os.urandom(SIZE)
        await all.fetch("b", 1, await all.publish(1, old))
        root = await all.publish(2, new)
        free = fill(monkeypatch, tmp_path / "b")
        with pytest.raises(Refused, match=f"needs {SIZE} bytes, 0 are free: enlarge the file system"):
            await all.fetch("b", 2, root)
        assert all.image("b", 1) == old
        assert [path.name for path in (tmp_path / "b").iterdir()] == ["v000000001"]
        free[0] = 1 << 40
        await all.fetch("b", 2, root)
        assert all.image("b", 2) == new


async def test_host_without_free_memory_asks_ever_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(fetching.asyncio, "sleep", noted)
    async with hosts(tmp_path, "ab") as all:
        root = await all.publish(1, os.urandom(SIZE))
        fill(monkeypatch, tmp_path / "b")
        with pytest.raises(Refused, match="are free"):
            await all.fetch("b", 1, root)
        monkeypatch.undo()
    long = [seconds for seconds in pauses if seconds > finding.RETRY_S]
    assert sum(seconds >= finding.MAX_RETRY_S / 2 for seconds in long) >= fetching.ATTEMPTS // 2


@pytest.mark.realprocess
def test_full_file_system_is_reported_and_keeps_versions(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("an own file system needs root, or a kernel that allows it")
    command = ["unshare", "--mount", sys.executable, "-m", "tests.actors.weights.small_memory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"needs {SIZE} bytes" in done.stdout
    assert "enlarge the file system (mount -o remount,size=...)" in done.stdout
    assert done.stdout.endswith("DONE\n")


async def test_source_is_not_blamed_for_receiver_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "ATTEMPTS", 3)
    monkeypatch.setattr(finding, "RETRY_S", 0.01)
    asked: list[FindSource] = []
    find = Sources.find

    def noted(self: Sources, message: FindSource, *more: object) -> str:
        asked.append(message)
        find(self, message, *more)  # type: ignore[arg-type]
        return "b/transfer" if message.receiver.name == "c/transfer" else "a/transfer"

    monkeypatch.setattr(Sources, "find", noted)
    async with hosts(tmp_path, "abc") as all:
        root = await all.publish(1, os.urandom(SIZE))
        await all.fetch("b", 1, root)
        fill(monkeypatch, tmp_path / "c")
        with pytest.raises(Refused, match="are free"):
            await all.fetch("c", 1, root)
    of_c = [message for message in asked if message.receiver.name == "c/transfer"]
    assert len(of_c) >= 2
    assert [message.excluded for message in of_c] == [()] * len(of_c)


async def test_image_without_space_for_its_note_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.parent.parent == tmp_path / "b" and path.suffix == ".tmp":
            write(path, data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    async with hosts(tmp_path, "ab") as all:
        data = os.urandom(SIZE)
        root = await all.publish(1, data)
        life = all.agents["b"]
        await all.fetch("b", 1, root)
        assert all.image("b", 1) == data
        assert all.agents["b"] is life, "the agent is alive"
        assert [path.name for path in (tmp_path / "b").rglob("*")] == ["v000000001", "model.safetensors"]


# -- deltas --


async def test_damaged_delta_falls_back_to_the_full_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosts(tmp_path, "abc") as all:
        old = os.urandom(SIZE)
        new, third = changed(old, every=100), changed(old, every=77)
        roots = [await all.publish(1, old), await all.publish(2, new)]
        await all.fetch("b", 1, roots[0])
        making = all.agents["a"]._deltas
        if (event := making.being_made(2)) is not None:
            await event.wait()
        kept = next(iter(making._kept._kept.values()))
        spoilt = memoryview(bytes(len(kept.payload)))
        all.agents["a"]._server.publish(kept.key, spoilt)
        fetched = await all.fetch("b", 2, roots[1])
        assert (all.image("b", 2), fetched.deltas) == (new, 0)
        fetched = await all.fetch("b", 3, await all.publish(3, third))
        assert (all.image("b", 3), fetched.deltas) == (third, 1), "the next delta is sound"


async def test_broken_chain_falls_back_to_the_full_image(tmp_path: Path) -> None:
    async with hosts(tmp_path, "ab") as all:
        data = os.urandom(SIZE)
        await all.fetch("b", 1, await all.publish(1, data))
        for version in (2, 3):
            data = changed(data, every=100 + version)
            root = await all.publish(version, data)
            if (event := all.agents["a"]._deltas.being_made(version)) is not None:
                await event.wait()
        del all.agents["a"]._deltas._kept._kept[2]
        fetched = await all.fetch("b", 3, root)
        assert (all.image("b", 3), fetched.deltas, fetched.pulled_bytes) == (data, 0, SIZE)


# -- versions in memory at a time --


async def test_evicted_version_is_held_by_no_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_links(monkeypatch)
    gc.disable()  # a reference cycle keeps its memory until a collection
    try:
        async with hosts(tmp_path, "abc", **SLOW, delta=False) as all:
            for version in range(1, 6):
                root = await all.publish(version, os.urandom(SIZE))
                await asyncio.gather(*(all.fetch(name, version, root) for name in "bc"))
            for name in "abc":
                async with asyncio.timeout(20):
                    while is_read(tmp_path / name / "v000000003"):
                        await asyncio.sleep(0.01)
                assert not is_read(tmp_path / name / "v000000001")
    finally:
        gc.enable()


async def test_version_published_during_its_own_pull_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that lost its power pulls a version that its trainer then publishes there."""
    slow_links(monkeypatch)
    async with hosts(tmp_path, "abc", **SLOW, delta=False) as all:
        data = os.urandom(SIZE)
        root = await all.publish(1, data)
        pulling = asyncio.create_task(all.fetch("b", 1, root))
        async with asyncio.timeout(20):
            while not all.served("a"):
                await asyncio.sleep(0.005)
        assert await all.publish(1, data, host="b") == root
        all.systems["a"].kill("a/transfer")  # the pull breaks off
        await pulling
        fetched = await all.fetch("c", 1, root, source="b")
        assert (all.image("c", 1), fetched.pulled_bytes) == (data, SIZE)


async def test_chunk_of_a_sealing_image_is_requested_again() -> None:
    server, memory = BulkServer(), memoryview(bytearray(range(64)))
    await server.start()
    partial = PartialContent(memory)
    partial.landed(0, 64)
    server.publish(1, partial)
    memory.release()
    asyncio.get_running_loop().call_later(0.1, server.publish, 1, memoryview(bytes(range(64))))
    into, digest = bytearray(64), xxhash.xxh3_128(bytes(range(64))).digest()
    source = BulkSource(server.endpoint, server.issue_token(1))
    try:
        await pull(source, 1, [Chunk(0, 64, digest)], memoryview(into), deadline_s=60)
    finally:
        await server.close()
    assert into == bytes(range(64))


async def test_storm_of_versions_and_deaths_keeps_memory_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_links(monkeypatch)
    async with hosts(tmp_path, "abc", **SLOW, delta=False) as all:
        stores = [tmp_path / name for name in "bc"]
        most = [0]

        async def look() -> None:
            while True:
                for store in stores:
                    with contextlib.suppress(FileNotFoundError):  # an image is being renamed
                        most[0] = max(most[0], sum(image.stat().st_size for image in store.glob("*/model*")))
                await asyncio.sleep(0.002)

        looking = asyncio.create_task(look())
        data = b""
        for version in range(1, 7):
            data = os.urandom(SIZE)
            root = await all.publish(version, data)
            pulls = [asyncio.create_task(all.fetch(name, version, root)) for name in "bc"]
            await asyncio.sleep(0.15)
            victim = "bc"[version % 2]
            all.systems[victim].kill(f"{victim}/transfer")
            all.start(victim)
            if version % 3 == 0:
                await asyncio.gather(*pulls, return_exceptions=True)
            for pull in pulls:
                pull.cancel()
        await asyncio.gather(*(all.fetch(name, 6, root) for name in "bc"))
        looking.cancel()
        assert [all.image(name, 6) for name in "bc"] == [data] * 2
        assert SIZE < most[0] <= 3 * SIZE + CHUNK
