"""ImageStore in shared memory: atomic, bounded in number, explicit when full."""

import errno
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.image.port import ImageStoreFull, NoSuchImage, VersionConflict
from gleaner.actors.weights.image.reader_locks import ImageLocked, ReaderLock, exclusive
from gleaner.actors.weights.image.safetensors_file import NotSafetensors
from gleaner.actors.weights.image.store import ImageStore


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gleaner-test-") as path:
        yield Path(path) / "images"


def put(store: ImageStore, version: int, data: bytes) -> None:
    with store.create(version, len(data)) as draft:
        draft.view[:] = data
        draft.seal()


def test_sealed_image_is_opened_unchanged(directory: Path) -> None:
    store = ImageStore(directory)
    put(store, 7, b"weights" * 1000)
    with store.open(7) as image:
        assert bytes(image.view) == b"weights" * 1000
        assert image.view.readonly
    assert ImageStore(directory).versions() == [7]


def test_image_is_invisible_until_sealed(directory: Path) -> None:
    store = ImageStore(directory)
    with store.create(1, 100) as draft:
        draft.view[:4] = b"half"
        with pytest.raises(NoSuchImage, match=r"holds versions \[\], not 1"):
            store.open(1)
    assert list(directory.iterdir()) == [], "an abandoned draft leaves nothing"


def test_oldest_unused_version_is_evicted(directory: Path) -> None:
    store = ImageStore(directory, keep=2)
    put(store, 1, b"one")
    put(store, 2, b"two")
    with store.open(1) as kept:
        put(store, 3, b"three")
        assert store.versions() == [1, 3]
        assert bytes(kept.view) == b"one"
    put(store, 4, b"four")
    assert store.versions() == [3, 4]


def test_versions_in_use_are_never_evicted(directory: Path) -> None:
    store = ImageStore(directory, keep=2)
    put(store, 1, b"one")
    put(store, 2, b"two")
    with store.open(1), store.open(2):
        put(store, 3, b"three")
        with (
            store.open(3),
            pytest.raises(ImageStoreFull, match=r"all of \[1, 2, 3\] are read.*fuser .*v000000001"),
        ):
            store.create(4, 5)
        assert store.versions() == [1, 2, 3]
    put(store, 4, b"four")
    assert store.versions() == [3, 4], "a surplus version goes when its last reader closes it"


def inode(store: ImageStore, version: int) -> int:
    return store.path(version).stat().st_ino


def test_memory_of_an_evicted_version_is_reused(directory: Path) -> None:
    store = ImageStore(directory, keep=2)
    put(store, 1, b"first" * 2000)
    store.note(1, b"manifest", b"{}")
    first = inode(store, 1)
    put(store, 2, b"second")
    put(store, 3, b"longer" * 9000)
    assert inode(store, 3) == first
    assert store.noted(3) is None
    assert not (store.path(3).parent / "config.json").exists()
    with store.open(3) as image:
        assert bytes(image.view) == b"longer" * 9000
    before = inode(store, 2)
    put(store, 4, b"4")
    assert (inode(store, 4), len(store.content(4)), store.path(4).stat().st_size) == (before, 1, 4097)


def test_memory_in_use_is_not_reused_until_released(
    directory: Path,
) -> None:
    store = ImageStore(directory, keep=2)
    put(store, 1, b"one!")
    first, image = inode(store, 1), store.open(1)
    array = np.frombuffer(image.view, dtype=np.uint8)
    image.close()
    put(store, 2, b"two!")
    put(store, 3, b"tri!")
    assert (store.versions(), bytes(array)) == ([1, 3], b"one!")
    del array, image
    put(store, 4, b"four")
    assert (store.versions(), inode(store, 4)) == ([3, 4], first)


READER = """
import sys, time
from gleaner.actors.weights.image.reader_locks import ReaderLock
lease = ReaderLock(sys.argv[1])
print("reads", flush=True)
time.sleep(60)
"""


def test_reader_in_another_process_counts_until_it_dies(directory: Path) -> None:
    store = ImageStore(directory, keep=2, held=0)
    put(store, 1, b"one")
    put(store, 2, b"two")
    reader = subprocess.Popen([sys.executable, "-c", READER, str(store.path(2))], stdout=subprocess.PIPE)
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reads\n"
        put(store, 3, b"three")
        assert store.versions() == [2, 3]
        with store.open(3), pytest.raises(ImageStoreFull):
            store.create(4, 4)
        reader.kill()
        reader.wait(10)
        put(store, 4, b"four")
        assert store.versions() == [3, 4]
    finally:
        reader.kill()
        reader.wait(10)
        reader.stdout.close() if reader.stdout else None


def test_create_with_patience_waits_for_a_reader(directory: Path) -> None:
    store = ImageStore(directory, keep=2, held=0)
    put(store, 1, b"one")
    put(store, 2, b"two")
    first, second = store.open(1), store.open(2)
    threading.Timer(0.1, first.close).start()
    with store.create(3, 5, patience_s=60.0) as draft:
        draft.view[:] = b"three"
        draft.seal()
    assert store.versions() == [2, 3]
    second.close()


def test_drafts_and_removed_versions_cannot_be_leased(directory: Path) -> None:
    store = ImageStore(directory)
    put(store, 1, b"one")
    file = store.path(1)
    fd = exclusive(file)
    assert fd is not None
    with pytest.raises(ImageLocked, match="is being written"):
        ReaderLock(file)
    with pytest.raises(NoSuchImage):
        store.open(1)
    os.close(fd)
    lease = ReaderLock(file)
    assert exclusive(file) is None
    lease.close()
    lease.close()
    store.discard(1)
    with pytest.raises(FileNotFoundError):
        ReaderLock(file)


def test_version_is_a_checkpoint_read_without_a_copy(directory: Path) -> None:
    store = ImageStore(directory)
    numbers = np.arange(15, dtype=np.float32)
    specs = [
        TensorSpec("model.a", "float32", (3, 4), 0, 48),
        TensorSpec("model.b", "bfloat16", (2,), 48, 4),
        TensorSpec("model.c", "float32", (2,), 52, 8),
    ]
    with store.create(1, 60, specs) as draft:
        draft.view[:] = numbers.tobytes()
        draft.seal()
    store.note(1, b"manifest", b'{"model_type": "qwen3"}')
    folder = store.path(1).parent
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "note"]
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    assert tensors["model.a"].tolist() == numbers[:12].reshape(3, 4).tolist()
    assert tensors["model.c"].tolist() == [13.0, 14.0]
    assert len(tensors) == 3
    with store.path(1).open("r+b") as file:  # writes to the file are visible because the tensors are the file
        file.seek(-60, os.SEEK_END)
        file.write(np.float32(77).tobytes())
    assert tensors["model.a"][0, 0] == 77.0
    assert (store.path(1).stat().st_size - 60) % mmap.PAGESIZE == 0


def test_bytes_outside_tensors_are_declared_as_padding(directory: Path) -> None:
    store = ImageStore(directory)
    with store.create(1, 100, [TensorSpec("w", "int32", (2,), 64, 8)]) as draft:
        draft.seal()
    with safe_open(store.path(1), framework="np") as file:
        assert sorted(file.keys()) == ["gleaner.padding.0", "gleaner.padding.72", "w"]


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec("w", "float32", (2,), 0, 7),
        TensorSpec("w", "complex64", (1,), 0, 8),
        TensorSpec("w", "float32", (2,), 8, 8),
    ],
)
def test_undeclarable_tensors_are_refused_and_leave_nothing(directory: Path, spec: TensorSpec) -> None:
    with pytest.raises(NotSafetensors):
        ImageStore(directory).create(1, 12, [spec])
    assert list(directory.iterdir()) == []


def test_array_of_the_view_outlives_the_image(directory: Path) -> None:
    store = ImageStore(directory, keep=2)
    put(store, 1, b"\x01\x02\x03\x04")
    image = store.open(1)
    array = np.frombuffer(image.view, dtype=np.uint8)
    image.close()
    store.discard(1)
    assert array.tolist() == [1, 2, 3, 4]


def test_version_is_sealed_with_one_content_only(directory: Path) -> None:
    store = ImageStore(directory)
    put(store, 1, b"same")
    put(store, 1, b"same")
    with pytest.raises(VersionConflict, match="holds another version 1"):
        put(store, 1, b"else")
    with store.open(1) as image:
        assert bytes(image.view) == b"same"
    store.discard(1)
    put(store, 1, b"else")


def test_notes_live_and_die_with_their_version(directory: Path) -> None:
    store = ImageStore(directory)
    put(store, 1, b"one")
    assert store.noted(1) is None
    store.note(1, b"manifest")
    assert ImageStore(directory).noted(1) == b"manifest"
    store.discard(1)
    with pytest.raises(NoSuchImage):
        store.noted(1)
    with pytest.raises(NoSuchImage):
        store.note(2, b"of nothing")


def test_image_beyond_free_memory_is_refused_at_once(directory: Path) -> None:
    store = ImageStore(directory)
    stat = os.statvfs(directory)
    needed = stat.f_bavail * stat.f_frsize + 2**30
    with pytest.raises(ImageStoreFull, match=rf"needs {needed} bytes, \d+ are free: enlarge"):
        store.create(1, needed)
    assert list(directory.iterdir()) == []


def test_memory_exhaustion_leaves_no_litter(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = ImageStore(directory)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(ImageStoreFull):
        store.create(1, 100)
    assert list(directory.iterdir()) == []


WRITER = """
import sys, time
from gleaner.actors.weights.image.store import ImageStore
draft = ImageStore(sys.argv[1]).create(5, 4096)
draft.view[:4] = b"half"
print("writing", flush=True)
time.sleep(60)
"""


def test_draft_of_a_killed_writer_is_continued(directory: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        assert ImageStore(directory).cleaned == []
        assert len(list(directory.iterdir())) == 1
        writer.send_signal(signal.SIGKILL)
        writer.wait(60)
        store = ImageStore(directory)
        assert store.cleaned == []
        with store.create(5, 4096) as draft:
            assert draft.left
            assert bytes(draft.view[:4]) == b"half"
        assert list(directory.iterdir()) == []
    finally:
        writer.kill()
        writer.wait(60)
        writer.stdout.close() if writer.stdout else None


def test_one_dead_draft_is_kept_until_another_write(
    directory: Path,
) -> None:
    def leave(version: int) -> None:
        draft = directory / f"v{version:09d}.7.beef.draft"
        draft.mkdir()
        (draft / "model.safetensors").write_bytes(bytes(4096))

    store = ImageStore(directory)
    for version in (1, 2, 3):
        leave(version)
    assert ImageStore(directory).cleaned == ["v000000001.7.beef.draft", "v000000002.7.beef.draft"]
    for version, nbytes in ((4, 4096), (3, 17)):
        with store.create(version, nbytes) as draft:
            assert not draft.left
            assert len(list(directory.iterdir())) == 1
        leave(3)


def test_limits_are_checked(directory: Path) -> None:
    with pytest.raises(ValueError, match="keep is 1"):
        ImageStore(directory, keep=1)
    with pytest.raises(ValueError, match="0 bytes"):
        ImageStore(directory).create(1, 0)
