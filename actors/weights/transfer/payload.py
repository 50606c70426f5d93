"""`Payload`: an image or a delta's bytes, pulled by chunks and passed on.

Owns the set of chunks that are here. Pure, except for the waits of the receivers that it is passed on to.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gleaner.transport.bulk import Chunk, PartialContent, PullError


@dataclass(slots=True)
class Payload:
    """`key`: the key under which it is served. `chunks`: all of it. `into`: its memory. `done`: offsets of
    the chunks that are in it, verified; `have_bytes`: their bytes, counted as they land, since a pulling host
    reports them several times a second and an image has thousands of chunks."""

    key: int
    chunks: Sequence[Chunk]
    into: memoryview
    done: set[int] = field(default_factory=set)
    have_bytes: int = field(init=False, default=0)
    partial: PartialContent = field(init=False)

    def __post_init__(self) -> None:
        self.partial = PartialContent(self.into)

    @property
    def left(self) -> list[Chunk]:
        """The chunks that are not there yet."""
        return [chunk for chunk in self.chunks if chunk.offset not in self.done]

    def landed(self, chunk: Chunk) -> None:
        """A chunk is there and verified: others may have it."""
        if chunk.offset not in self.done:
            self.done.add(chunk.offset)
            self.have_bytes += chunk.length
        self.partial.landed(chunk.offset, chunk.length)

    def has_all_but(self, missing: Sequence[Chunk]) -> None:
        """Mark all other chunks as done: those that an earlier life of this host pulled are not pulled
        again.
        """
        lacking = {chunk.offset for chunk in missing}
        for chunk in self.chunks:
            if chunk.offset not in lacking:
                self.landed(chunk)

    def require_all(self) -> None:
        """Require that all chunks are there; raises `PullError` if one is missing.

        Each chunk was verified in place against its digest, on arrival or when it was found here. So no byte
        is read again before it is used."""
        if left := self.left:
            raise PullError(
                f"{len(left)} of {len(self.chunks)} chunks did not come, the first at {left[0].offset}"
            )
