"""Parts of a version that ranks write on one host: what was written must be there when they report it."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gleaner.actors.model.byte_ranges import Run
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.weights import PartLost, PartWritten
from gleaner.actors.weights.shards.sharded_publication import ShardedPublication
from gleaner.configs.schema import Weights
from gleaner.supervisor import Refused

TENSORS = (TensorSpec("w", "float32", (4,), 0, 16),)
WRITTEN = PartWritten(
    version=7,
    rank=0,
    ranks=2,
    here=2,
    runs=(Run(0, 8),),
    tensors=TENSORS,
    image_bytes=16,
    model_config=b"",
    join="spot-1/transfer",
)


class Draft:
    """An image that is being written. left: it is of an earlier life of the agent."""

    def __init__(self, *, left: bool) -> None:
        self.left, self.abandoned = left, False

    def abandon(self) -> None:
        self.abandoned = True


def publication(drafts: list[Draft], told: list[object] | None = None) -> ShardedPublication:
    """One whose store has these drafts, one after the other. told: gets its messages to other agents."""

    async def offload(call: Callable[..., object], *arguments: object) -> object:
        return call(*arguments)

    async def tell(_to: str, message: object) -> None:
        if told is not None:
            told.append(message)

    ctx = SimpleNamespace(name="spot-1/transfer", offload=offload, tell=tell, log=logging.getLogger(__name__))
    images = SimpleNamespace(create=lambda *_: drafts.pop(0))
    versions = SimpleNamespace(images=images, served=None, deltas=None)
    return ShardedPublication(
        cast(Any, ctx), cast(Any, versions), cast(Any, None), cast(Any, None), Weights()
    )


async def test_part_is_refused_again_and_again_when_what_was_written_is_gone() -> None:
    first, second = Draft(left=False), Draft(left=False)
    parts = publication([first, second])
    for draft in (first, second):
        with pytest.raises(Refused, match="what was written of version 7 is gone"):
            await parts.written(WRITTEN)
        assert draft.abandoned, "an image without the rank's bytes stays open"


async def test_part_is_accepted_when_the_image_of_an_earlier_life_is_there() -> None:
    draft = Draft(left=True)
    assert not (await publication([draft]).written(WRITTEN)).answered
    assert not draft.abandoned


async def test_version_is_given_up_when_two_ranks_wrote_the_same_bytes() -> None:
    draft, told = Draft(left=True), list[object]()
    parts = publication([draft, Draft(left=True)], told)
    first = await parts.written(WRITTEN)
    twice = replace(WRITTEN, rank=1, runs=(Run(4, 12),))
    with pytest.raises(Refused, match="bytes 4 to 8 are held by rank 0 and by rank 1"):
        await parts.written(twice)
    assert first.answered, "rank 0 waits for a version that will not be whole"
    assert draft.abandoned
    assert [type(message) for message in told] == [PartLost]
    assert not (await parts.written(twice)).answered, "the ranks may write it anew"


@pytest.mark.parametrize(("first", "pulled"), [("spot-1/transfer", [7]), ("spot-2/transfer", [])])
async def test_first_owner_alone_pulls_the_parts_of_the_others_for_the_disk(
    first: str, pulled: list[int]
) -> None:
    parts, begun = publication([]), list[int]()
    manifest = SimpleNamespace(version=7, owners=("spot-1/transfer", "spot-2/transfer"))
    nothing = SimpleNamespace(add=lambda *_: None, before_part=lambda *_: None, begin_part=lambda *_: None)
    parts._served = parts._deltas = cast(Any, nothing)
    parts._assembly = cast(
        Any, SimpleNamespace(begin=lambda manifest, _chunks: begun.append(manifest.version))
    )
    parts._serve(cast(Any, manifest), b"", (), first)
    assert begun == pulled
