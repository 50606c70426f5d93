"""`Manifest`: contents of a weight version, with the digest of each chunk.

Owns the description and the checks against it. Pure: the caller maps the image as a buffer. The holder of a
manifest can pull chunks from any source without trusting it.

A chunk's digest is xxh3-128, which finds damage at memory speed. The root is SHA-256 over the canonical
encoding of everything else, including the chunk digests. So equal roots mean equal descriptions of equal
bytes.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
import xxhash

from gleaner.actors.model.byte_ranges import Run, TilingError, check_tiling, chunks_needed, cut, joined
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.model.tensor_spec import image_bytes as bytes_of
from gleaner.transport.bulk_frames import DIGEST_BYTES, MAX_CHUNK_BYTES, Chunk

MIN_CHUNK_BYTES = 4096
MAX_CHUNKS = 2**20  # a manifest travels as one message

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


class ManifestError(ValueError):
    """A manifest or an image that cannot be trusted."""


class BadManifest(ManifestError):
    """The manifest contradicts itself: layout, chunks or root."""


class ImageMismatch(ManifestError):
    """The image is not the one that the manifest describes. `chunk` is the first that differs."""

    def __init__(self, text: str, chunk: int) -> None:
        super().__init__(text)
        self.chunk = chunk


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """Of a version that several sources publish in parts: the runs of the image that `source` has."""

    source: str
    runs: tuple[Run, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of the weights. `base_version`: the base of a delta; None for none. `owners`: the part of
    each publisher; none: one publisher has all of it."""

    version: int
    base_version: int | None
    image_bytes: int
    tensors: tuple[TensorSpec, ...]
    chunks: tuple[Chunk, ...]
    root: bytes
    owners: tuple[Owner, ...] = ()  # not encoded where there are none: such manifests keep their roots

    @staticmethod
    def build(
        version: int,
        image: memoryview,
        tensors: Sequence[TensorSpec],
        *,
        chunk_bytes: int,
        base_version: int | None = None,
    ) -> "Manifest":
        """Describe an image. Reads every byte once; for large images call it off the event loop.

        Raises:
            BadManifest: the layout does not fit the image, or `chunk_bytes` is out of range.
        """
        if not MIN_CHUNK_BYTES <= chunk_bytes <= MAX_CHUNK_BYTES:
            raise BadManifest(f"chunk_bytes is {chunk_bytes}, not in {MIN_CHUNK_BYTES} to {MAX_CHUNK_BYTES}")
        nbytes = len(image.cast("B"))
        whole = cut([Run(0, nbytes)] if nbytes else [], chunk_bytes)
        return _sealed(
            Manifest(
                version=version,
                base_version=base_version,
                image_bytes=nbytes,
                tensors=tuple(tensors),
                chunks=hashed(image, whole),
                root=b"",
            )
        )

    @staticmethod
    def join(
        version: int,
        tensors: Sequence[TensorSpec],
        shares: Mapping[str, Sequence[Chunk]],
        *,
        base_version: int | None = None,
    ) -> "Manifest":
        """Describe an image that no single source has whole.

        `shares`: by source, the chunks that it has and has `hashed`; together they make the image. If one
        source has all of it, the result equals that of `build`.

        Raises:
            BadManifest: the shares do not make the image, or the layout does not fit.
        """
        owners = tuple(
            Owner(source, joined(Run(chunk.offset, chunk.length) for chunk in chunks))
            for source, chunks in sorted(shares.items())
        )
        chunks = sorted((chunk for share in shares.values() for chunk in share), key=lambda one: one.offset)
        return _sealed(
            Manifest(
                version=version,
                base_version=base_version,
                image_bytes=sum(chunk.length for chunk in chunks),
                tensors=tuple(tensors),
                chunks=tuple(chunks),
                root=b"",
                owners=owners if len(owners) > 1 else (),
            )
        )

    def shares(self) -> dict[str, tuple[Chunk, ...]]:
        """The chunks that each source has when the version is published; empty if one has all."""
        return {
            owner.source: tuple(self.chunks[number] for number in chunks_needed(owner.runs, self.chunks))
            for owner in self.owners
        }

    @staticmethod
    def decode(encoded: bytes) -> "Manifest":
        """A manifest from its encoding, checked. Raises `BadManifest`."""
        try:
            manifest = msgspec.msgpack.decode(encoded, type=Manifest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadManifest(f"{len(encoded)} bytes are no manifest: {error}") from error
        manifest.check()
        return manifest

    def encode(self) -> bytes:
        """The canonical encoding: equal manifests give equal bytes."""
        return _ENCODER.encode(self)

    def expected_root(self) -> bytes:
        """The correct root of this description."""
        return hashlib.sha256(_ENCODER.encode(msgspec.structs.replace(self, root=b""))).digest()

    def check(self) -> None:
        """Raises `BadManifest` unless chunks tile the image, tensors lie apart in it, and the root fits."""
        where = f"manifest of version {self.version}"
        for fault in self._faults():
            raise BadManifest(f"{where}: {fault}; fetch it again from the publisher")

    def verify(self, image: memoryview, part: Sequence[Chunk] | None = None) -> None:
        """Raises `ImageMismatch` unless the image, or these chunks of it, is bit for bit the one that was
        described."""
        data = image.cast("B")
        if len(data) != self.image_bytes:
            sizes = f"{len(data)} bytes, its manifest {self.image_bytes}"
            raise ImageMismatch(f"the image of version {self.version} has {sizes}", 0)
        wanted = None if part is None else {chunk.offset for chunk in part}
        for number in self._differing(data, wanted):
            chunk = self.chunks[number]
            raise ImageMismatch(
                f"version {self.version}: chunk {number} of {len(self.chunks)} (bytes {chunk.offset} to "
                f"{chunk.offset + chunk.length}) does not hash to its digest; pull it again",
                number,
            )

    def missing(self, image: memoryview) -> list[Chunk]:
        """The chunks that the image does not hold yet: the rest of an interrupted pull."""
        data = image.cast("B")
        if len(data) != self.image_bytes:
            return list(self.chunks)
        return [self.chunks[number] for number in self._differing(data)]

    def _differing(self, data: memoryview, wanted: Collection[int] | None = None) -> Iterator[int]:
        """Numbers of the chunks, of those at the offsets `wanted`."""
        for number, chunk in enumerate(self.chunks):
            if wanted is not None and chunk.offset not in wanted:
                continue
            part = data[chunk.offset : chunk.offset + chunk.length]
            if xxhash.xxh3_128_digest(part) != chunk.digest:
                yield number

    def _faults(self) -> Iterator[str]:
        if self.version < 0 or self.image_bytes < 1:
            yield f"version {self.version} of {self.image_bytes} bytes cannot be"
        if len(self.chunks) > MAX_CHUNKS:
            yield f"{len(self.chunks)} chunks, at most {MAX_CHUNKS} are handled: use larger chunks"
        end = 0
        for number, chunk in enumerate(self.chunks):
            sound = 0 < chunk.length <= MAX_CHUNK_BYTES and len(chunk.digest) == DIGEST_BYTES
            if chunk.offset != end or not sound:
                yield f"chunk {number} at {chunk.offset} of {chunk.length} bytes does not continue at {end}"
            end = chunk.offset + chunk.length
        if end != self.image_bytes:
            yield f"chunks end at {end}, the image at {self.image_bytes}"
        if bytes_of(self.tensors) > self.image_bytes:
            yield f"tensors end at {bytes_of(self.tensors)}, the image at {self.image_bytes}"
        if len({tensor.name for tensor in self.tensors}) != len(self.tensors):
            yield "a tensor is named twice"
        end = 0
        for tensor in sorted(self.tensors, key=lambda tensor: tensor.offset):
            if tensor.offset < end or tensor.nbytes < 0:
                yield f"tensor {tensor.name} at {tensor.offset} overlaps another one"
            end = tensor.offset + tensor.nbytes
        if self.owners:
            yield from self._faults_of_owners()
        if self.root != self.expected_root():
            yield "the root is not the digest of the manifest"

    def _faults_of_owners(self) -> Iterator[str]:
        held = {owner.source: owner.runs for owner in self.owners}
        if len(held) != len(self.owners) or "" in held:
            yield "an owner is named twice, or not at all"
        try:
            check_tiling(held, self.image_bytes)
        except TilingError as error:
            yield str(error)
        else:
            if sum(map(len, self.shares().values())) != len(self.chunks):
                yield "a chunk has two owners: none of them can hash it"


def hashed(image: memoryview, ranges: Iterable[Run]) -> tuple[Chunk, ...]:
    """Chunks at these ranges of an image, with their digests. Reads them once."""
    data = image.cast("B")
    return tuple(
        Chunk(run.offset, run.length, xxhash.xxh3_128_digest(data[run.offset : run.end])) for run in ranges
    )


def _sealed(bare: Manifest) -> Manifest:
    """With its root, and checked."""
    manifest = msgspec.structs.replace(bare, root=bare.expected_root())
    manifest.check()
    return manifest
