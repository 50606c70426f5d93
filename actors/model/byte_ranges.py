"""`Run`: byte ranges of an image; tiling checks and the chunks that they touch.

Pure; knows bytes, no tensors (`shards.layout` does).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gleaner.transport.bulk_frames import Chunk

MAX_RUNS = 2**18  # of all owners of an image: 4 MB of a manifest, which travels as one message


class TilingError(ValueError):
    """Runs do not make the image: a byte has no holder, or two."""


class Run(msgspec.Struct, frozen=True, array_like=True):
    """`length` bytes of an image, from `offset` on."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        """The offset behind its last byte."""
        return self.offset + self.length


def joined(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The same bytes in as few runs as possible, by offset; overlapping bytes count once."""
    found: list[Run] = []
    for run in sorted(runs, key=lambda run: run.offset):
        if found and run.offset <= found[-1].end:
            last = found.pop()
            run = Run(last.offset, max(last.end, run.end) - last.offset)
        found.append(run)
    return tuple(found)


def check_tiling(owners: Mapping[str, Sequence[Run]], image_bytes: int) -> None:
    """Raise TilingError unless the runs of all owners make the image of that many bytes, each byte once."""
    count = sum(map(len, owners.values()))
    if count > MAX_RUNS:
        raise TilingError(f"{count} runs, at most {MAX_RUNS}: let sources hold whole rows")
    held = sorted((run.offset, run.end, source) for source, runs in owners.items() for run in runs)
    at, before = 0, ""
    for begin, end, source in held:
        if begin >= end or begin < 0:
            raise TilingError(f"{source} holds {end - begin} bytes at {begin}: that is no run")
        if begin < at:
            raise TilingError(f"bytes {begin} to {min(end, at)} are held by {before} and by {source}")
        if begin > at:
            raise TilingError(f"bytes {at} to {begin} have no holder; {source} holds what follows")
        at, before = end, source
    if at != image_bytes:
        raise TilingError(f"what is held ends at byte {at}, the image at {image_bytes}")


def chunks_needed(runs: Iterable[Run], chunks: Sequence[Chunk]) -> tuple[int, ...]:
    """Numbers of the chunks that hold a byte of these runs, ascending.

    A chunk is the smallest unit with a digest, so a pull is rounded out to chunks. `chunks`: they tile the
    image, by offset."""
    offsets = [chunk.offset for chunk in chunks]
    found: list[int] = []
    for run in joined(runs):
        first = max(0, bisect_right(offsets, run.offset) - 1)
        if found:
            first = max(first, found[-1] + 1)
        found += range(first, bisect_left(offsets, run.end))
    return tuple(found)


def cut(runs: Iterable[Run], chunk_bytes: int) -> tuple[Run, ...]:
    """Ranges of at most `chunk_bytes`, none of which crosses the end of a run. So each chunk of an image that
    several sources hold has one owner, which can hash it."""
    return tuple(
        Run(at, min(chunk_bytes, run.end - at))
        for run in joined(runs)
        for at in range(run.offset, run.end, chunk_bytes)
    )
