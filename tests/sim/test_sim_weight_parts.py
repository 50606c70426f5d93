"""Partial pulls: pipeline stages and expert ranks pull their own part.

They pull it from hosts that have the same part.
"""

import asyncio
import random

import pytest

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.weights import EnginePart, Fetch, Fetched, Publish, Published
from gleaner.supervisor import Refused
from tests.sim.simulated_weights import CHUNK, SimulatedWeights

LAYER_BYTES, EXPERT_BYTES, EMBED_BYTES = 10 * CHUNK, 4 * CHUNK + 128, 3 * CHUNK


def model() -> tuple[TensorSpec, ...]:
    """Four layers of a dense tensor, four experts and a stack of four; an embedding, a head, a norm."""
    sizes = [("model.embed_tokens.weight", EMBED_BYTES)]
    for layer in range(4):
        sizes.append((f"model.layers.{layer}.mlp.weight", LAYER_BYTES))
        sizes += [(f"model.layers.{layer}.experts.{one}.up.weight", EXPERT_BYTES) for one in range(4)]
    sizes += [("model.norm.weight", 64), ("lm_head.weight", EMBED_BYTES)]
    specs, at = [], 0
    for name, nbytes in sizes:
        specs.append(TensorSpec(name, "uint8", (nbytes // 64, 64), at, nbytes))
        at += nbytes
    stacked = TensorSpec("model.layers.3.mlp.experts.down_proj", "uint8", (4, CHUNK), at, 4 * CHUNK)
    return (*specs, stacked)


MODEL = model()
SIZE = sum(spec.nbytes for spec in MODEL)
FIRST, LAST = EnginePart(0, 2), EnginePart(1, 2)


async def publish(world: SimulatedWeights, data: bytes) -> bytes:
    with world.images("a").create(1, SIZE) as draft:
        draft.view[:] = data
        draft.seal()
    return (await world.ask("a", Publish(version=1, tensors=MODEL, model_config=b"{}"), Published)).root


async def fetch(world: SimulatedWeights, name: str, root: bytes, part: EnginePart | None) -> Fetched:
    asked = Fetch(version=1, root=root, sources=("a/transfer",), part=part)
    return await world.ask(name, asked, Fetched)


def right(world: SimulatedWeights, name: str, fetched: Fetched, data: bytes) -> bool:
    """Whether every tensor listed in `fetched` has its bytes."""
    image = world.image(name, 1)
    return all(
        image[spec.offset : spec.offset + spec.nbytes] == data[spec.offset : spec.offset + spec.nbytes]
        for spec in fetched.tensors
    )


def test_each_stage_pulls_its_layers_about_once_from_publisher() -> None:
    world, data = SimulatedWeights("abcdefg"), random.Random(1).randbytes(SIZE)
    parts = {"b": FIRST, "c": FIRST, "d": LAST, "e": LAST, "f": FIRST, "g": LAST}

    async def wave() -> None:
        root = await publish(world, data)
        got = await asyncio.gather(*(fetch(world, name, root, part) for name, part in parts.items()))
        for (name, part), fetched in zip(parts.items(), got, strict=True):
            assert right(world, name, fetched, data)
            names = {spec.name for spec in fetched.tensors}
            assert ("model.embed_tokens.weight" in names) == (part == FIRST)
            assert ("lm_head.weight" in names) == (part == LAST)
            layers = {name.split(".")[2] for name in names if ".layers." in name}
            assert layers == ({"0", "1"} if part == FIRST else {"2", "3"})
            assert fetched.pulled_bytes < 0.6 * SIZE
        assert world.served_bytes("a") < 2.5 * SIZE, "receivers of a part give it to each other"

    world.complete(wave())


@pytest.mark.parametrize("rank", range(4))
def test_expert_rank_has_its_experts_and_stacked_rows(rank: int) -> None:
    world, data = SimulatedWeights("ab"), random.Random(rank).randbytes(SIZE)

    async def one() -> None:
        root = await publish(world, data)
        fetched = await fetch(world, "b", root, EnginePart(0, 1, rank, 4))
        assert right(world, "b", fetched, data)
        experts = [spec.name for spec in fetched.tensors if ".experts." in spec.name]
        assert len(experts) == 5
        assert all(f".experts.{rank}." in name for name in experts if "down_proj" not in name)
        [stacked] = [spec for spec in fetched.tensors if "down_proj" in spec.name]
        assert (stacked.shape, stacked.offset) == ((1, CHUNK), MODEL[-1].offset + rank * CHUNK)

    world.complete(one())


def test_part_is_served_after_a_death_and_never_mistaken() -> None:
    world, data = SimulatedWeights("abc"), random.Random(3).randbytes(SIZE)

    async def again() -> None:
        root = await publish(world, data)
        await fetch(world, "b", root, FIRST)
        world.kill("b")
        await asyncio.sleep(1.0)
        assert (await fetch(world, "b", root, FIRST)).pulled_bytes == 0, "the part is here"
        for other in (LAST, None, EnginePart(0, 0), EnginePart(7, 2)):
            with pytest.raises(Refused, match="another part"):
                await fetch(world, "b", root, other)
        whole = await fetch(world, "c", root, None)
        assert (whole.pulled_bytes, world.image("c", 1)) == (SIZE, data)

    world.complete(again())


def test_impossible_part_is_refused_with_the_reason() -> None:
    world, data = SimulatedWeights("ab"), random.Random(4).randbytes(SIZE)

    async def refused() -> None:
        root = await publish(world, data)
        with pytest.raises(Refused, match="cannot be cut into 3 equal parts"):
            await fetch(world, "b", root, EnginePart(0, 3))

    world.complete(refused())
