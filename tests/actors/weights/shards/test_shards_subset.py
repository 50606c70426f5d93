"""What a host pulls, and what its engine finds there, where an engine has a part of the model."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.weights import EnginePart
from gleaner.actors.weights.shards.layout import LayoutError
from gleaner.actors.weights.shards.subset import chunks_of, tensors_of
from gleaner.transport.bulk_frames import Chunk

NORM = TensorSpec("model.layers.0.input_layernorm.weight", "bfloat16", (2048,), 0, 4096)
EXPERTS = TensorSpec("model.layers.0.mlp.experts.down_proj", "bfloat16", (4, 512), 4096, 4096)
LATE = TensorSpec("model.layers.1.input_layernorm.weight", "bfloat16", (512,), 8192, 1024)
CHUNKS = tuple(Chunk(at, 1024, b"") for at in range(0, 9216, 1024))
MANIFEST = cast(
    Any, SimpleNamespace(version=3, tensors=(NORM, EXPERTS, LATE), image_bytes=9216, chunks=CHUNKS)
)


def test_engine_finds_whole_tensors_and_its_rows_of_stacked_experts() -> None:
    part = EnginePart(stage=0, stages=2, rank=1, ranks=2)
    rows = TensorSpec(EXPERTS.name, "bfloat16", (2, 512), 6144, 2048)
    assert tensors_of(MANIFEST, part) == (NORM, rows)
    assert [chunk.offset for chunk in chunks_of(MANIFEST, part)] == [0, 1024, 2048, 3072, 6144, 7168]


def test_engine_of_the_whole_model_finds_and_pulls_everything() -> None:
    assert tensors_of(MANIFEST, None) == MANIFEST.tensors
    assert chunks_of(MANIFEST, None) == CHUNKS
    assert tensors_of(MANIFEST, EnginePart(stage=0, stages=1)) == MANIFEST.tensors


@pytest.mark.parametrize("part", [EnginePart(0, 0), EnginePart(0, 1, 0, 0), EnginePart(0, 3)])
def test_part_that_the_model_does_not_have_is_refused(part: EnginePart) -> None:
    with pytest.raises(LayoutError):
        tensors_of(MANIFEST, part)
