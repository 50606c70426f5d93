"""Something that is pulled chunk by chunk, and passed on meanwhile: an image, or what a delta holds.

Owns which of its chunks are here. Pure but for the waits of those to whom it is passed on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from transport.bulk import Chunk, PartialContent, PullError


@dataclass(slots=True)
class Payload:
    """`key`: what it is served as. `chunks`: all of it. `into`: its memory. `done`: offsets of the chunks
    that are in it, verified."""

    key: int
    chunks: Sequence[Chunk]
    into: memoryview
    done: set[int] = field(default_factory=set)
    partial: PartialContent = field(init=False)

    def __post_init__(self) -> None:
        self.partial = PartialContent(self.into)

    @property
    def left(self) -> list[Chunk]:
        """The chunks that are not there yet."""
        return [chunk for chunk in self.chunks if chunk.offset not in self.done]

    @property
    def have_bytes(self) -> int:
        """Of those that are."""
        return sum(chunk.length for chunk in self.chunks if chunk.offset in self.done)

    def landed(self, chunk: Chunk) -> None:
        """It is there, and right: others may have it."""
        self.done.add(chunk.offset)
        self.partial.landed(chunk.offset, chunk.length)

    def has_all_but(self, missing: Sequence[Chunk]) -> None:
        """What an earlier life of this host had pulled of the same is not pulled again."""
        lacking = {chunk.offset for chunk in missing}
        for chunk in self.chunks:
            if chunk.offset not in lacking:
                self.landed(chunk)

    def require_all(self) -> None:
        """Each chunk was held against its digest, where it lies: as it came, or when it was found here. So
        nothing is read again before it is used. Raises `PullError` where one is missing."""
        if left := self.left:
            raise PullError(
                f"{len(left)} of {len(self.chunks)} chunks did not come, the first at {left[0].offset}"
            )
