"""OwnParts: publishing from a sharded trainer, each rank its own part.

No tensor is gathered. Owns a rank's description of itself and of its tensors, and the write of its part into
the host's image; other ranks of the host write the rest. The agents combine all parts into one version
(`gleaner.actors.weights.shards.sharded_publication`).
"""

import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.shards.layout import Part

if TYPE_CHECKING:
    from torch import Tensor

    from gleaner.actors.engine.images.shards import Shards


@dataclass(frozen=True, slots=True)
class Ranks:
    """Number of this rank, number of all ranks, and ranks on this host."""

    rank: int
    ranks: int
    here: int

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.ranks and 1 <= self.here <= self.ranks):
            raise ValueError(f"{self}: expected 0 <= rank < ranks and 1 <= here <= ranks")

    @staticmethod
    def of_this_process() -> "Ranks":
        """Ranks from torch.distributed and torchrun (LOCAL_WORLD_SIZE). Raises ValueError where they do not
        give them."""
        from torch import distributed

        here = os.environ.get("LOCAL_WORLD_SIZE", "")
        if not distributed.is_initialized() or not here.isdigit():
            raise ValueError(
                "ranks= is needed: which rank of how many this is, and how many are on its host "
                "(torchrun with an initialized torch.distributed has both)"
            )
        return Ranks(distributed.get_rank(), distributed.get_world_size(), int(here))


@dataclass(frozen=True, slots=True)
class OwnParts:
    """This rank's parts of the image's tensors `whole` (`gleaner.actors.engine.images.shards.layout_of`; the
    same on every rank): `parts`, from `gleaner.actors.weights.shards.layout.fsdp_parts` and
    `megatron_layout.megatron_parts`."""

    whole: Sequence[TensorSpec]
    parts: Sequence[Part]


def is_sharded(weights: object) -> bool:
    """Whether these are the DTensors of one rank."""
    return isinstance(weights, Mapping) and any(hasattr(one, "placements") for one in weights.values())


def shards_of(weights: "Mapping[str, Tensor]", parts: OwnParts | None, ranks: Ranks) -> "Shards":
    """The ranges that this rank writes. Raises Unpublishable."""
    from gleaner.actors.engine.images.shards import of_dtensors, of_parts

    if parts is not None:
        return of_parts(weights, parts.parts, parts.whole)
    return of_dtensors(weights, first=ranks.rank == 0)


def write_shards(path: Path, shards: "Shards") -> None:
    """Write them into the image at the end of this file. Raises OSError."""
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    shards.write(memoryview(mapped)[len(mapped) - shards.nbytes :])
