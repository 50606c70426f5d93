"""Shares of a gang's ranks: samples of a micro-batch, and rows of a tensor.

Pure, two rules. Both depend on their arguments alone. So every rank gets the same result without a message to
the others, and the same samples give the same sums again.
"""

from __future__ import annotations

from collections.abc import Sequence

from gleaner.actors.training.sample import Sample


def shares(samples: Sequence[Sample], ranks: int) -> list[list[Sample]]:
    """The samples of each of `ranks` ranks, about equally many tokens each; one may have none.

    The longest first, each to the rank with the fewest tokens so far (the lowest of several): no rank has
    more than the shortest one's tokens plus one sample. Within a rank the samples keep their order.
    """
    loads = [0] * ranks
    owner = [0] * len(samples)
    for index in sorted(range(len(samples)), key=lambda index: (-len(samples[index]), index)):
        rank = loads.index(min(loads))
        owner[index] = rank
        loads[rank] += len(samples[index])
    return [
        [sample for sample, of in zip(samples, owner, strict=True) if of == rank] for rank in range(ranks)
    ]


def rows_of(rows: int, rank: int, ranks: int) -> range:
    """The rows of a tensor that a rank holds: as FSDP2 cuts dimension 0, in equal runs, the last ones shorter
    or empty (`torch.chunk`)."""
    run = -(-rows // ranks)
    return range(min(rank * run, rows), min((rank + 1) * run, rows))
