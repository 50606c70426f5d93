"""Images in shared memory: whole or invisible, bounded in number, clear when full."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from actors.weights.image_store import ImageStore
from actors.weights.images import ImageStoreFull, NoSuchImage, VersionConflict


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gleaner-test-") as path:
        yield Path(path) / "images"


def put(store: ImageStore, version: int, data: bytes) -> None:
    with store.create(version, len(data)) as draft:
        draft.view[:] = data
        draft.seal()


def test_what_was_sealed_is_what_is_opened(directory: Path) -> None:
    store = ImageStore(directory)
    put(store, 7, b"weights" * 1000)
    with store.open(7) as image:
        assert bytes(image.view) == b"weights" * 1000
        assert image.view.readonly
    assert ImageStore(directory).versions() == [7]


def test_an_image_is_invisible_until_it_is_sealed(directory: Path) -> None:
    store = ImageStore(directory)
    with store.create(1, 100) as draft:
        draft.view[:4] = b"half"
        with pytest.raises(NoSuchImage, match=r"holds versions \[\], not 1"):
            store.open(1)
    assert list(directory.iterdir()) == [], "an abandoned draft leaves nothing"


def test_the_oldest_unused_version_makes_way(directory: Path) -> None:
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
    with store.open(1), store.open(2), pytest.raises(ImageStoreFull, match=r"\[1, 2\] are in use"):
        store.create(3, 5)
    assert store.versions() == [1, 2]


def test_closing_twice_counts_once(directory: Path) -> None:
    store = ImageStore(directory)
    put(store, 1, b"one")
    first, second = store.open(1), store.open(1)
    first.close()
    first.close()
    assert store.in_use[1] == 1
    second.close()
    assert store.in_use[1] == 0


def test_an_array_made_from_the_view_outlives_the_image(directory: Path) -> None:
    store = ImageStore(directory, keep=2)
    put(store, 1, b"\x01\x02\x03\x04")
    image = store.open(1)
    array = np.frombuffer(image.view, dtype=np.uint8)
    image.close()
    store.discard(1)
    assert array.tolist() == [1, 2, 3, 4]


def test_a_version_is_sealed_with_one_content_only(directory: Path) -> None:
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
    store.note(2, b"of nothing")
    assert ImageStore(directory).cleaned == ["v000000002.note"]


def test_an_image_larger_than_what_is_free_is_refused_at_once(directory: Path) -> None:
    store = ImageStore(directory)
    stat = os.statvfs(directory)
    needed = stat.f_bavail * stat.f_frsize + 2**30
    with pytest.raises(ImageStoreFull, match=rf"needs {needed} bytes, \d+ are free: enlarge"):
        store.create(1, needed)
    assert list(directory.iterdir()) == []


def test_memory_that_runs_out_while_it_is_taken_leaves_no_litter(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = ImageStore(directory)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(ImageStoreFull):
        store.create(1, 100)
    assert list(directory.iterdir()) == []


WRITER = """
import sys, time
from actors.weights.image_store import ImageStore
draft = ImageStore(sys.argv[1]).create(5, 4096)
draft.view[:4] = b"half"
print("writing", flush=True)
time.sleep(60)
"""


def test_a_killed_writers_draft_is_gone_on_with_and_a_living_ones_is_left_alone(directory: Path) -> None:
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


def test_of_what_dead_writers_left_one_is_kept_until_something_else_is_written(
    directory: Path,
) -> None:
    store = ImageStore(directory)
    for version in (1, 2, 3):
        (directory / f"v{version:09d}.7.beef.draft").write_bytes(bytes(4096))
    assert ImageStore(directory).cleaned == ["v000000001.7.beef.draft", "v000000002.7.beef.draft"]
    for version, nbytes in ((4, 4096), (3, 17)):
        (directory / "v000000003.7.beef.draft").write_bytes(bytes(4096))
        with store.create(version, nbytes) as draft:
            assert not draft.left
            assert len(list(directory.iterdir())) == 1


def test_limits_are_checked(directory: Path) -> None:
    with pytest.raises(ValueError, match="keep is 1"):
        ImageStore(directory, keep=1)
    with pytest.raises(ValueError, match="0 bytes"):
        ImageStore(directory).create(1, 0)
