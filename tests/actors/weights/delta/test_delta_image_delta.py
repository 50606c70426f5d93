"""Image deltas: exact steps between versions, or a refusal with its reason."""

import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.delta import estimate as delta_sample
from gleaner.actors.weights.delta import image_delta as delta
from gleaner.actors.weights.delta.codec import Codec, DamagedPayload, DeltaError
from gleaner.actors.weights.delta.image_delta import (
    Delta,
    OtherLayout,
    WrongBase,
    WrongResult,
    apply,
    chunk_widths,
)
from gleaner.actors.weights.delta.table import BadDelta, DeltaTable, Row
from gleaner.actors.weights.delta.threads import lots, on_threads
from gleaner.actors.weights.image.manifest import Manifest
from gleaner.transport.bulk_frames import MAX_CHUNK_BYTES, Chunk

CHUNK = 4096
SPECS = [
    TensorSpec("half", "bfloat16", (6000,), 0, 12000),
    TensorSpec("scale", "float32", (), 12032, 4),  # 0-d
    TensorSpec("none", "float32", (0, 7), 12096, 0),
    TensorSpec("single", "float32", (3000,), 12096, 12000),
    TensorSpec("eighth", "float8_e4m3fn", (5, 999), 24128, 4995),
]
SIZE = 29123  # the last chunk is partial, and no multiple of 4


def manifest_of(version: int, image: bytes, specs: list[TensorSpec] = SPECS) -> Manifest:
    return Manifest.build(version, memoryview(image), specs, chunk_bytes=CHUNK)


def versions(count: int, density: float, seed: int = 0, size: int = SIZE) -> list[bytes]:
    """Images, each with a share of the bytes of the one before changed."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, size, np.uint8)
    found = [image.tobytes()]
    for _ in range(count - 1):
        image = np.where(rng.random(size) < density, rng.integers(0, 256, size, np.uint8), image)
        found.append(image.tobytes())
    return found


def built(images: list[bytes], first: int, second: int, **options: bool) -> Delta:
    manifests = [manifest_of(version, images[version]) for version in (first, second)]
    delta = Delta.build(memoryview(images[first]), memoryview(images[second]), *manifests, **options)
    assert delta is not None
    return delta


def result(chain: list[Delta], images: list[bytes], first: int, second: int) -> bytes:
    into = bytearray(len(images[first]))
    manifests = [manifest_of(version, images[version]) for version in (first, second)]
    apply(chain, memoryview(images[first]), memoryview(into), *manifests)
    return bytes(into)


@settings(deadline=None, max_examples=20)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.0002, 0.01, 0.1, 0.9]),
    st.integers(2, 5),
    st.booleans(),
)
def test_chain_of_deltas_equals_the_direct_delta(
    seed: int, density: float, count: int, compress: bool
) -> None:
    images = versions(count, density, seed)
    last = count - 1
    links = [built(images, version, version + 1, compress=compress) for version in range(last)]
    assert result(links, images, 0, last) == images[last]
    assert result([built(images, 0, last, compress=compress)], images, 0, last) == images[last]


def test_delta_is_applied_in_place_and_after_half() -> None:
    images = versions(2, 0.02)
    delta = built(images, 0, 1)
    manifests = [manifest_of(version, image) for version, image in enumerate(images)]
    for whole in (0, 3 * CHUNK, SIZE):
        memory = bytearray(images[1][:whole] + images[0][whole:])
        view = memoryview(memory)
        apply([delta], view, view, *manifests)
        apply([delta], view, view, *manifests)
        assert bytes(memory) == images[1]


def test_threads_make_equal_deltas_and_images() -> None:
    images = versions(2, 0.02, size=200 * CHUNK + 5)
    manifests = [
        Manifest.build(v, memoryview(image), [], chunk_bytes=CHUNK) for v, image in enumerate(images)
    ]
    views = [memoryview(image) for image in images]
    alone = Delta.build(*views, *manifests)
    into = bytearray(len(images[0]))
    with ThreadPoolExecutor(2) as executor:
        delta = Delta.build(*views, *manifests, each=lots(executor))
        assert delta is not None
        assert delta == alone
        apply([delta], views[0], memoryview(into), *manifests, each=lots(executor))
        assert bytes(into) == images[1]
        wrong = bytearray(images[0])
        wrong[150 * CHUNK] ^= 1
        changed = versions(2, 0.5, seed=9, size=len(wrong))[1]
        with pytest.raises(WrongResult) as caught:
            apply([delta], memoryview(changed), memoryview(into), *manifests, each=lots(executor))
        assert caught.value.chunk == 0
    for each in (on_threads(0), on_threads(1), on_threads(3)):
        assert Delta.build(*views, *manifests, each=each) == alone
        into[:] = bytes(len(into))
        apply([delta], views[0], memoryview(into), *manifests, each=each)
        assert bytes(into) == images[1]
    assert Delta.build(*views, *manifests, most_bytes=1, each=on_threads(3)) is None


def test_threads_are_started_only_for_two_or_more() -> None:
    seen = set()

    def where(number: int) -> int:
        seen.add(threading.current_thread().name.rpartition("_")[0])
        return number

    assert on_threads(1) is map
    assert list(on_threads(2)(where, range(200))) == list(range(200))
    assert seen == {"delta"}
    assert not [one for one in threading.enumerate() if one.name.startswith("delta_")], "all ended"


def test_equal_images_give_an_empty_delta() -> None:
    image = versions(1, 0.0)[0]
    assert built([image, image], 0, 1).table.nbytes == 0
    assert result([built([image, image], 0, 1)], [image, image], 0, 1) == image
    changed = bytearray(image)
    changed[CHUNK * 2] ^= 0xFF
    delta = built([image, bytes(changed)], 0, 1)
    assert [row.chunk for row in delta.table.rows] == [2]
    assert delta.table.nbytes < 32


def test_bundles_are_bounded_and_contain_whole_chunks() -> None:
    chunk_bytes, size = 1 << 20, (21 << 20) + 7
    rng = np.random.default_rng(2)
    images = [rng.integers(0, 256, size, np.uint8).tobytes() for _ in range(2)]
    manifests = [
        Manifest.build(v, memoryview(image), [], chunk_bytes=chunk_bytes) for v, image in enumerate(images)
    ]
    delta = Delta.build(memoryview(images[0]), memoryview(images[1]), *manifests)
    assert delta is not None
    lengths = [bundle.length for bundle in delta.table.bundles]
    assert {*lengths[:-1]} == {4 << 20}
    assert max(lengths) <= MAX_CHUNK_BYTES
    assert {row.codec for row in delta.table.rows} == {Codec.FULL}
    listed = [row for number in range(len(lengths)) for row in delta.table.rows_of(number)]
    assert listed == list(delta.table.rows)


def test_too_large_delta_is_given_up() -> None:
    images = versions(2, 0.9)
    manifests = [manifest_of(version, image) for version, image in enumerate(images)]
    views = [memoryview(image) for image in images]
    assert Delta.build(*views, *manifests, most_bytes=SIZE // 2) is None
    assert Delta.build(*views, *manifests, most_bytes=SIZE * 2) is not None


def test_delta_that_a_sample_rejects_is_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = versions(3, 0.99)
    manifests = [manifest_of(version, image) for version, image in enumerate(images)]
    views = [memoryview(image) for image in images]
    monkeypatch.setattr(delta_sample, "SAMPLED", 100.0)  # these images are too small for the sample
    encoded = []
    encode = delta.encode_chunk
    monkeypatch.setattr(delta, "encode_chunk", lambda *args, **how: encoded.append(1) or encode(*args, **how))
    assert Delta.build(views[0], views[1], *manifests[:2], most_bytes=SIZE // 2) is None
    assert not encoded
    assert Delta.build(views[0], views[1], *manifests[:2]) is not None
    assert encoded


def test_chunk_width_is_that_of_its_tensors() -> None:
    manifest = manifest_of(0, versions(1, 0.0)[0])
    assert chunk_widths(manifest) == [1, 1, 1, 4, 4, 1, 1, 1]  # where tensors of two widths meet: 1


def test_wrong_base_or_missing_link_writes_nothing() -> None:
    images = versions(4, 0.02)
    first, second, third = (built(images, version, version + 1) for version in range(3))
    manifests = [manifest_of(version, image) for version, image in enumerate(images)]
    into = bytearray(SIZE)
    for chain, base, target in (
        ([second], 0, 2),
        ([first, third], 0, 3),
        ([first], 0, 2),
        ([], 0, 1),
    ):
        with pytest.raises(WrongBase):
            apply(chain, memoryview(images[base]), memoryview(into), manifests[base], manifests[target])
    with pytest.raises(WrongBase, match="for one of 29123"):
        apply([first], memoryview(images[0][:-1]), memoryview(into), *manifests[:2])
    assert into == bytes(SIZE)


def test_images_with_moved_tensors_have_no_delta() -> None:
    images = versions(2, 0.02)
    old = manifest_of(0, images[0])
    views = [memoryview(image) for image in images]
    for new in (
        manifest_of(1, images[1], SPECS[:-1]),
        Manifest.build(1, views[1], SPECS, chunk_bytes=2 * CHUNK),
    ):
        with pytest.raises(OtherLayout, match="send all"):
            Delta.build(*views, old, new)


def test_false_base_is_found_by_the_final_digest() -> None:
    images = versions(2, 0.02)
    manifests = [manifest_of(version, image) for version, image in enumerate(images)]
    delta = built(images, 0, 1)
    kept = next(at for at in range(CHUNK * 2, SIZE) if images[0][at] == images[1][at])
    damaged = bytearray(images[0])
    damaged[kept] ^= 1
    into = bytearray(SIZE)
    with pytest.raises(WrongResult, match="chunk 2 does not match") as caught:
        apply([delta], memoryview(damaged), memoryview(into), *manifests)
    assert caught.value.chunk == 2
    assert manifests[1].missing(memoryview(into))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 255), st.booleans())
def test_damaged_bundle_is_found_before_it_is_used(where: int, flip: int, compress: bool) -> None:
    images = versions(2, 0.02)
    delta = built(images, 0, 1, compress=compress)
    bundle = bytearray(delta.bundles[0])
    bundle[where % len(bundle)] ^= flip
    damaged = Delta(delta.table, [bytes(bundle)])
    with pytest.raises(DamagedPayload, match="bundle 0 of 1"):
        result([damaged], images, 0, 1)
    with pytest.raises(DamagedPayload, match="0 bundles"):
        result([Delta(delta.table, [])], images, 0, 1)


def test_false_table_with_a_valid_root_is_refused() -> None:
    images = versions(2, 0.02)
    delta = built(images, 0, 1)
    table = delta.table
    one, *rest = table.rows
    for row in (
        Row(one.chunk, one.codec, 1 if one.width == 4 else 4, one.offset, one.length),
        Row(one.chunk, int(Codec.G8RZ), one.width, one.offset, one.length),
        Row(one.chunk, int(Codec.FULL), one.width, one.offset, one.length),
    ):
        lying = sealed(table, rows=(row, *rest))
        lying.check()
        with pytest.raises(DeltaError):
            result([Delta(lying, delta.bundles)], images, 0, 1)
    elsewhere = sealed(table, rows=(*table.rows[:-1], Row(99, *msgspec.to_builtins(table.rows[-1])[1:])))
    with pytest.raises(DeltaError):
        result([Delta(elsewhere, delta.bundles)], images, 0, 1)


def sealed(table: DeltaTable, **changes: object) -> DeltaTable:
    """The table with a matching root, so that only the change itself is wrong."""
    changed = msgspec.structs.replace(table, **changes)
    return msgspec.structs.replace(changed, root=changed.expected_root())


def test_contradictory_table_is_refused_by_name() -> None:
    table = built(versions(2, 0.02), 0, 1).table
    rows, (bundle,) = table.rows, table.bundles
    for wrong, words in (
        (msgspec.structs.replace(table, version=7), "the root"),
        (sealed(table, version=0), "count upwards"),
        (sealed(table, base_root=b"short"), "roots have 32"),
        (sealed(table, rows=rows[1:]), "not at 0"),
        (sealed(table, rows=(*rows, rows[0])), f"chunk {rows[0].chunk} has two rows"),
        (sealed(table, rows=(Row(0, 9, 2, 0, 8),)), "codec 9"),
        (sealed(table, rows=(Row(0, 1, 3, 0, 8),)), "width 3"),
        (sealed(table, bundles=()), "bundles end at 0"),
        (sealed(table, bundles=(Chunk(0, bundle.length, b""),)), "a bundle of"),
        (sealed(table, bundles=(Chunk(0, 4, bundle.digest), Chunk(4, 8, bundle.digest))), "a bundle of 8"),
    ):
        with pytest.raises(BadDelta, match=words):
            DeltaTable.decode(wrong.encode())


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=200), st.integers(0, 4000), st.integers(0, 255))
def test_damaged_tables_are_refused_and_never_misread(noise: bytes, where: int, value: int) -> None:
    table = built(versions(2, 0.02), 0, 1).table
    encoded = bytearray(table.encode())
    where %= len(encoded)
    encoded[where] = value
    for candidate in (bytes(encoded), bytes(encoded[:where]), noise):
        try:
            decoded = DeltaTable.decode(candidate)
        except BadDelta:
            continue
        assert decoded == table
