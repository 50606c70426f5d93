"""Spread of versions over hosts: deltas, relays, and full images as the fallback.

A served image equals the published one bit for bit, whatever component dies or sends wrong data."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import xxhash

from gleaner.actors.protocol.weights import FindSource, HostLeaves
from gleaner.actors.weights import agent
from gleaner.actors.weights.delta import estimate as delta_sample
from gleaner.actors.weights.delta import image_delta as delta
from gleaner.actors.weights.image.draft import FILE
from gleaner.actors.weights.image.safetensors_file import header
from gleaner.actors.weights.image.store import ImageStore
from gleaner.actors.weights.transfer import source_lookup as finding
from gleaner.actors.weights.transfer.waves import Sources
from gleaner.supervisor import Refused
from gleaner.transport.bulk_server import BulkServer
from gleaner.transport.carrier import Connection
from tests.actors.weights.weight_hosts import CHUNK, SIZE, SLOW, TENSORS, changed, hosts, slow_links


async def test_host_one_version_behind_pulls_only_changes(tmp_path: Path) -> None:
    async with hosts(tmp_path, "ab") as all:
        old = os.urandom(SIZE)
        new = changed(old, every=100)
        assert (await all.fetch("b", 1, await all.publish(1, old))).deltas == 0
        fetched = await all.fetch("b", 2, await all.publish(2, new))
        assert all.image("b", 2) == new
        assert fetched.deltas == 1
        assert fetched.pulled_bytes < SIZE / 20, "one element of a hundred changed"


async def test_deltas_use_the_threads_of_their_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, set[str]] = {"made": set(), "applied": set()}
    encode, put = delta.encode_chunk, delta.apply_chunk

    def encoding(*args: Any, **kwargs: Any) -> Any:
        seen["made"].add(threading.current_thread().name)
        return encode(*args, **kwargs)

    def applying(*args: Any, **kwargs: Any) -> None:
        seen["applied"].add(threading.current_thread().name)
        put(*args, **kwargs)

    monkeypatch.setattr(delta, "encode_chunk", encoding)
    monkeypatch.setattr(delta, "apply_chunk", applying)
    async with hosts(tmp_path, "ab", delta_threads=2) as two:
        old = os.urandom(SIZE)
        new = changed(old, every=100)
        await two.fetch("b", 1, await two.publish(1, old))
        assert (await two.fetch("b", 2, await two.publish(2, new))).deltas == 1
        assert two.image("b", 2) == new
    for names in seen.values():
        assert names
        assert all(name.startswith("delta_") for name in names), names


async def test_host_that_missed_versions_gets_a_delta_chain(tmp_path: Path) -> None:
    async with hosts(tmp_path, "ab") as all:
        data = os.urandom(SIZE)
        await all.fetch("b", 1, await all.publish(1, data))
        for version in (2, 3):
            data = changed(data, every=100 + version)
            root = await all.publish(version, data)
        fetched = await all.fetch("b", 3, root)
        assert (all.image("b", 3), fetched.deltas) == (data, 2)


async def test_full_image_is_pulled_without_a_useful_delta(tmp_path: Path) -> None:
    for number, settings in enumerate(({}, {"delta": False}, {"kept_delta_bytes": 0})):
        async with hosts(tmp_path / str(number), "ab", **settings) as all:
            old = os.urandom(SIZE)
            new = changed(old, every=100) if settings else os.urandom(SIZE)
            await all.fetch("b", 1, await all.publish(1, old))
            fetched = await all.fetch("b", 2, await all.publish(2, new))
            assert (all.image("b", 2), fetched.deltas, fetched.pulled_bytes) == (new, 0, SIZE)


async def test_pull_of_full_change_waits_for_no_delta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_sample, "SAMPLED", 1.0)  # this image is too small for the sample
    monkeypatch.setattr(agent, "DELTA_LATE_S", 3600.0)
    may_end = threading.Event()

    def long(*_: object, **how: object) -> object:
        assert may_end.wait(60.0), "a pull waited for the delta"
        raise AssertionError("a chunk of the delta was encoded")

    monkeypatch.setattr(delta, "encode_chunk", long)
    async with hosts(tmp_path, "ab") as all:
        old, new = os.urandom(SIZE), os.urandom(SIZE)
        await all.fetch("b", 1, await all.publish(1, old))
        fetched = await all.fetch("b", 2, await all.publish(2, new))
        may_end.set()
        assert (all.image("b", 2), fetched.deltas, fetched.pulled_bytes) == (new, 0, SIZE)
        assert all.agents["a"]._deltas.being_made(2) is None


@pytest.mark.parametrize("rotten", [5, 15], ids=["where it changes", "where it does not"])
async def test_rotten_base_falls_back_to_the_full_image(tmp_path: Path, rotten: int) -> None:
    async with hosts(tmp_path, "ab") as all:
        old = os.urandom(SIZE)
        new = changed(old[: 9 * CHUNK], every=100) + old[9 * CHUNK :]
        await all.fetch("b", 1, await all.publish(1, old))
        with ImageStore(tmp_path / "b").path(1).open("r+b") as image:
            image.seek(rotten * CHUNK + 11)
            image.write(b"rotten")
        fetched = await all.fetch("b", 2, await all.publish(2, new))
        assert (all.image("b", 2), fetched.deltas) == (new, 0)


async def test_agent_without_its_deltas_serves_the_full_image(tmp_path: Path) -> None:
    async with hosts(tmp_path, "ab") as all:
        old = os.urandom(SIZE)
        new = changed(old, every=100)
        await all.fetch("b", 1, await all.publish(1, old))
        root = await all.publish(2, new)
        all.systems["a"].kill("a/transfer")
        all.start("a")
        fetched = await all.fetch("b", 2, root)
        assert (all.image("b", 2), fetched.deltas) == (new, 0)


async def test_killed_receiver_continues_with_its_chunks(tmp_path: Path) -> None:
    async with hosts(tmp_path, "ab") as all:
        data = os.urandom(SIZE)
        root = await all.publish(1, data)
        had = bytearray(data[: 10 * CHUNK] + bytes(SIZE - 10 * CHUNK))
        had[3 * CHUNK] ^= 1  # the pull was in the middle of this chunk
        left = tmp_path / "b" / "v000000001.7.beef.draft"
        left.mkdir()
        (left / FILE).write_bytes(header(TENSORS, SIZE) + had)
        fetched = await all.fetch("b", 1, root)
        assert all.image("b", 1) == data
        assert fetched.pulled_bytes == SIZE - 9 * CHUNK


async def test_damaged_chunks_are_found_before_they_are_served(
    tmp_path: Path,
) -> None:
    async with hosts(tmp_path, "ab") as all:
        data = os.urandom(SIZE)
        root = await all.publish(1, data)
        rotten = [0, 11, SIZE // CHUNK - 1]
        had = bytearray(data)
        for chunk in rotten:
            had[(chunk + 1) * CHUNK - 1] ^= 0x80
        left = tmp_path / "b" / "v000000001.7.beef.draft"
        left.mkdir()
        (left / FILE).write_bytes(header(TENSORS, SIZE) + had)
        fetched = await all.fetch("b", 1, root)
        assert all.image("b", 1) == data
        assert fetched.pulled_bytes == len(rotten) * CHUNK, "all other chunks were correct and kept"


async def test_kept_and_pulled_bytes_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = {"found": 0, "pulled": 0}
    digest, hasher = xxhash.xxh3_128_digest, xxhash.xxh3_128

    def at_once(data: memoryview) -> bytes:
        read["found"] += len(data)
        return digest(data)

    class Piecewise:
        def __init__(self) -> None:
            self._hasher = hasher()

        def update(self, data: memoryview) -> None:
            read["pulled"] += len(data)
            self._hasher.update(data)

        def digest(self) -> bytes:
            return self._hasher.digest()

    async with hosts(tmp_path, "abc") as all:
        data = os.urandom(SIZE)
        root = await all.publish(1, data)
        left = tmp_path / "c" / "v000000001.7.beef.draft"
        left.mkdir(parents=True)
        (left / FILE).write_bytes(header(TENSORS, SIZE) + data[:-CHUNK] + bytes(CHUNK))
        monkeypatch.setattr(xxhash, "xxh3_128_digest", at_once)
        monkeypatch.setattr(xxhash, "xxh3_128", Piecewise)
        await all.fetch("b", 1, root)
        assert read == {"found": 0, "pulled": SIZE}
        await all.fetch("c", 1, root)
        assert read == {"found": SIZE, "pulled": SIZE + CHUNK}
        assert all.image("b", 1) == all.image("c", 1) == data


async def test_receivers_relay_and_publisher_sends_about_one_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_links(monkeypatch)
    async with hosts(tmp_path, "abcd", **SLOW) as all:
        data = os.urandom(SIZE)
        root = await all.publish(1, data)
        await asyncio.gather(*(all.fetch(name, 1, root) for name in "bcd"))
        assert [all.image(name, 1) for name in "bcd"] == [data] * 3
        assert all.served("a") < 2 * SIZE, "a star would have sent three copies"
        assert sum(all.served(name) for name in "bcd") > SIZE


async def test_deltas_are_relayed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_source, find, look_up = dict.fromkeys("bc", True), Sources.find, BulkServer._look_up

    def finds(sources: Sources, question: FindSource, *args: Any) -> str:
        source = find(sources, question, *args)
        has_source[question.receiver.name[0]] |= bool(source)
        return source

    async def looks_up(server: BulkServer, connection: Connection, *args: Any) -> Any:
        while not all(has_source.values()):  # the first receiver pulls until the other one has a source
            await connection.on_loop(asyncio.sleep(0.01))
        return await look_up(server, connection, *args)

    monkeypatch.setattr(Sources, "find", finds)
    monkeypatch.setattr(BulkServer, "_look_up", looks_up)
    async with hosts(tmp_path, "abc", **SLOW) as three:
        old = os.urandom(SIZE)
        new = changed(old, every=10)
        root = await three.publish(1, old)
        for name in "bc":
            await three.fetch(name, 1, root)
        before = three.served("b") + three.served("c")
        root = await three.publish(2, new)
        has_source.update(b=False, c=False)
        fetched = await asyncio.gather(*(three.fetch(name, 2, root) for name in "bc"))
        assert [one.deltas for one in fetched] == [1, 1]
        assert [three.image(name, 2) for name in "bc"] == [new] * 2
        assert three.served("b") + three.served("c") > before, "one receiver pulled from the other"


async def test_relay_death_costs_only_chunks_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_links(monkeypatch)
    async with hosts(tmp_path, "abc", **SLOW) as all:
        data = os.urandom(SIZE)
        root = await all.publish(1, data)
        pulls = [asyncio.create_task(all.fetch("b", 1, root))]
        await asyncio.sleep(0.1)
        pulls.append(asyncio.create_task(all.fetch("c", 1, root)))
        async with asyncio.timeout(60):
            while all.served("b") < 3 * CHUNK:
                await asyncio.sleep(0.01)
        all.systems["b"].kill("b/transfer")
        pulls[0].cancel()
        fetched = await pulls[1]
        assert all.image("c", 1) == data
        assert fetched.pulled_bytes == SIZE, "no received chunk was pulled again"


async def test_publisher_death_costs_only_chunks_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_links(monkeypatch)
    async with hosts(tmp_path, "abc", **SLOW) as all:
        data = os.urandom(SIZE)
        root = await all.publish(1, data)
        pulls = [asyncio.create_task(all.fetch(name, 1, root)) for name in "bc"]
        async with asyncio.timeout(60):
            while all.served("a") < 5 * CHUNK:
                await asyncio.sleep(0.01)
        all.systems["a"].kill("a/transfer")
        await asyncio.sleep(0.2)
        all.start("a")
        fetched = await asyncio.gather(*pulls)
        assert [all.image(name, 1) for name in "bc"] == [data] * 2
        assert [one.pulled_bytes for one in fetched] == [SIZE] * 2, "no received chunk was pulled again"


async def test_receiver_without_a_source_falls_back_to_publisher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sources, "find", lambda *_: "")
    monkeypatch.setattr(finding, "NO_SOURCE_S", 0.8)
    async with hosts(tmp_path, "ab") as all:
        data = os.urandom(SIZE)
        await all.fetch("b", 1, await all.publish(1, data))
        assert all.image("b", 1) == data


async def test_newer_version_replaces_one_that_hardly_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_links(monkeypatch)
    async with hosts(tmp_path, "ab") as all:
        old, new = os.urandom(SIZE), os.urandom(SIZE)
        roots = [await all.publish(1, old), await all.publish(2, new)]
        older = asyncio.create_task(all.fetch("b", 1, roots[0]))
        async with asyncio.timeout(60):
            while all.served("a") < 3 * CHUNK:
                await asyncio.sleep(0.01)
        newer = asyncio.create_task(all.fetch("b", 2, roots[1]))
        with pytest.raises(Refused, match="version 2 is wanted here instead of 1"):
            await older
        await newer
        assert all.image("b", 2) == new
        assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["v000000002"]
        again = await all.fetch("b", 1, roots[0])  # a repeated request for the older version gets it
        assert (all.image("b", 1), again.pulled_bytes) == (old, SIZE)


async def test_false_relay_is_abandoned_and_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_links(monkeypatch)
    async with hosts(tmp_path, "abcd", **SLOW) as all:
        data = os.urandom(SIZE)
        root = await all.publish(1, data)
        await all.fetch("b", 1, root)
        with ImageStore(tmp_path / "b").path(1).open("r+b") as image:  # wrong from here on
            for at in range(0, SIZE, CHUNK):
                image.seek(at - SIZE, os.SEEK_END)
                image.write(b"a lie")
        other = asyncio.create_task(all.fetch("d", 1, root))  # the publisher has one slot
        await asyncio.sleep(0.1)
        fetched = await all.fetch("c", 1, root)
        await other
        assert all.image("c", 1) == data
        assert fetched.pulled_bytes == SIZE
        assert all.served("b") <= 3 * 4 * CHUNK, "a chunk's three tries, each with its window"


async def test_one_copy_travels_between_datacenters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_links(monkeypatch)
    async with hosts(tmp_path, "abcd", far="bcd") as all:
        data = os.urandom(SIZE)
        root = await all.publish(1, data)
        await asyncio.gather(*(all.fetch(name, 1, root) for name in "bcd"))
        assert [all.image(name, 1) for name in "bcd"] == [data] * 3
        assert all.served("a") == SIZE


async def test_host_with_notice_gets_no_receivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_links(monkeypatch)
    async with hosts(tmp_path, "abcd", **SLOW) as all:
        data = os.urandom(SIZE)
        root = await all.publish(1, data)
        await all.fetch("b", 1, root)
        await all.systems["b"].tell("b/transfer", HostLeaves(leaves=True))
        await asyncio.sleep(0.1)
        await asyncio.gather(*(all.fetch(name, 1, root) for name in "cd"))
        assert all.image("d", 1) == data
        assert all.served("b") == 0, "one had the publisher's slot, the other pulled from it"
