"""Checkpoints and host copies: complete or absent, whenever the writer stops."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.cluster import sealed_folder
from gleaner.actors.cluster.checkpoint_store import CheckpointStore
from gleaner.actors.cluster.host_copy import HostCopies
from gleaner.actors.cluster.saved_state import Damaged, StateDirFull

ROOT = Path(__file__).parents[3]
FILES = {"model.safetensors": b"weights" * 1000, "config.json": b"{}"}
META = {"version": 7, "seed": 3, "note": "first", "rate": 0.5}


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep=3)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_copy_replaces_those_of_its_step_and_of_later_ones(tmp_path: Path) -> None:
    """A crashed trainer's thread may seal a step that its next life does again, with other weights."""
    copies = HostCopies(tmp_path / "state")
    for step in (5, 6):
        copies.write(step, {"state": b"of another life"})
    for step in (5, 6):
        copies.write(step, {"state": b"mine"})
        newest = copies.newest()
        assert newest is not None
        assert (newest.step, (newest.path / "state").read_bytes()) == (step, b"mine")


def test_written_checkpoint_loads_unchanged(store: CheckpointStore) -> None:
    written = store.write(7, FILES, META)
    assert written.path == store.directory / "step-000007"
    loaded = store.load(7)
    assert loaded == written
    assert dict(loaded.meta) == META
    assert (loaded.path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert loaded.files["config.json"].bytes == 2


def test_files_may_be_views_or_written_by_functions(store: CheckpointStore, tmp_path: Path) -> None:
    files = {
        "view": memoryview(bytearray(b"ab")),
        "made": lambda path: path.write_bytes(b"made") and None,
    }
    assert {name: info.bytes for name, info in store.write(1, files, {}).files.items()} == {
        "view": 2,
        "made": 4,
    }
    with pytest.raises(FileNotFoundError, match="did not write it"):
        store.write(2, {"none": lambda path: None}, {})
    assert names(store.directory) == ["step-000001"]


def test_function_may_fill_the_whole_directory(store: CheckpointStore) -> None:
    def fill(directory: Path) -> None:
        (directory / "config.json").write_bytes(b"{}")
        (directory / "model.safetensors").write_bytes(b"weights")

    written = store.write(1, fill, META)
    assert {name: info.bytes for name, info in written.files.items()} == {
        "config.json": 2,
        "model.safetensors": 7,
    }
    (written.path / "model.safetensors").unlink()
    with pytest.raises(Damaged, match="is missing"):
        store.load(1)


def test_store_keeps_the_last_checkpoints(store: CheckpointStore) -> None:
    for step in range(1, 6):
        store.write(step, FILES, META)
    assert names(store.directory) == ["step-000003", "step-000004", "step-000005"]


def test_complete_checkpoint_is_not_written_again(store: CheckpointStore) -> None:
    first = store.write(1, FILES, META)
    assert store.write(1, {"other": b"x"}, {}) == first
    (first.path / "config.json").write_bytes(b"[]")
    assert list(store.write(1, {"other": b"x"}, {}).files) == ["other"], "a damaged checkpoint is replaced"


def damage_content(path: Path) -> str:
    file = path / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[1234] ^= 1
    file.write_bytes(data)
    return "model.safetensors has 7000 bytes of digest"


def truncate(path: Path) -> str:
    (path / "model.safetensors").write_bytes(b"we")
    return "model.safetensors has 2 bytes"


def lose_a_file(path: Path) -> str:
    (path / "config.json").unlink()
    return "config.json is missing"


def lose_the_seal(path: Path) -> str:
    (path / "meta.json").unlink()
    return "never finished"


def damage_the_seal(path: Path) -> str:
    text = (path / "meta.json").read_text().replace('"seed": 3', '"seed": 4')
    (path / "meta.json").write_text(text)
    return "does not match its own digest"


def tear_the_seal(path: Path) -> str:
    (path / "meta.json").write_text('{"format": 1, "st')
    return "cannot be read"


@pytest.mark.parametrize(
    "harm", [damage_content, truncate, lose_a_file, lose_the_seal, damage_the_seal, tear_the_seal]
)
def test_damaged_checkpoint_is_named_and_skipped(store: CheckpointStore, harm: Callable[[Path], str]) -> None:
    store.write(1, FILES, META)
    words = harm(store.write(2, FILES, META).path)
    with pytest.raises(Damaged, match="step-000002"):
        store.load(2)
    latest = store.latest()
    assert latest.checkpoint is not None
    assert latest.checkpoint.step == 1
    assert len(latest.skipped) == 1
    assert words in latest.skipped[0]


def test_renamed_checkpoint_is_not_used_for_another_step(store: CheckpointStore) -> None:
    store.write(1, FILES, META).path.rename(store.path(9))
    latest = store.latest()
    assert latest.checkpoint is None
    assert "holds the state after step 1" in latest.skipped[0]


def test_empty_store_has_no_checkpoint(store: CheckpointStore) -> None:
    assert store.latest().checkpoint is None
    assert store.steps() == []


def test_names_outside_the_directory_are_refused(store: CheckpointStore) -> None:
    for name in ("../escape", "", "meta.json", ".."):
        with pytest.raises(ValueError, match="cannot be the name"):
            store.write(1, {name: b""}, {})
    assert store.steps() == []


WRITER = """
import sys, time
from pathlib import Path
from gleaner.actors.cluster.checkpoint_store import CheckpointStore

def slow(path: Path) -> None:
    path.write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(60)

CheckpointStore(sys.argv[1]).write(2, {"model.safetensors": slow}, {})
"""


def test_killed_writer_leaves_the_older_checkpoint(
    store: CheckpointStore,
) -> None:
    store.write(1, FILES, META)
    command = [sys.executable, "-c", WRITER, str(store.directory)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        writer.send_signal(signal.SIGKILL)
        writer.wait(60)
    finally:
        writer.kill()
        writer.wait(60)
        writer.stdout.close() if writer.stdout else None
    latest = store.latest()
    assert latest.checkpoint is not None
    assert (latest.checkpoint.step, latest.skipped) == (1, ())
    assert len(names(store.directory)) == 2
    store.write(2, FILES, META)
    assert names(store.directory) == ["step-000001", "step-000002"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a file system needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_full_disk_error_gives_bytes_and_keeps_checkpoint(small_disk: Path) -> None:
    store = CheckpointStore(small_disk / "checkpoints")
    store.write(1, FILES, META)
    with pytest.raises(
        StateDirFull, match=r"2000000 bytes are needed .* and \d+ are free.*free space"
    ) as full:
        store.write(2, {"big": bytes(2_000_000)}, META)
    assert full.value.needed == 2_000_000
    assert 0 < full.value.free < 2**20

    def unforeseen(path: Path) -> None:
        path.write_bytes(bytes(2_000_000))

    with pytest.raises(StateDirFull):
        store.write(2, {"small": b"x", "big": unforeseen}, META)
    assert names(store.directory) == ["step-000001"]
    assert store.load(1).step == 1
    store.write(2, FILES, META)


def test_full_disk_error_of_a_library_is_recognized(store: CheckpointStore) -> None:
    def through_a_library(path: Path) -> None:
        raise RuntimeError(f"I/O error: {os.strerror(errno.ENOSPC)} (os error 28)")

    with pytest.raises(StateDirFull):
        store.write(1, {"model.safetensors": through_a_library}, {})
    assert names(store.directory) == []


@pytest.fixture
def host() -> Iterator[HostCopies]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gleaner-test-") as path:
        yield HostCopies(Path(path) / "state")


def test_newest_host_copy_is_used_and_slots_alternate(host: HostCopies) -> None:
    assert host.newest() is None
    paths = [host.write(step, {"state": str(step).encode()}, {}).path.name for step in range(1, 5)]
    assert paths == ["slot-0", "slot-1", "slot-0", "slot-1"]
    latest = host.newest()
    assert latest is not None
    assert (latest.step, (latest.path / "state").read_bytes()) == (4, b"4")


def test_failed_host_copy_leaves_the_previous_one(host: HostCopies) -> None:
    host.write(1, FILES, META)
    host.write(2, FILES, META)

    def dies(path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        host.write(3, {"state": dies}, {})
    latest = host.newest()
    assert latest is not None
    assert latest.step == 2
    assert host.write(3, FILES, META).path != latest.path


def test_damaged_host_copy_is_skipped(host: HostCopies) -> None:
    host.write(1, FILES, META)
    newest = host.write(2, FILES, META)
    damage_content(newest.path)
    latest = host.newest()
    assert latest is not None
    assert latest.step == 1


def test_host_copy_becomes_checkpoint_unless_it_changes(host: HostCopies, store: CheckpointStore) -> None:
    copy = host.write(5, FILES, META)
    durable = store.adopt(copy)
    assert (durable.step, dict(durable.meta), durable.files) == (5, META, copy.files)
    later = host.write(6, FILES, META)
    (later.path / "config.json").write_bytes(b"[]")
    with pytest.raises(Damaged, match="its source changed"):
        store.adopt(later)
    (later.path / "config.json").unlink()
    with pytest.raises(Damaged, match="vanished"):
        store.adopt(later)
    assert names(store.directory) == ["step-000005"]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_every_changed_byte_is_detected(where: int, change: int) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        whole = sealed_folder.write(Path(place) / "one", 1, FILES, META, durable=False)
        targets = sorted(whole.path.iterdir())
        file = targets[where % len(targets)]
        data = bytearray(file.read_bytes())
        data[where % len(data)] ^= change
        file.write_bytes(data)
        try:
            assert sealed_folder.verify(whole.path) == whole
            assert file.name == "meta.json", "only white space of the seal may differ"
        except Damaged:
            pass
