"""Parts of a version that ranks write on one host: what was written must be there when they report it."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gleaner.actors.model.byte_ranges import Run
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.weights import PartWritten
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


def publication(drafts: list[Draft]) -> ShardedPublication:
    """One whose store has these drafts, one after the other."""

    async def offload(call: Callable[..., object], *arguments: object) -> object:
        return call(*arguments)

    ctx = SimpleNamespace(offload=offload, log=logging.getLogger(__name__))
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
