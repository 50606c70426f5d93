"""What goes wrong on a version's way: relays that lie in all they say, memory that is full, deltas that are
none. Who pulls ends with what was published, or with a sentence and what it had before."""

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


LIES: dict[str, Callable[[Offered], Offered]] = {
    "no manifest": lambda it: another(it, manifest=b"\x93nonsense"),
    "the manifest of something else": lambda it: another(
        it, manifest=it.manifest.replace(b"bfloat16", b"float16_")
    ),
    "no endpoint": lambda it: another(it, endpoint="somewhere"),
    "a port that cannot be": lambda it: another(it, endpoint="tcp://127.0.0.1:9999999"),
    "an endpoint where nobody is": lambda it: another(it, endpoint="tcp://127.0.0.1:1"),
    "no token": lambda it: another(it, token=b"short"),
    "somebody else's token": lambda it: another(it, token=bytes(len(it.token))),
}


def lies(all: Hosts, name: str, lie: Callable[[Offered], Offered]) -> list[int]:
    """Whatever this host offers from now on goes through `lie`; how often it did."""
    offering, told = all.agents[name]._offering, [0]
    honest = offering._offered

    def offered(*args: object, **options: object) -> Offered:
        told[0] += 1
        return lie(honest(*args, **options))  # type: ignore[arg-type]

    offering._offered = offered  # type: ignore[method-assign]
    return told


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_a_relay_that_lies_in_all_it_says_is_left_and_who_pulls_has_the_version_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Callable[[Offered], Offered]
) -> None:
    monkeypatch.setattr(finding, "RETRY_S", 0.01)
    async with hosts(tmp_path, "abcd", **SLOW) as all:
        data = os.urandom(SIZE)
        root = await all.publish(1, data)
        await all.fetch("b", 1, root)
        told = lies(all, "b", lie)
        slow_links(monkeypatch)
        other = asyncio.create_task(all.fetch("d", 1, root))  # the publisher has one slot
        await asyncio.sleep(0.1)
        fetched = await all.fetch("c", 1, root)
        await other
        assert told[0] >= 1, "nobody was sent to the liar"
        assert all.image("c", 1) == data
        assert fetched.pulled_bytes == SIZE


def other_key(offered: Offered) -> Offered:
    links = (DeltaLink(link.table, 1, link.token) for link in offered.deltas)
    return another(offered, deltas=tuple(links))


async def test_a_delta_under_the_key_of_an_image_does_not_take_the_image_s_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosts(tmp_path, "abc") as all:
        old = os.urandom(SIZE)
        new = changed(old, every=100)
        first = await all.publish(1, old)
        await all.fetch("b", 1, first)
        lies(all, "a", other_key)
        fetched = await all.fetch("b", 2, await all.publish(2, new))
        assert (all.image("b", 2), fetched.deltas) == (new, 0), "it was pulled whole"
        monkeypatch.setattr(Sources, "find", lambda *_: "b/transfer")
        assert (await all.fetch("c", 1, first)).pulled_bytes == SIZE, "b serves version 1 as before"
        assert all.image("c", 1) == old


# -- connections --


async def test_a_pull_whose_connection_breaks_again_and_again_goes_on_from_its_last_chunk(
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
        assert all.served("a") <= SIZE + 3 * 5 * CHUNK, "the window is what a break costs"


# -- memory --


def fill(monkeypatch: pytest.MonkeyPatch, store: Path) -> list[int]:
    """From now on that store has so many bytes free."""
    free = [0]
    monkeypatch.setattr(ImageStore, "_free", lambda self: free[0] if self.directory == store else 1 << 40)
    return free


async def test_a_host_whose_memory_is_full_says_so_keeps_what_it_has_and_goes_on_when_there_is_room(
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


async def test_a_host_without_room_asks_ever_more_seldom(
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
def test_a_real_file_system_that_is_full_is_told_of_and_what_was_there_stays(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("a file system of one's own needs root, or a kernel that lends it")
    command = ["unshare", "--mount", sys.executable, "-m", "tests.actors.weights.small_memory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"needs {SIZE} bytes" in done.stdout
    assert "enlarge the file system (mount -o remount,size=...)" in done.stdout
    assert done.stdout.endswith("DONE\n")


async def test_nobody_is_blamed_for_the_full_memory_of_another(
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


async def test_an_image_whose_note_finds_no_room_is_served_all_the_same(
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
        assert all.agents["b"] is life, "it lives"
        assert [path.name for path in (tmp_path / "b").rglob("*")] == ["v000000001", "model.safetensors"]


# -- deltas --


async def test_a_delta_that_is_damaged_where_it_is_made_gives_way_to_the_whole_image(
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
        assert (all.image("b", 3), fetched.deltas) == (third, 1), "the next one is sound"


async def test_a_chain_that_lacks_a_link_gives_way_to_the_whole_image(tmp_path: Path) -> None:
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


# -- what is there at a time --


async def test_a_version_that_made_way_is_held_by_nobody_who_pulled_it_or_passed_it_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_links(monkeypatch)
    gc.disable()  # what a circle holds is held, until somebody collects those
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


async def test_a_chunk_whose_image_is_sealed_in_this_moment_is_asked_for_again() -> None:
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


async def test_in_a_storm_of_versions_and_deaths_a_receiver_has_two_images_and_the_one_that_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_links(monkeypatch)
    async with hosts(tmp_path, "abc", **SLOW, delta=False) as all:
        stores = [tmp_path / name for name in "bc"]
        most = [0]

        async def look() -> None:
            while True:
                for store in stores:
                    with contextlib.suppress(FileNotFoundError):  # one is renamed in this moment
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
