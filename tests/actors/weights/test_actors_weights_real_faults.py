"""Faults of weight transfers between real processes: kills, bad memory, races.

A receiver ends with the published version, and pulls nothing again that it has.
"""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gleaner.actors.protocol.weights import Fetch
from gleaner.actors.weights.image.reader_locks import ReaderLock
from gleaner.actors.weights.transfer import source_lookup as finding
from gleaner.supervisor import Refused
from gleaner.transport.bulk_frames import ANSWER_BYTES
from tests.actors.weights import weight_hosts
from tests.actors.weights.cutting_proxy import cutting
from tests.actors.weights.real_hosts import (
    CHAINS,
    CHUNK,
    HEADER,
    SIZE,
    SLOW,
    Forks,
    forks,
    real_hosts,
)
from tests.actors.weights.test_actors_weights_faults import falsify
from tests.actors.weights.weight_hosts import changed
from tests.actors.weights.weight_hosts import hosts as hosts_in_here

pytestmark = pytest.mark.realprocess
WINDOW = 4


@pytest.fixture(scope="module")
def forked() -> Iterator[Forks]:
    with forks() as started:
        yield started


async def test_killed_publisher_resends_only_missing_chunks(tmp_path: Path, forked: Forks) -> None:
    async with real_hosts(tmp_path, forked, "abc", **CHAINS, **SLOW) as hosts:
        fetch, pulls = await hosts.hit("a", "bc")
        had = sum(hosts.chunks(name, fetch.version) for name in "bc")
        hosts.start("a", **CHAINS)
        fetched = await asyncio.gather(*pulls.values())
        assert [hosts.image(name, fetch.version) for name in "bc"] == [hosts.published[fetch.version]] * 2
        assert [one.pulled_bytes for one in fetched] == [SIZE] * 2, "no chunk counts twice"
        figures = [await hosts.figures(name) for name in "bc"]
        resumed = sum(int(one["pulls_resumed"]) for one in figures)
        assert resumed >= 1
        served = int((await hosts.figures("a"))["served_bytes"])
        assert served <= 2 * SIZE - had * CHUNK + resumed * WINDOW * CHUNK


async def test_killed_receiver_pulls_no_kept_chunk_again(tmp_path: Path, forked: Forks) -> None:
    async with real_hosts(tmp_path, forked, "ab", **SLOW) as hosts:
        fetch, pulls = await hosts.hit("b", "b")
        pulls["b"].cancel()
        left = hosts.chunks("b", fetch.version)
        hosts.start("b")
        await hosts.up("b")
        fetched = await hosts.pull("b", fetch)
        assert hosts.image("b", fetch.version) == hosts.published[fetch.version]
        assert fetched.pulled_bytes == SIZE - left * CHUNK


async def test_relay_with_corrupted_memory_is_abandoned(tmp_path: Path, forked: Forks) -> None:
    async with real_hosts(tmp_path, forked, "ab", **CHAINS) as hosts:
        fetch = await hosts.publish(1, os.urandom(SIZE))
        await hosts.pull("b", fetch)
        hosts.look()
        with hosts.path("b", 1).open("r+b") as image:
            image.seek(HEADER + SIZE // 2)
            image.write(os.urandom(SIZE // 2))
        hosts.start("d", **CHAINS, pull_limit_bytes_s=CHUNK)
        await hosts.up("d")
        slot = asyncio.create_task(hosts.pull("d", fetch))  # the publisher has one slot
        await hosts.until(lambda: hosts.chunks("d", 1), "the slot is taken")
        hosts.start("c", **CHAINS)
        await hosts.up("c")
        pull = asyncio.create_task(hosts.pull("c", fetch))
        await hosts.until(lambda: "wrong ones in a row" in hosts.log("c"), "c detects the relay")
        hosts.kill("d")
        slot.cancel()
        fetched = await pull
        assert hosts.image("c", 1) == hosts.published[1]
        assert fetched.pulled_bytes == SIZE, "correct chunks are kept"
        assert (await hosts.figures("c"))["chunks_pulled_again"] >= 3, "the count shows a false source"
        before = (await hosts.figures("b"))["served_bytes"]
        assert before >= SIZE // 2
        hosts.start("e", **CHAINS)
        await hosts.up("e")
        await hosts.pull("e", fetch)
        assert hosts.image("e", 1) == hosts.published[1]
        assert (await hosts.figures("b"))["served_bytes"] == before


async def test_newest_of_three_quick_versions_arrives_unmixed(tmp_path: Path, forked: Forks) -> None:
    async with real_hosts(tmp_path, forked, "a", **CHAINS) as hosts:
        for name in "bc":
            hosts.start(name, **CHAINS, pull_limit_bytes_s=CHUNK)
        await hosts.up(*"bc")
        data = os.urandom(SIZE)
        first = await (await hosts.hand_over(1, data)).known()
        old = Fetch(version=1, root=first.root, sources=("a/transfer",))
        overtaken = [asyncio.create_task(hosts.pull(name, old)) for name in "bc"]
        await hosts.until(lambda: all(hosts.chunks(name, 1) for name in "bc"), "both have a part")
        handed = [await hosts.hand_over(version, changed(data, every=version)) for version in (2, 3, 4)]
        newest = await handed[-1].known()
        fetch = Fetch(version=4, root=newest.root, sources=("a/transfer",))
        pulls = [asyncio.create_task(hosts.pull(name, fetch)) for name in "bc"]
        for outcome in await asyncio.gather(*overtaken, return_exceptions=True):
            assert isinstance(outcome, Refused)
            assert "version 4 is wanted here instead of 1" in str(outcome)
        for name in "bc":
            hosts.kill(name)
            hosts.start(name, **CHAINS)
        await asyncio.gather(*pulls, return_exceptions=True)
        await hosts.up(*"bc")
        await asyncio.gather(*(hosts.pull(name, fetch) for name in "bc"))
        assert [hosts.image(name, 4) for name in "bc"] == [hosts.published[4]] * 2


async def test_host_that_joins_meanwhile_gets_the_new_version(tmp_path: Path, forked: Forks) -> None:
    async with real_hosts(tmp_path, forked, "abc", **CHAINS, **SLOW) as hosts:
        first = await hosts.publish(1, os.urandom(SIZE))
        await asyncio.gather(*(hosts.pull(name, first) for name in "bc"))
        served = [ReaderLock(hosts.path(name, 1)) for name in "bc"]  # as an engine leases it
        second = await hosts.publish(2, os.urandom(SIZE))
        pulls = [asyncio.create_task(hosts.pull(name, second)) for name in "bc"]
        await hosts.until(lambda: hosts.chunks("c", 2), "they change over")
        hosts.start("d", **CHAINS, **SLOW)
        await hosts.up("d")
        late = await hosts.pull("d", second)
        await asyncio.gather(*pulls)
        assert late.pulled_bytes == SIZE
        assert [hosts.image(name, 2) for name in "bcd"] == [hosts.published[2]] * 3
        assert [hosts.image(name, 1) for name in "bc"] == [hosts.published[1]] * 2, (
            "version 1 is still served"
        )
        for lease in served:
            lease.close()


def points() -> list[int]:
    """The cut points: at and beside the borders of headers and chunks, and random ones."""
    borders = [0, 1, ANSWER_BYTES, ANSWER_BYTES + 1, ANSWER_BYTES + CHUNK - 1, ANSWER_BYTES + CHUNK]
    rng = random.Random(7)
    return [*borders, *(rng.randrange(2 * CHUNK) for _ in range(20 - len(borders)))]


async def test_cut_connection_resends_no_complete_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "RETRY_S", 0.01)
    async with hosts_in_here(tmp_path, "ab", delta=False) as hosts:
        data = os.urandom(weight_hosts.SIZE)
        root = await hosts.publish(1, data)
        async with cutting(hosts.agents["a"]._server.endpoint, points()) as proxy:
            falsify(hosts, "a", lambda offered: msgspec.structs.replace(offered, endpoint=proxy.endpoint))
            fetched = await hosts.fetch("b", 1, root)
            assert proxy.cuts == len(points())
        assert hosts.image("b", 1) == data
        assert fetched.pulled_bytes == len(data), "no chunk counts twice"
        assert hosts.served("a") <= len(data) + proxy.cuts * (WINDOW + 1) * CHUNK


@pytest.mark.alone
@pytest.mark.long
def test_full_memory_and_disk_cost_only_unfit_versions(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("an own file system needs root, or a kernel that allows it")
    command = ["unshare", "--mount", sys.executable, "-m", "tests.actors.weights.full_hosts", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("DONE\n")
