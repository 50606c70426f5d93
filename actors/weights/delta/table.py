"""`DeltaTable`: contents and payload offsets of a delta between two versions.

Owns the description and the checks against itself. Pure. The payload is one run of bytes, cut into *bundles*
of a few MiB. They are pulled like the chunks of an image (`gleaner.transport.bulk_frames.Chunk`, xxh3-128
each). A bundle holds the payloads of whole image chunks. The root is SHA-256 over the canonical encoding of
the rest.

If several sources publish a version, each makes the delta of its own part: a table of its own chunks.
`DeltaTable.join` concatenates their payloads and records the owner of each bundle.
"""

import hashlib
from collections.abc import Iterator, Mapping

import msgspec

from gleaner.actors.weights.delta.codec import WIDTHS, Codec, DeltaError
from gleaner.actors.weights.image.manifest import MAX_CHUNKS
from gleaner.transport.bulk_frames import DIGEST_BYTES, MAX_CHUNK_BYTES, Chunk

ALIGNMENT_BYTES = 8
"""Every payload begins at a multiple of it, so that values are read as elements in place."""
ROOT_BYTES = 32

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


class BadDelta(DeltaError):
    """The table contradicts itself, or the bytes are no table."""


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One image chunk that changed: its encoding (`Codec`, bytes of an element), and its place in the payload
    (bytes).
    """

    chunk: int
    codec: int
    width: int
    offset: int
    length: int


class BundleOwner(msgspec.Struct, frozen=True, array_like=True):
    """Of a delta that several sources make: the number of bundles, after those of the previous owners, that
    belong to `source`."""

    source: str
    bundles: int


class DeltaTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The table of a delta that turns one image into another. `base_root` and `target_root`: the roots of
    their manifests, which identify the images. Image chunks without a row did not change. `owners`: the part
    of the payload that each source has; none: the publisher has all of it."""

    base_version: int
    base_root: bytes
    version: int
    target_root: bytes
    rows: tuple[Row, ...]
    bundles: tuple[Chunk, ...]
    root: bytes
    owners: tuple[BundleOwner, ...] = ()  # not encoded where there are none: such tables keep their roots

    @staticmethod
    def join(tables: Mapping[str, "DeltaTable"]) -> "DeltaTable":
        """Join the parts of one delta, by source, each a table of the chunks that the source owns, into one
        table with `owners`. Raises `BadDelta` if they do not belong together."""
        first = next(iter(tables.values()))
        rows: list[Row] = []
        bundles: list[Chunk] = []
        at = 0
        for source, table in tables.items():
            if (table.base_root, table.target_root) != (first.base_root, first.target_root) or table.owners:
                raise BadDelta(f"{source} has a part of another delta to version {first.version}")
            rows += (msgspec.structs.replace(row, offset=at + row.offset) for row in table.rows)
            bundles += (Chunk(at + one.offset, one.length, one.digest) for one in table.bundles)
            at += table.nbytes
        bare = msgspec.structs.replace(
            first,
            rows=tuple(rows),
            bundles=tuple(bundles),
            root=b"",
            owners=tuple(BundleOwner(source, len(table.bundles)) for source, table in tables.items()),
        )
        joined = msgspec.structs.replace(bare, root=bare.expected_root())
        joined.check()
        return joined

    def shares(self) -> dict[str, tuple[Chunk, ...]]:
        """The bundles that each source has made; empty if one source has made all."""
        found, at = {}, 0
        for owner in self.owners:
            found[owner.source] = self.bundles[at : at + owner.bundles]
            at += owner.bundles
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
        return self.bundles[-1].offset + self.bundles[-1].length if self.bundles else 0

    @staticmethod
    def decode(encoded: bytes) -> "DeltaTable":
        """A table from its encoding, checked. Raises `BadDelta`."""
        try:
            table = msgspec.msgpack.decode(encoded, type=DeltaTable)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadDelta(f"{len(encoded)} bytes are no table of a delta: {error}") from error
        table.check()
        return table

    def encode(self) -> bytes:
        """The canonical encoding: equal tables give equal bytes."""
        return _ENCODER.encode(self)

    def expected_root(self) -> bytes:
        """What the root must be."""
        return hashlib.sha256(_ENCODER.encode(msgspec.structs.replace(self, root=b""))).digest()

    def check(self) -> None:
        """Raises `BadDelta` unless rows and bundles tile the payload in order, and the root fits."""
        for fault in self._faults():
            raise BadDelta(f"delta of version {self.base_version} to {self.version}: {fault}; pull in full")

    def rows_of(self, bundle: int) -> tuple[Row, ...]:
        """The rows whose payloads are in the bundle of this number."""
        place = self.bundles[bundle]
        return tuple(row for row in self.rows if place.offset <= row.offset < place.offset + place.length)

    def _faults(self) -> Iterator[str]:
        if not 0 <= self.base_version < self.version:
            yield "versions count upwards"
        if len(self.base_root) != ROOT_BYTES or len(self.target_root) != ROOT_BYTES:
            yield f"roots have {ROOT_BYTES} bytes"
        if len(self.rows) > MAX_CHUNKS or len(self.bundles) > len(self.rows):
            yield f"{len(self.rows)} rows in {len(self.bundles)} bundles"
        starts, end, chunks = set(), 0, set()
        for row in self.rows:
            if row.codec not in _CHANGES or row.width not in WIDTHS or row.chunk < 0:
                yield f"row of chunk {row.chunk}, codec {row.codec}, width {row.width}"
            if row.chunk in chunks:
                yield f"chunk {row.chunk} has two rows"
            chunks.add(row.chunk)
            if row.offset != end or not 0 < row.length <= MAX_CHUNK_BYTES:
                yield f"chunk {row.chunk} has {row.length} bytes at {row.offset}, not at {end}"
            starts.add(row.offset)
            end = padded(end + row.length)
        at = 0
        for bundle in self.bundles:
            sound = 0 < bundle.length <= MAX_CHUNK_BYTES and len(bundle.digest) == DIGEST_BYTES
            if bundle.offset != at or bundle.offset not in starts or not sound:
                yield f"a bundle of {bundle.length} bytes at {bundle.offset} does not begin a chunk at {at}"
            at = bundle.offset + bundle.length
        if at != end:
            yield f"bundles end at {at}, what they hold at {end}"
        sources = {owner.source for owner in self.owners}
        counted = sum(owner.bundles for owner in self.owners)
        if self.owners and (
            len(sources) != len(self.owners)
            or "" in sources
            or any(owner.bundles < 0 for owner in self.owners)
            or counted != len(self.bundles)
        ):
            yield f"{len(self.owners)} owners of {counted} bundles, there are {len(self.bundles)}"
        if self.root != self.expected_root():
            yield "the root is not the digest of the table"


_CHANGES = frozenset(codec for codec in Codec if codec is not Codec.SAME)


def padded(nbytes: int) -> int:
    """The next place where a payload may begin."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
