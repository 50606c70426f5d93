"""Manifest: describes one image and finds every departure from it."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.model.byte_ranges import Run, cut
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.image.manifest import (
    BadManifest,
    ImageMismatch,
    Manifest,
    ManifestError,
    Owner,
    hashed,
)
from gleaner.transport.bulk import Chunk

CHUNK = 4096
IMAGE = bytes(range(256)) * 40  # 10240 bytes: two whole chunks and a half
SPECS = [
    TensorSpec("embed", "float32", (32, 32), 0, 4096),
    TensorSpec("head", "bfloat16", (1000,), 8192, 2000),
]


def built(image: bytes = IMAGE, **changes: object) -> Manifest:
    made = Manifest.build(3, memoryview(image), SPECS, chunk_bytes=CHUNK, base_version=2)
    return msgspec.structs.replace(made, **changes) if changes else made


def sealed(manifest: Manifest, **changes: object) -> Manifest:
    """The manifest with a matching root, so that only the change itself is wrong."""
    changed = msgspec.structs.replace(manifest, **changes)
    return msgspec.structs.replace(changed, root=changed.expected_root())


def test_chunks_tile_the_image() -> None:
    chunks = built().chunks
    assert [(chunk.offset, chunk.length) for chunk in chunks] == [(0, 4096), (4096, 4096), (8192, 2048)]
    assert len({len(chunk.digest) for chunk in chunks}) == 1


def test_only_the_described_image_is_verified() -> None:
    manifest = built()
    manifest.verify(memoryview(IMAGE))
    for position in (0, 4095, 4096, len(IMAGE) - 1):
        other = bytearray(IMAGE)
        other[position] ^= 1
        with pytest.raises(ImageMismatch, match=rf"version 3: chunk {position // CHUNK} of 3") as caught:
            manifest.verify(memoryview(other))
        assert caught.value.chunk == position // CHUNK
    with pytest.raises(ImageMismatch, match="9000 bytes, its manifest 10240"):
        manifest.verify(memoryview(IMAGE[:9000]))


def test_interrupted_pull_lacks_only_the_missing_chunks() -> None:
    manifest = built()
    half = bytearray(len(IMAGE))
    half[4096:8192] = IMAGE[4096:8192]
    assert [chunk.offset for chunk in manifest.missing(memoryview(half))] == [0, 8192]
    assert manifest.missing(memoryview(IMAGE)) == []
    assert manifest.missing(memoryview(b"")) == list(manifest.chunks)


def test_root_identifies_the_weights_of_one_version() -> None:
    root = built().root
    assert built().root == root
    assert built(bytes(10240)).root != root
    assert Manifest.build(4, memoryview(IMAGE), SPECS, chunk_bytes=CHUNK, base_version=2).root != root
    assert Manifest.build(3, memoryview(IMAGE), SPECS[:1], chunk_bytes=CHUNK, base_version=2).root != root


def test_manifest_survives_its_encoding() -> None:
    assert Manifest.decode(built().encode()) == built()
    assert built().encode() == Manifest.decode(built().encode()).encode()


def test_root_of_one_publisher_does_not_include_owners() -> None:
    assert built().root.hex() == "e8484621993bab59d021643f0e095e24b26aa9c400d459bea8bb4645438db0b1"
    assert b"owners" not in built().encode()


def shared(*runs: tuple[str, int, int]) -> Manifest:
    """An image that several sources publish, each as (source, offset, bytes)."""
    shares = {
        source: hashed(memoryview(IMAGE), cut([Run(offset, length)], CHUNK))
        for source, offset, length in runs
    }
    return Manifest.join(3, SPECS, shares, base_version=2)


def test_sources_with_hashed_parts_describe_the_image_together() -> None:
    manifest = shared(("a/transfer", 0, 5000), ("b/transfer", 5000, 5240))
    assert Manifest.decode(manifest.encode()) == manifest
    manifest.verify(memoryview(IMAGE))
    assert [chunk.length for chunk in manifest.chunks] == [4096, 904, 4096, 1144]
    assert manifest.shares() == {"a/transfer": manifest.chunks[:2], "b/transfer": manifest.chunks[2:]}
    assert built().shares() == {}


def test_parts_that_leave_gaps_or_overlap_are_refused() -> None:
    with pytest.raises(BadManifest, match="chunk 1 at 4200"):
        shared(("a", 0, 4096), ("b", 4200, 6040))
    with pytest.raises(BadManifest, match="chunk 1 at 4000"):
        shared(("a", 0, 4096), ("b", 4000, 6240))


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (built(root=b"x" * 32), "the root"),
        (built(version=4), "the root"),
        (sealed(built(), chunks=built().chunks[:2]), "chunks end at 8192"),
        (sealed(built(), chunks=built().chunks[1:]), "chunk 0 at 4096"),
        (sealed(built(), chunks=(Chunk(0, 10240, b"short"),)), "chunk 0 at 0"),
        (sealed(built(), tensors=(TensorSpec("w", "float32", (4,), 10239, 16),)), "tensors end at 10255"),
        (sealed(built(), tensors=(SPECS[0], SPECS[0])), "named twice"),
        (
            sealed(built(), tensors=(SPECS[0], TensorSpec("on", "float32", (1,), 4000, 4))),
            "tensor on at 4000 overlaps",
        ),
        (sealed(built(), version=-1), "cannot be"),
        (sealed(built(), owners=(Owner("a", (Run(0, 10000),)),)), "ends at byte 10000, the image at 10240"),
        (
            sealed(built(), owners=(Owner("a", (Run(0, 4096),)), Owner("b", (Run(4000, 6240),)))),
            "bytes 4000 to 4096 are held by a and by b",
        ),
        (
            sealed(built(), owners=(Owner("a", (Run(0, 5000),)), Owner("b", (Run(5000, 5240),)))),
            "a chunk has two owners",
        ),
        (sealed(built(), owners=(Owner("", (Run(0, 10240),)),)), "an owner is named twice, or not at all"),
    ],
)
def test_contradictory_manifest_is_refused_by_name(manifest: Manifest, words: str) -> None:
    with pytest.raises(BadManifest, match=words):
        Manifest.decode(manifest.encode())


def test_chunk_sizes_out_of_range_are_refused() -> None:
    with pytest.raises(BadManifest, match="chunk_bytes is 100"):
        Manifest.build(1, memoryview(IMAGE), SPECS, chunk_bytes=100)
    with pytest.raises(BadManifest, match="0 bytes cannot be"):
        Manifest.build(1, memoryview(b""), [], chunk_bytes=CHUNK)


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_damaged_encodings_are_refused_and_never_misread(noise: bytes, where: int, value: int) -> None:
    encoded = bytearray(built().encode())
    where %= len(encoded)
    encoded[where] = value
    for candidate in (bytes(encoded), bytes(encoded[:where]), noise):
        try:
            decoded = Manifest.decode(candidate)
        except ManifestError:
            continue
        assert decoded == built()


@settings(deadline=None, max_examples=30)
@given(st.binary(min_size=1, max_size=20000), st.integers(4096, 9000))
def test_every_image_verifies_against_its_own_manifest(image: bytes, chunk_bytes: int) -> None:
    manifest = Manifest.build(1, memoryview(image), [], chunk_bytes=chunk_bytes)
    manifest.verify(memoryview(image))
    assert sum(chunk.length for chunk in manifest.chunks) == len(image)
