"""Sampled test that a delta is too large, from at most 1 % of both images. Pure.

If an image changed everywhere (weights in float32, high learning rates), no delta is clearly smaller. To find
this out by encoding costs most of an encoding, while receivers wait. So blocks are compared first: one at a
random place of each of equally long stretches.

Error bound: the change in a block bounds from below what it adds to a delta (`least_share`), and the mean
over all bytes does so for the whole delta. The mean of independent draws is above that by more than the
margin with a probability of at most `WRONG` (Hoeffding, Probability Inequalities for Sums of Bounded Random
Variables, 1963, theorem 2). So a delta that is small enough is given up once in a billion at most. One that
is too large and not found here is given up by `Delta.build` as it grows.
"""

import math
from collections.abc import Sequence

import numpy as np

from gleaner.actors.weights.delta.codec import FULL_SHARE, WIDTHS
from gleaner.transport.bulk_frames import Chunk

BLOCK_BYTES = 1024
"""A multiple of every element size; comparing a block costs less than reaching its place."""
MOST_BLOCKS = 1024
"""More blocks hardly reduce the margin, which is 0.1 with them. Some milliseconds."""
SAMPLED = 0.01
"""Largest sampled share of the image."""
WRONG = 1e-9


def is_hopeless(
    old: memoryview,
    new: memoryview,
    chunks: Sequence[Chunk],
    widths: Sequence[int],
    most_bytes: int,
    *,
    seed: int,
    compress: bool = False,
    blocks: int | None = None,
    wrong: float = WRONG,
) -> bool:
    """Whether the payload of the delta from image `old` to `new` surely exceeds `most_bytes`.

    `chunks` of them are those that changed, with the bytes of an element of each (`delta.chunk_widths`).
    `seed`: the same one gives the same answer. `blocks`: how many are compared, by default what `SAMPLED` and
    `MOST_BLOCKS` allow. False is inconclusive: too few blocks, too close to the limit, or small enough.
    """
    ends = np.cumsum([chunk.length for chunk in chunks], dtype=np.int64)
    total = int(ends[-1]) if chunks else 0
    count = blocks if blocks is not None else blocks_of(total)
    if not count or most_bytes >= total:
        return False
    lowest = min(least_share(0, width, width, compress=compress) for width in sorted(set(widths)))
    margin = (1 - lowest) * math.sqrt(math.log(1 / wrong) / (2 * count))
    bound = most_bytes / total + margin
    if bound >= 1:  # no share is more
        return False
    was, now = (np.frombuffer(image, np.uint8) for image in (old, new))
    draws = np.arange(count) + np.random.default_rng(seed).random(count)
    found = 0.0
    for point in np.minimum(draws * (total / count), total - 1).astype(np.int64):
        number = int(np.searchsorted(ends, point, "right"))
        chunk, width = chunks[number], widths[number]
        within = int(point) - (int(ends[number]) - chunk.length)
        begin = chunk.offset + within - within % BLOCK_BYTES
        length = min(BLOCK_BYTES, chunk.offset + chunk.length - begin)
        part = slice(begin, begin + length - length % width)
        changed = int(np.count_nonzero(was[part].view(WIDTHS[width]) != now[part].view(WIDTHS[width])))
        found += least_share(changed, length, width, compress=compress)
    return found / count > bound


def blocks_of(total_bytes: int) -> int:
    """The number of blocks that are compared in chunks of so many bytes."""
    return min(MOST_BLOCKS, int(total_bytes * SAMPLED) // BLOCK_BYTES)


def least_share(changed: int, length: int, width: int, *, compress: bool) -> float:
    """The least size that a run of `length` bytes with `changed` changed elements adds to a delta, as a share
    of its length; 1 at most. A chunk's is no less than the mean of its blocks', for this is concave.

    A changed element takes itself and a byte of gap, or the chunk is sent as it is. Compressed, it may take
    next to nothing, as long as the chunk would have been below `FULL_SHARE` without: the line from there to
    all changed is below both.
    """
    share = changed * (1 + width) / length
    if not compress:
        return min(1.0, share)
    return (share - FULL_SHARE) / (1 + 1 / width - FULL_SHARE)
