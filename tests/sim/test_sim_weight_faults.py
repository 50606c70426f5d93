"""Weight pulls that a fault interrupts at each percent.

The served version is the published one, and chunks received before the fault are kept.
"""

import asyncio
import random
from collections.abc import Callable

import pytest

from tests.sim.simulated_weights import CHUNK, CHUNKS, SIZE, SimulatedWeights

WINDOW_BYTES = 4 * CHUNK
Strike = Callable[[SimulatedWeights], object]
STRIKES: dict[str, tuple[Strike, int]] = {
    "the connection breaks": (lambda world: world.net.reset("a", "b"), 1),
    "the publisher dies and comes back": (lambda world: world.kill("a"), 7),
    "the receiver dies and comes back": (lambda world: world.kill("b"), 7),
}


@pytest.mark.parametrize(("strike", "step"), STRIKES.values(), ids=STRIKES.keys())
def test_interrupted_pull_ends_with_the_published_bytes(
    strike: Strike, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SimulatedWeights("ab")
    world.strike_by(monkeypatch)
    bytes_twice = random.Random(7).randbytes(SIZE) * 2

    async def all_of_them() -> None:
        for percent in range(1, CHUNKS, step):
            data = bytes_twice[percent : percent + SIZE]
            root = await world.publish(percent, data)
            world.struck["b", percent, percent] = lambda: strike(world)
            served = world.served_bytes("a")
            fetched = await world.fetch("b", percent, root)
            assert world.image("b", percent) == data, f"struck at {percent} %"
            assert not world.struck, f"nothing struck at {percent} %"
            assert fetched.pulled_bytes == SIZE, "no chunk counts twice"
            again = percent * CHUNK if step > 1 else 0  # of a lost receiver
            assert world.served_bytes("a") - served <= SIZE + again + WINDOW_BYTES

    world.complete(all_of_them())


def test_quick_second_version_replaces_the_first_at_no_cost() -> None:
    world = SimulatedWeights("abcd")
    older, newer = random.Random(1).randbytes(SIZE), random.Random(2).randbytes(SIZE)

    async def both() -> None:
        pulls = []
        for version, data in ((1, older), (2, newer)):
            root = await world.publish(version, data)
            pulls += [asyncio.ensure_future(world.fetch(name, version, root)) for name in "bcd"]
            await asyncio.sleep(0.1)
        began_s = asyncio.get_running_loop().time()
        await asyncio.gather(*pulls[3:])
        assert asyncio.get_running_loop().time() - began_s < 2.0, (
            "the time of one version, and one round of requests"
        )
        ended = await asyncio.gather(*pulls[:3], return_exceptions=True)
        assert ["version 2 is wanted here instead of 1" in str(end) for end in ended] == [True] * 3
        for name in "bcd":
            assert world.image(name, 2) == newer
            assert world.images(name).versions() == [2], "nothing of the older version is left"
            assert {path.stem for path in world.memory[name]} == {"v000000002"}

    world.complete(both())


@pytest.mark.parametrize("act", ["freeze", "kill"])
def test_failing_relay_costs_its_child_no_received_chunk(act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = SimulatedWeights("abc")
    world.strike_by(monkeypatch)
    data = random.Random(3).randbytes(SIZE)

    async def wave() -> None:
        root = await world.publish(1, data)
        world.struck["c", 1, 50] = getattr(world.lives["b"].process, act)
        first = asyncio.ensure_future(world.fetch("b", 1, root))
        await asyncio.sleep(0.02)
        fetched = await world.fetch("c", 1, root)
        first.cancel()
        assert world.image("c", 1) == data
        assert fetched.pulled_bytes == SIZE
        assert world.served_bytes("b") >= 50 * CHUNK - WINDOW_BYTES, "half of it came from the relay"
        assert world.served_bytes("a") <= 2 * SIZE

    world.complete(wave())
