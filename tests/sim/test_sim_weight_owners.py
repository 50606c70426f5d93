"""Versions that two hosts publish, each its part, in the simulator: what is served is what was published,
also where an owner dies in the middle."""

import asyncio
import random

import pytest

from actors.rollout.messages import PublishVersion
from actors.weights.messages import OpenPart, PartIsOpen, PartWritten, Published
from actors.weights.runs import Run
from supervisor import Actor, handles
from tests.sim.simulated_weights import CHUNK, CHUNKS, SIZE, TENSORS, SimulatedWeights

HALF = SIZE // 2
OWNERS = {"a": Run(0, HALF), "b": Run(HALF, SIZE - HALF)}


class Manager(Actor):
    """Takes whatever is announced."""

    @handles(PublishVersion)
    async def publish(self, message: PublishVersion) -> None:
        return


def world_of(names: str) -> SimulatedWeights:
    world = SimulatedWeights(names)
    system = world.client.system
    assert system is not None
    world.client.process.call_soon(lambda: system.spawn("rollout/manager", Manager))
    return world


async def publish(world: SimulatedWeights, data: bytes) -> bytes:
    """Each owner's one rank writes its half; the root of the whole."""
    system = world.client.system
    assert system is not None
    whole = OpenPart(version=1, tensors=TENSORS, image_bytes=SIZE)

    async def one(rank: int, host: str, run: Run) -> bytes:
        to = f"{host}/transfer"
        await system.ask(to, whole, deadline_s=10.0, expect=PartIsOpen)
        agent = world.lives[host].agent
        assert agent is not None
        draft = agent._parts._here[1].draft  # what a rank maps as a file
        assert draft is not None
        draft.view[run.offset : run.end] = data[run.offset : run.end]
        written = PartWritten(
            version=1,
            tensors=TENSORS,
            image_bytes=SIZE,
            model_config=b"{}",
            rank=rank,
            ranks=2,
            here=1,
            runs=(run,),
            join="a/transfer",
        )
        return (await system.ask(to, written, deadline_s=60.0, expect=Published)).root

    first, second = await asyncio.gather(*(one(rank, *it) for rank, it in enumerate(OWNERS.items())))
    assert first == second
    return first


def test_receivers_have_each_half_from_its_owner_and_the_rest_of_the_wave_from_each_other() -> None:
    world, data = world_of("abcdef"), random.Random(1).randbytes(SIZE)

    async def wave() -> None:
        root = await publish(world, data)
        await asyncio.gather(*(world.fetch(name, 1, root) for name in "cdef"))
        assert all(world.image(name, 1) == data for name in "cdef")
        assert all(HALF <= world.served_bytes(owner) < 3 * HALF for owner in OWNERS), "relays give the rest"

    world.complete(wave())


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("percent", [1, 40, 80])
def test_an_owner_that_dies_in_the_middle_of_a_pull_and_comes_back_costs_what_was_under_way(
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


def test_what_an_owner_had_that_is_gone_for_good_comes_from_whoever_has_it() -> None:
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
