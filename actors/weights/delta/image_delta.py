"""`Delta`: lossless difference between two versions of an image.

A delta is made from both images, and applied to the first image or to a copy. It consists of a table
(`table`) and a payload. `codec` encodes one chunk; `choice` decides whether a delta is
worth its bytes. Pure: the caller maps the images.

A chain of deltas is applied chunk by chunk, every link while the chunk is in the cache. The result is
verified against the digest in the manifest of the last version, so no wrong byte is accepted, whatever failed
before. After any error `Manifest.missing` lists the chunks to pull in full.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec
import xxhash

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.delta.codec import (
    Codec,
    DamagedPayload,
    DeltaError,
    apply_chunk,
    encode_chunk,
    kernels_for,
)
from gleaner.actors.weights.delta.estimate import is_hopeless
from gleaner.actors.weights.delta.table import DeltaTable, Row, padded
from gleaner.actors.weights.image.manifest import Manifest
from gleaner.transport.bulk_frames import MAX_CHUNK_BYTES, Chunk

BUNDLE_BYTES = 4 << 20
"""A bundle is closed at this size; it never exceeds the largest chunk on the wire (16 MiB)."""
_Out = TypeVar("_Out")


class Mapper(Protocol):
    """Calls for each number, results in order, as `map` does it; `delta_threads.lots` has threads for it."""

    def __call__(self, call: Callable[[int], _Out], numbers: Iterable[int], /) -> Iterable[_Out]: ...


_Encoded = tuple[int, int, Codec, bytes]  # chunk, width, codec, payload


class WrongBase(DeltaError):
    """The delta does not start from the receiver's version, or a link of the chain is missing."""


class OtherLayout(DeltaError):
    """Tensors and chunks of the two versions have different offsets, so there is no delta."""


class WrongResult(DeltaError):
    """`chunk` does not match the manifest after the delta: base, delta or manifest is wrong."""

    def __init__(self, text: str, chunk: int) -> None:
        super().__init__(text)
        self.chunk = chunk


@dataclass(frozen=True)
class Delta:
    """A table, and its bundles in order."""

    table: DeltaTable
    bundles: Sequence[bytes | memoryview]

    @staticmethod
    def build(
        old: memoryview,
        new: memoryview,
        old_manifest: Manifest,
        new_manifest: Manifest,
        *,
        compress: bool = False,
        most_bytes: int | None = None,
        part: Collection[Chunk] | None = None,
        each: Mapper = map,
    ) -> "Delta | None":
        """Build the delta that turns image `old` into image `new`, which their manifests describe.

        `part`, if given, restricts it to these chunks. Both images are read once; `each` maps over the chunks
        on the caller's thread or on others. Returns None as soon as the payload exceeds `most_bytes`, or at
        once if a sample shows that it will (`delta_sample`): then the version is sent in full. Raises
        `OtherLayout`, and `DeltaError` if a manifest does not describe its image.
        """
        _require_one_layout(old_manifest, new_manifest)
        widths = chunk_widths(new_manifest)
        loops = kernels_for(new_manifest.image_bytes)
        was, now = old.cast("B"), new.cast("B")

        def encode(number: int) -> _Encoded:
            chunk = new_manifest.chunks[number]
            part = slice(chunk.offset, chunk.offset + chunk.length)
            codec, payload = encode_chunk(
                was[part], now[part], widths[number], compress=compress, loops=loops
            )
            return number, widths[number], codec, payload

        rows: list[Row] = []
        bundles = _Bundles()
        here = None if part is None else {chunk.offset for chunk in part}
        changed = [
            number
            for number, (one, other) in enumerate(zip(old_manifest.chunks, new_manifest.chunks, strict=True))
            if one.digest != other.digest and (here is None or one.offset in here)
        ]
        if most_bytes is not None and is_hopeless(
            was,
            now,
            [new_manifest.chunks[number] for number in changed],
            [widths[number] for number in changed],
            most_bytes,
            seed=int.from_bytes(new_manifest.root[:8]),
            compress=compress,
        ):
            return None
        for number, width, codec, payload in each(encode, changed):
            if codec is Codec.SAME:  # two digests for the same bytes: a manifest does not describe its image
                raise DeltaError(
                    f"chunk {number} did not change and has another digest: hash both images again"
                )
            rows.append(Row(number, int(codec), width, bundles.add(payload), len(payload)))
            if most_bytes is not None and bundles.nbytes > most_bytes:
                return None
        bundles.close()
        bare = DeltaTable(
            base_version=old_manifest.version,
            base_root=old_manifest.root,
            version=new_manifest.version,
            target_root=new_manifest.root,
            rows=tuple(rows),
            bundles=tuple(bundles.places),
            root=b"",
        )
        table = msgspec.structs.replace(bare, root=bare.expected_root())
        table.check()
        return Delta(table, tuple(bundles.done))

    def payloads(self) -> dict[int, tuple[Row, memoryview]]:
        """Row and payload of every image chunk that changes, by its number. Raises `DamagedPayload` if a
        bundle does not hash to its digest."""
        if len(self.bundles) != len(self.table.bundles):
            raise DamagedPayload(f"{len(self.bundles)} bundles, the table lists {len(self.table.bundles)}")
        rows = iter(self.table.rows)
        row = next(rows, None)
        found = {}
        for number, (place, bundle) in enumerate(zip(self.table.bundles, self.bundles, strict=True)):
            view = memoryview(bundle).cast("B")
            if len(view) != place.length or xxhash.xxh3_128_digest(view) != place.digest:
                raise DamagedPayload(f"bundle {number} of {len(self.bundles)} was damaged: pull it again")
            while row is not None and row.offset < place.offset + place.length:
                at = row.offset - place.offset
                found[row.chunk] = (row, view[at : at + row.length])
                row = next(rows, None)
        return found


def apply(
    chain: Sequence[Delta],
    base: memoryview,
    into: memoryview,
    base_manifest: Manifest,
    manifest: Manifest,
    *,
    each: Mapper = map,
) -> None:
    """Make in `into` the image that `manifest` describes, from `base` and the deltas that lead from it.

    `base` is the image of `base_manifest`, already verified; `into` may be the same memory, and is as long.
    Every chunk is verified against its digest in `manifest` while it is in the cache. Copied chunks are
    verified too, because the base may have rotted since its verification. Applying is idempotent, also after
    half of it: in the same memory the base is then gone, and chunks that have changed already are kept.

    Raises:
        WrongBase: the chain does not lead from `base_manifest` to `manifest`; nothing was written.
        OtherLayout: the two versions are not laid out alike; nothing was written.
        DamagedPayload: a bundle or payload is not what it was; `into` may be half changed.
        WrongResult: a chunk came out wrong; likewise.
    """
    _require_chain(chain, base_manifest, manifest)
    _require_one_layout(base_manifest, manifest)
    if len(base) != manifest.image_bytes or len(into) != manifest.image_bytes:
        raise WrongBase(f"images of {len(base)} and {len(into)} bytes for one of {manifest.image_bytes}")
    links = [delta.payloads() for delta in chain]
    loops = kernels_for(manifest.image_bytes)
    source, target = base.cast("B"), into.cast("B")

    def one(number: int) -> None:
        chunk = manifest.chunks[number]
        part = slice(chunk.offset, chunk.offset + chunk.length)
        result = target[part]
        if base is not into:
            apply_chunk(Codec.FULL, source[part], result, 1, loops=loops)
        steps = [link[number] for link in links if number in link]
        for row, payload in steps:
            apply_chunk(row.codec, payload, result, row.width, loops=loops)
        if xxhash.xxh3_128_digest(result) != chunk.digest:
            raise WrongResult(
                f"chunk {number} does not match the digest of version {manifest.version} after "
                f"{len(steps)} of {len(chain)} deltas from version {base_manifest.version}: pull it in full",
                number,
            )

    for _ in each(one, range(len(manifest.chunks))):
        pass


def chunk_widths(manifest: Manifest) -> list[int]:
    """Bytes of an element for the delta of each image chunk. A wrong width costs bytes, never a bit.

    It is 4 if all tensors of the chunk have elements of 4 bytes or 8, otherwise 1. If a step changes a
    bfloat16, nine times in ten only the low byte changes, and a gap and that byte are less than a gap and
    both.
    """
    narrow, wide = ([False] * len(manifest.chunks) for _ in range(2))
    first = 0
    for tensor in sorted(manifest.tensors, key=lambda tensor: tensor.offset):
        while first < len(narrow) and _end(manifest.chunks[first]) <= tensor.offset:
            first += 1
        for number in range(first, len(narrow)):
            if not tensor.nbytes or manifest.chunks[number].offset >= tensor.offset + tensor.nbytes:
                break
            (wide if _is_wide(tensor) else narrow)[number] = True
    return [4 if has and not also else 1 for has, also in zip(wide, narrow, strict=True)]


class _Bundles:
    """Payloads, one after the other, cut where a bundle is full."""

    def __init__(self) -> None:
        self.done: list[bytes] = []
        self.places: list[Chunk] = []
        self._begin = 0
        self._open = bytearray()

    @property
    def nbytes(self) -> int:
        """Bytes of all added payloads."""
        return self._begin + len(self._open)

    def add(self, payload: bytes) -> int:
        """Append a payload and return its offset in the whole."""
        if self._open and padded(len(self._open) + len(payload)) > MAX_CHUNK_BYTES:
            self.close()
        at = self.nbytes
        self._open += payload
        self._open += bytes(padded(len(self._open)) - len(self._open))
        if len(self._open) >= BUNDLE_BYTES:
            self.close()
        return at

    def close(self) -> None:
        """The next payload begins another bundle."""
        if self._open:
            bundle = bytes(self._open)
            self.places.append(Chunk(self._begin, len(bundle), xxhash.xxh3_128_digest(bundle)))
            self.done.append(bundle)
            self._begin += len(bundle)
            self._open.clear()


def _require_one_layout(old: Manifest, new: Manifest) -> None:
    places = [[(chunk.offset, chunk.length) for chunk in one.chunks] for one in (old, new)]
    if old.tensors != new.tensors or places[0] != places[1]:
        raise OtherLayout(
            f"versions {old.version} and {new.version} have their tensors or chunks in other places: send all"
        )


def _require_chain(chain: Sequence[Delta], base: Manifest, target: Manifest) -> None:
    root = base.root
    for delta in chain:
        table = delta.table
        if table.base_root != root:
            raise WrongBase(
                f"the delta of version {table.base_version} to {table.version} begins at "
                f"{table.base_root.hex()[:16]}, not at {root.hex()[:16]} where it is needed: pull in full"
            )
        root = table.target_root
    if root != target.root:
        raise WrongBase(
            f"{len(chain)} deltas from version {base.version} end at {root.hex()[:16]}, version "
            f"{target.version} is {target.root.hex()[:16]}: a link is missing, pull in full"
        )


def _end(chunk: Chunk) -> int:
    return chunk.offset + chunk.length


def _is_wide(tensor: TensorSpec) -> bool:
    each, rest = divmod(tensor.nbytes, max(1, math.prod(tensor.shape)))
    return each > 0 and each % 4 == 0 and not rest
