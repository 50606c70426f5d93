"""Versions on a shared file system: slime reads ours, and we read those of slime."""

import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
import xxhash
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.disk.codec import (
    CHECKSUMS,
    ENCODINGS,
    BadTensorDelta,
    apply_tensor,
    digest,
    encode_tensor,
)
from gleaner.actors.weights.disk.layout import INDEX, BadVersion, image_layout
from gleaner.actors.weights.disk.publication import VersionTaken
from gleaner.actors.weights.disk.reader import (
    NoSuchVersion,
    WrongDigest,
    chain_to,
    fill,
    layout_of,
    newest,
)
from gleaner.actors.weights.disk.writer import DiskWriter
from tests.actors.weights import published_reader

SPECS = image_layout(
    [
        TensorSpec("model.embed_tokens.weight", "bfloat16", (50, 7), 0, 700),
        TensorSpec("model.norm.weight", "float32", (33,), 0, 132),
        TensorSpec("scale", "float8_e4m3fn", (3, 1), 0, 3),
        TensorSpec("one", "bfloat16", (), 0, 2),
    ]
)
NBYTES = max(spec.offset + spec.nbytes for spec in SPECS)


def images(count: int, seed: int = 1, share: float = 0.02) -> list[memoryview]:
    """Consecutive versions; the last tensor never changes."""
    rng = np.random.default_rng(seed)
    at = np.concatenate([np.arange(spec.offset, spec.offset + spec.nbytes) for spec in SPECS])
    one = np.zeros(NBYTES, np.uint8)
    one[at] = rng.integers(0, 256, at.size, np.uint8)
    found = [one]
    for _ in range(count - 1):
        one = one.copy()
        some = rng.choice(at[:-2], max(1, int(at.size * share)), replace=False)
        one[some] ^= rng.integers(1, 256, some.size, np.uint8)
        found.append(one)
    return [memoryview(one.tobytes()) for one in found]


def named(image: memoryview) -> dict[str, bytes]:
    return {spec.name: bytes(image[spec.offset : spec.offset + spec.nbytes]) for spec in SPECS}


def publish(
    folder: Path, versions: list[memoryview], *, encoding: str = "xor", checksum: str = "xxh3-128"
) -> None:
    writer = DiskWriter(folder, encoding=encoding, checksum=checksum)
    writer.write_whole(0, versions[0], SPECS)
    for number in range(1, len(versions)):
        writer.write_delta(number, versions[number - 1], versions[number], SPECS)


def read(source: Path, version: int, base: Path | None = None) -> dict[str, bytes]:
    chain = chain_to(source, version, base)
    image = memoryview(bytearray(NBYTES))
    fill(chain, image, layout_of(chain))
    assert layout_of(chain) == SPECS
    return named(image)


@pytest.mark.parametrize("checksum", CHECKSUMS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_published_versions_are_pulled_bit_for_bit(encoding: str, checksum: str, tmp_path: Path) -> None:
    versions = images(4)
    publish(tmp_path / "shared", versions, encoding=encoding, checksum=checksum)
    base = tmp_path / "shared" / "weight_v000000"
    for target in (1, 3):  # one step, then two steps at once
        published_reader.pull(tmp_path / "local", base, tmp_path / "shared", target)
        assert published_reader.tensors(tmp_path / "local") == named(versions[target])
    published_reader.pull(tmp_path / "late", base, tmp_path / "shared", 3)
    assert published_reader.tensors(tmp_path / "late") == named(versions[3])


def test_late_host_begins_at_a_whole_version(tmp_path: Path) -> None:
    versions = images(5)
    writer = DiskWriter(tmp_path, encoding="xor", checksum="adler32")
    writer.write_whole(2, versions[2], SPECS)
    for number in (3, 4):
        writer.write_delta(number, versions[number - 1], versions[number], SPECS)
    published_reader.pull(tmp_path / "local", tmp_path / "no base", tmp_path, 4)
    assert published_reader.tensors(tmp_path / "local") == named(versions[4])
    assert read(tmp_path, 4) == named(versions[4])
    writer.forget_before(3)
    with pytest.raises(NoSuchVersion, match="weight_v000002"):
        read(tmp_path, 4)


def test_whole_version_loads_as_a_checkpoint(tmp_path: Path) -> None:
    like = tmp_path / "like"
    like.mkdir()
    (like / "config.json").write_text(json.dumps({"vocab_size": 7, "torch_dtype": "float32"}))
    (like / "tokenizer.json").write_text("{}")
    (like / "trainer.safetensors").write_bytes(b"none of theirs")
    specs = image_layout([TensorSpec("w", "float32", (4, 2), 0, 32), TensorSpec("b", "float32", (3,), 0, 12)])
    image = np.zeros(64 + 12, np.uint8)
    image[:32] = np.arange(8, dtype=np.float32).view(np.uint8)
    DiskWriter(tmp_path / "shared", encoding="xor", checksum="blake3", like=like).write_whole(
        7, memoryview(image), specs
    )
    folder = tmp_path / "shared" / "weight_v000007"
    state = load_file(folder / "model.safetensors")
    assert state["w"].tolist() == np.arange(8.0).reshape(4, 2).tolist()
    assert json.loads((folder / "config.json").read_text()) == {"vocab_size": 7, "dtype": "float32"}
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["config.json", "tokenizer.json", "model.safetensors", INDEX]
    )


def slime_publishes(folder: Path, version: int, old: dict[str, bytes], new: dict[str, bytes]) -> None:
    """Write a version as slime's trainer does with two writing ranks, with plain safetensors and zstd."""
    folder = folder / f"weight_v{version:06d}"
    folder.mkdir(parents=True)
    changed = [name for name in new if new[name] != old[name]]
    weight_map = {}
    for rank, names in enumerate((changed[::2], changed[1::2])):
        file = f"model-{rank:05d}-of-00002.safetensors"
        pressed, digests = {}, {}
        for name in names:
            xor = np.frombuffer(new[name], np.uint8) ^ np.frombuffer(old[name], np.uint8)
            pressed[name] = np.frombuffer(zstd.compress(xor.tobytes(), 1), np.uint8)
            digests[name] = xxhash.xxh3_128(new[name]).hexdigest()
            weight_map[name] = file
        save_file(pressed, folder / file, metadata=digests)
    metadata = {
        "version": f"{version:06d}",
        "base_version": f"{version - 1:06d}",
        "delta_encoding": "xor",
        "compression_format": "zstd",
        "checksum_format": "xxh3-128",
    }
    (folder / INDEX).write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))


def test_versions_of_slime_are_read_bit_for_bit(tmp_path: Path) -> None:
    versions = [named(image) for image in images(4, seed=2)]
    base = tmp_path / "base"
    DiskWriter(tmp_path / "made", encoding="xor", checksum="adler32").write_whole(
        0, images(1, seed=2)[0], SPECS
    )
    shutil.copytree(tmp_path / "made" / "weight_v000000", base)
    (base / INDEX).unlink()  # a checkpoint of one file has none
    for number in (1, 2, 3):
        slime_publishes(tmp_path / "shared", number, versions[number - 1], versions[number])
    assert newest(tmp_path / "shared") == 3
    assert [read(tmp_path / "shared", number, base) for number in range(4)] == versions


def test_stitch_folder_is_recognized_by_its_pointer(tmp_path: Path) -> None:
    versions = images(3)
    writer = DiskWriter(tmp_path, encoding="xor", checksum="xxh3-128", stitch_run="run-7")
    writer.write_whole(0, versions[0], SPECS)
    writer.write_delta(1, versions[0], versions[1], SPECS)
    assert (tmp_path / "latest").read_text() == "run-7/weight_v000001"
    assert (tmp_path / "updates" / "weight_v000001" / INDEX).exists()
    (tmp_path / "latest").write_text("run-7/weight_v000000")  # later versions are not published yet
    assert newest(tmp_path) == 0
    assert read(tmp_path, 1) == named(versions[1])


def test_unchanged_version_has_only_an_index(tmp_path: Path) -> None:
    image = images(1)[0]
    publish(tmp_path, [image, image])
    assert [path.name for path in (tmp_path / "weight_v000001").iterdir()] == [INDEX]
    assert read(tmp_path, 1) == named(image)


# -- errors are reported, and nothing is changed --


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_wrong_base_is_found_by_the_first_digest(tmp_path: Path) -> None:
    publish(tmp_path / "shared", images(2, seed=3))
    publish(tmp_path / "other", images(1, seed=4))
    base = tmp_path / "other" / "weight_v000000"
    before = contents(base)
    with pytest.raises(WrongDigest, match=r"weight_v000001.*base is not the version"):
        read(tmp_path / "shared", 1, base)
    assert contents(base) == before


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_version_is_refused_or_read_correctly(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("shared")
    versions = images(3, seed=data.draw(st.integers(0, 50)))
    publish(folder, versions, encoding=data.draw(st.sampled_from(ENCODINGS)))
    damaged = folder / "weight_v000001"
    path = data.draw(st.sampled_from(sorted(damaged.iterdir())))
    held = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(held) - 1))
    if data.draw(st.booleans()):
        del held[at:]
    else:
        held[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(held)
    try:
        have = read(folder, 2)
    except (NoSuchVersion, BadVersion, BadTensorDelta, WrongDigest):
        return
    assert have == named(versions[2])


def test_unfinished_version_is_not_a_version(tmp_path: Path) -> None:
    publish(tmp_path, images(2))
    (tmp_path / "weight_v000001" / INDEX).unlink()  # slime writes it last
    assert newest(tmp_path) == 0
    with pytest.raises(NoSuchVersion, match="still being written"):
        read(tmp_path, 1)


def test_difference_against_an_earlier_version_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, images(3))
    index = tmp_path / "weight_v000002" / INDEX
    index.write_text(index.read_text().replace('"base_version": "000001"', '"base_version": "000000"'))
    with pytest.raises(BadVersion, match="against version 0, not 1"):
        read(tmp_path, 2)


def test_index_with_a_file_elsewhere_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, images(2))
    index = tmp_path / "weight_v000001" / INDEX
    index.write_text(index.read_text().replace("model-00000-of", "../weight_v000000/model-00000-of"))
    with pytest.raises(BadVersion, match="no name of a file"):
        read(tmp_path, 1)


def test_failed_writer_leaves_no_version(tmp_path: Path) -> None:
    writer = DiskWriter(tmp_path, encoding="xor", checksum="xxh3-128")
    odd = (TensorSpec("w", "complex64", (1,), 0, 8),)
    with pytest.raises(BadVersion, match="complex64"):
        writer.write_whole(1, memoryview(bytes(8)), odd)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".weight_v000001.draft").mkdir()  # left by a killed writer
    DiskWriter(tmp_path, encoding="xor", checksum="xxh3-128")
    assert list(tmp_path.iterdir()) == []


def test_version_is_written_once(tmp_path: Path) -> None:
    writer = DiskWriter(tmp_path, encoding="xor", checksum="xxh3-128")
    one, other = images(2)
    writer.write_whole(1, one, SPECS, b"root")
    assert writer.has(1, b"root")
    assert not writer.has(2, b"root")
    with pytest.raises(VersionTaken, match="folder of its own"):
        writer.has(1, b"other")
    with pytest.raises(VersionTaken):
        writer.write_whole(1, other, SPECS, b"other")
    assert read(tmp_path, 1) == named(one)


# -- one tensor --


@given(
    old=st.binary(min_size=1, max_size=300),
    flips=st.lists(st.tuples(st.integers(0, 299), st.integers(1, 255)), max_size=40),
    encoding=st.sampled_from(ENCODINGS),
)
def test_tensor_difference_makes_the_new_tensor(
    old: bytes, flips: list[tuple[int, int]], encoding: str
) -> None:
    new = bytearray(old)
    for at, flip in flips:
        new[at % len(new)] ^= flip
    payload = encode_tensor(memoryview(old), memoryview(new), encoding)
    assert (payload is None) == (bytes(new) == old)
    if payload is not None:
        have = bytearray(old)
        apply_tensor(memoryview(payload), memoryview(have), encoding)
        assert have == new
        if encoding == "overwrite":
            apply_tensor(memoryview(payload), memoryview(have), encoding)
            assert have == new, "applied twice"


def test_oversized_frame_is_refused_before_it_is_decompressed() -> None:
    bomb = zstd.compress(bytes(1 << 28), 1)
    for encoding in ENCODINGS:
        with pytest.raises(BadTensorDelta):
            apply_tensor(memoryview(bomb), memoryview(bytearray(100)), encoding)


def test_digests_follow_the_algorithms_of_their_names() -> None:
    data = b"some bytes"
    assert digest("adler32", memoryview(data)) == f"{zlib.adler32(data):08x}"
    assert digest("xxh3-128", memoryview(data)) == xxhash.xxh3_128_hexdigest(data)
    # https://github.com/BLAKE3-team/BLAKE3/blob/master/test_vectors/test_vectors.json, the empty input
    assert digest("blake3", memoryview(b"")).startswith("af1349b9f5f9a1a6a0404dea36dcc949")
