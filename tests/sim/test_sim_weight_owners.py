"""Versions that two hosts publish in parts, in the simulator.

The served version is the published one, also when an owner dies during a pull.
"""

import asyncio
import random
from collections.abc import Mapping

import pytest

from gleaner.actors.model.byte_ranges import Run, cut
from gleaner.actors.protocol.rollout import PublishVersion, Weights
from gleaner.actors.protocol.weights import JoinDelta, OpenPart, PartIsOpen, PartWritten, Published
from gleaner.actors.weights.delta.cache import DELTA
from gleaner.actors.weights.image.manifest import Manifest, hashed
from gleaner.supervisor import Actor, handles
from tests.sim.simulated_weights import CHUNK, CHUNKS, SIZE, TENSORS, SimulatedWeights

HALF = SIZE // 2
OWNERS = {"a": Run(0, HALF), "b": Run(HALF, SIZE - HALF)}


class Manager(Actor):
    """Accepts every announcement."""

    def __init__(self) -> None:
        self.announced: list[Weights] = []

    @handles(PublishVersion)
    async def publish(self, message: PublishVersion) -> None:
        self.announced.append(message.weights)


def world_of(names: str, **settings: object) -> SimulatedWeights:
    world = SimulatedWeights(names, settings)
    system = world.client.system
    assert system is not None
    world.client.process.call_soon(lambda: system.spawn("rollout/manager", Manager))
    return world


def announced(world: SimulatedWeights) -> list[tuple[str, ...]]:
    """The sources of each announced version, in order."""
    system = world.client.system
    assert system is not None
    cell = system.cell("rollout/manager")
    assert cell is not None
    assert isinstance(cell.actor, Manager)
    return [weights.sources for weights in cell.actor.announced]


async def publish(
    world: SimulatedWeights, data: bytes, version: int = 1, owners: Mapping[str, Run] = OWNERS
) -> bytes:
    """Each owner's only rank writes its part; returns the root of the whole."""
    system = world.client.system
    assert system is not None
    whole = OpenPart(version=version, tensors=TENSORS, image_bytes=SIZE)

    async def one(rank: int, host: str, run: Run) -> bytes:
        to = f"{host}/transfer"
        await system.ask(to, whole, deadline_s=10.0, expect=PartIsOpen)
        draft = world.agent(host)._parts._here[version].draft  # as a rank maps a file
        assert draft is not None
        draft.view[run.offset : run.end] = data[run.offset : run.end]
        written = PartWritten(
            version=version,
            tensors=TENSORS,
            image_bytes=SIZE,
            model_config=b"{}",
            rank=rank,
            ranks=len(owners),
            here=1,
            runs=(run,),
            join="a/transfer",
        )
        return (await system.ask(to, written, deadline_s=60.0, expect=Published)).root

    roots = await asyncio.gather(*(one(rank, *it) for rank, it in enumerate(owners.items())))
    assert len(set(roots)) == 1
    return roots[0]


def changed(data: bytes) -> bytes:
    """One byte in a thousand differs."""
    new = bytearray(data)
    for at in range(0, len(new), 1000):
        new[at] ^= 1
    return bytes(new)


def spoilt(data: bytes) -> bytes:
    """Every byte differs."""
    return bytes(byte ^ 255 for byte in data)


def test_receivers_pull_halves_from_owners_and_rest_from_peers() -> None:
    world, data = world_of("abcdef"), random.Random(1).randbytes(SIZE)

    async def wave() -> None:
        root = await publish(world, data)
        await asyncio.gather(*(world.fetch(name, 1, root) for name in "cdef"))
        assert all(world.image(name, 1) == data for name in "cdef")
        assert all(HALF <= world.served_bytes(owner) < 3 * HALF for owner in OWNERS), "relays give the rest"

    world.complete(wave())


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("percent", [1, 40, 80])
def test_owner_restart_during_a_pull_costs_bytes_in_flight(
    owner: str, percent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, data = world_of("abc"), random.Random(percent).randbytes(SIZE)
    world.strike_by(monkeypatch)

    async def struck() -> None:
        root = await publish(world, data)
        world.struck["c", 1, percent * CHUNKS // 100] = lambda: world.kill(owner)
        fetched = await world.fetch("c", 1, root)
        assert not world.struck
        assert world.image("c", 1) == data
        assert fetched.pulled_bytes == SIZE, "no chunk counts twice"

    world.complete(struck())


def test_part_of_a_lost_owner_comes_from_other_holders() -> None:
    world, data = world_of("abcd"), random.Random(5).randbytes(SIZE)

    async def gone() -> None:
        root = await publish(world, data)
        await world.fetch("c", 1, root)
        world.lives["b"].process.kill()
        fetched = await world.fetch("d", 1, root)
        assert world.image("d", 1) == data
        assert fetched.pulled_bytes == SIZE
        assert world.served_bytes("c") >= CHUNK, "some of it"

    world.complete(gone())


def test_receiver_of_previous_version_pulls_and_relays_partial_deltas() -> None:
    world, first = world_of("abcdef", delta=True), random.Random(1).randbytes(SIZE)
    second = changed(first)

    async def waves() -> None:
        root = await publish(world, first)
        await asyncio.gather(*(world.fetch(name, 1, root) for name in "cde"))
        before = {name: world.served_bytes(name) for name in "abcde"}
        root = await publish(world, second, 2)
        fetched = await asyncio.gather(*(world.fetch(name, 2, root) for name in "cde"))
        assert all(world.image(name, 2) == second for name in "cde")
        assert {one.deltas for one in fetched} == {1}
        assert {one.pulled_bytes for one in fetched} == {delta_bytes(world, 2)}
        assert delta_bytes(world, 2) < SIZE / 100
        given = {name: world.served_bytes(name) - before[name] for name in "abcde"}
        assert all(given[owner] for owner in OWNERS), "each owner gives its part"
        assert sum(given.values()) == 3 * delta_bytes(world, 2)
        late = await world.fetch("f", 2, root)
        assert (late.deltas, world.image("f", 2)) == (0, second), "a receiver without a base pulls all of it"

    world.complete(waves())


def delta_bytes(world: SimulatedWeights, version: int) -> int:
    delta = world.agent("a")._deltas.to(version)
    assert delta is not None
    return delta.table.nbytes


def test_partial_deltas_reach_far_hosts_through_relays() -> None:
    """The link is so slow that the delta is worth a chain."""
    world, first = world_of("abcdef", delta=True, link_bytes_s=1e3), random.Random(1).randbytes(SIZE)
    second = changed(first)

    async def waves() -> None:
        root = await publish(world, first)
        await asyncio.gather(*(world.fetch(name, 1, root) for name in "cdef"))
        before = {name: world.served_bytes(name) for name in "abcdef"}
        root = await publish(world, second, 2)
        fetched = await asyncio.gather(*(world.fetch(name, 2, root) for name in "cdef"))
        assert all(world.image(name, 2) == second for name in "cdef")
        assert {one.deltas for one in fetched} == {1}
        relayed = sum(world.served_bytes(name) - before[name] for name in "cdef")
        assert relayed >= delta_bytes(world, 2), "receivers give it to each other"

    world.complete(waves())


def test_quick_versions_form_a_delta_chain_for_laggards() -> None:
    world = world_of("abcd", delta=True)
    datas = [random.Random(1).randbytes(SIZE)]
    datas += [changed(datas[0]), changed(changed(datas[0])[::-1])[::-1]]

    async def chain() -> None:
        root = await publish(world, datas[0])
        await asyncio.gather(*(world.fetch(name, 1, root) for name in "cd"))
        second = await publish(world, datas[1], 2)
        behind = asyncio.create_task(world.fetch("d", 2, second))
        third = await publish(world, datas[2], 3)
        fetched = await world.fetch("c", 3, third)
        assert (fetched.deltas, world.image("c", 3)) == (2, datas[2])
        await asyncio.wait([behind])
        assert (await world.fetch("d", 3, third)).deltas > 0
        assert world.image("d", 3) == datas[2]

    world.complete(chain())


@pytest.mark.parametrize("owner", OWNERS)
def test_owner_death_during_delta_wave_costs_only_the_delta(
    owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, first = world_of("abcde", delta=True), random.Random(2).randbytes(SIZE)
    second = changed(first)
    world.strike_by(monkeypatch)

    async def struck() -> None:
        root = await publish(world, first)
        await asyncio.gather(*(world.fetch(name, 1, root) for name in "cde"))
        root = await publish(world, second, 2)
        world.struck["c", DELTA | 2, 1] = lambda: world.kill(owner)
        await asyncio.gather(*(world.fetch(name, 2, root) for name in "cde"))
        assert not world.struck
        assert all(world.image(name, 2) == second for name in "cde")
        third = changed(second[::-1])[::-1]
        root = await publish(world, third, 3)
        fetched = await world.fetch("e", 3, root)
        assert (fetched.deltas, world.image("e", 3)) == (1, third), "the next one is a delta again"

    world.complete(struck())


def test_owner_without_a_delta_does_not_delay_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, first = world_of("abc", delta=True), random.Random(9).randbytes(SIZE)
    datas = [first, changed(first), changed(changed(first)[::-1])[::-1]]

    async def versions() -> None:
        await world.fetch("c", 1, await publish(world, datas[0]))
        with monkeypatch.context() as patched:
            patched.setattr(
                world.agent("b")._deltas, "begin_part", lambda *_: None
            )  # as if it had died by then
            fetched = await world.fetch("c", 2, await publish(world, datas[1], 2))
        assert (fetched.deltas, world.image("c", 2)) == (0, datas[1])
        fetched = await world.fetch("c", 3, await publish(world, datas[2], 3))
        assert (fetched.deltas, world.image("c", 3)) == (1, datas[2])

    world.complete(versions())


def test_stranger_has_no_influence_on_a_delta() -> None:
    world, first = world_of("abcd", delta=True), random.Random(10).randbytes(SIZE)
    second = changed(first)

    async def versions() -> None:
        system = world.client.system
        assert system is not None
        await world.fetch("c", 1, await publish(world, first))
        view = memoryview(second)
        shares = {f"{host}/transfer": hashed(view, cut([run], CHUNK)) for host, run in OWNERS.items()}
        root = Manifest.join(2, TENSORS, shares).root
        strange = JoinDelta(version=2, root=root, source="d/transfer", table=b"none")
        await system.tell("a/transfer", strange)
        assert await publish(world, second, 2) == root
        fetched = await world.fetch("c", 2, root)
        assert (fetched.deltas, world.image("c", 2)) == (1, second)

    world.complete(versions())


def test_version_has_no_delta_when_ranks_or_content_differ() -> None:
    world, first = world_of("abc", delta=True), random.Random(3).randbytes(SIZE)
    elsewhere = {"a": Run(0, HALF + CHUNK // 2), "b": Run(HALF + CHUNK // 2, HALF - CHUNK // 2)}
    swapped = {"a": OWNERS["b"], "b": OWNERS["a"]}

    async def versions() -> None:
        data = first
        await world.fetch("c", 1, await publish(world, data))
        for version, owners, expected in (
            (2, elsewhere, 0),
            (3, elsewhere, 1),
            (4, OWNERS, 0),
            (5, swapped, 0),
            (6, swapped, 1),
        ):
            data = changed(data)
            fetched = await world.fetch("c", version, await publish(world, data, version, owners))
            assert (version, fetched.deltas, world.image("c", version)) == (version, expected, data)
        data = data[:HALF] + spoilt(data[HALF:])
        fetched = await world.fetch("c", 7, await publish(world, data, 7, swapped))
        assert (fetched.deltas, world.image("c", 7)) == (0, data)

    world.complete(versions())


def test_receiver_with_another_base_pulls_the_full_image() -> None:
    world, first = world_of("abc", delta=True), random.Random(4).randbytes(SIZE)
    second = changed(first)

    async def other() -> None:
        await publish(world, first)
        with world.images("c").create(1, SIZE) as draft:  # of another run
            draft.view[:] = spoilt(first)
            draft.seal()
        note = Manifest.build(1, memoryview(spoilt(first)), TENSORS, chunk_bytes=CHUNK)
        world.agent("c")._served.add(note, b"{}")
        fetched = await world.fetch("c", 2, await publish(world, second, 2))
        assert (fetched.deltas, world.image("c", 2)) == (0, second)

    world.complete(other())


def test_corrupt_delta_part_costs_only_the_delta() -> None:
    world, first = world_of("abc", delta=True), random.Random(6).randbytes(SIZE)
    second = changed(first)

    async def rotten() -> None:
        await world.fetch("c", 1, await publish(world, first))
        root = await publish(world, second, 2)
        await asyncio.sleep(1.0)  # until the delta is there
        made = world.agent("b")._deltas.to(2)
        assert made is not None
        assert made.part
        made.payload[made.part[0].offset] ^= 1
        fetched = await world.fetch("c", 2, root)
        assert (fetched.deltas, world.image("c", 2)) == (0, second)

    world.complete(rotten())


def test_single_host_ranks_publish_like_a_single_process() -> None:
    world, first = world_of("abc", delta=True), random.Random(7).randbytes(SIZE)
    second = changed(first)
    alone = {"b": Run(0, SIZE)}  # and the joining host has none

    async def versions() -> None:
        root = await publish(world, first, 1, alone)
        assert root == Manifest.build(1, memoryview(first), TENSORS, chunk_bytes=CHUNK).root
        await world.fetch("c", 1, root, "b")
        fetched = await world.fetch("c", 2, await publish(world, second, 2, alone), "b")
        assert (fetched.deltas, world.image("c", 2)) == (1, second)
        assert announced(world) == [("b/transfer",)] * 2

    world.complete(versions())


def test_joining_host_need_not_own_a_part() -> None:
    world, first = world_of("abcd", delta=True), random.Random(8).randbytes(SIZE)
    second, others = changed(first), {"b": OWNERS["a"], "c": OWNERS["b"]}

    async def versions() -> None:
        root = await publish(world, first, 1, others)
        await world.fetch("d", 1, root, "b")
        fetched = await world.fetch("d", 2, await publish(world, second, 2, others), "b")
        assert (fetched.deltas, world.image("d", 2)) == (1, second)
        assert announced(world) == [("b/transfer", "c/transfer")] * 2

    world.complete(versions())
