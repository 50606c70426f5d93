"""Memory of jobs: never freed while in use; of dead runs, images are freed and host copies kept."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from gleaner.actors.weights.control.file import PageWriter
from gleaner.actors.weights.image.reader_locks import ReaderLock
from gleaner.actors.weights.image.store import ImageStore
from gleaner.nodeagent import job_memory
from gleaner.nodeagent.job_memory import JobMemoryHold, found, free
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.errors import OK
from gleaner.rlctl.orphaned_memory import OrphanedMemory

SIZE = 1 << 16


def run_of(root: Path, name: str) -> Path:
    """The folder of a run whose host has one version, an unfinished one and a host copy."""
    folder = root / f"gleaner-{name}"
    store = ImageStore(folder / "weights")
    for version in (1, 2):
        with store.create(version, SIZE) as draft:
            draft.view[:] = bytes([version]) * SIZE
            draft.seal()
    (folder / "weights" / "v000000002").rename(folder / "weights" / "v000000002.1.ab.draft")
    (folder / "state" / "slot-0").mkdir(parents=True)
    (folder / "state" / "slot-0" / "weights").write_bytes(bytes(2 * SIZE))
    return folder


def one(root: Path) -> job_memory.JobFolder:
    [only] = found(root, 0.0)
    return only


def test_dead_run_images_are_freed_and_state_kept(tmp_path: Path) -> None:
    folder = run_of(tmp_path, "dead-a")
    left = one(tmp_path)
    assert left.used == ""
    assert left.image_bytes >= 2 * SIZE
    assert left.state_bytes >= 2 * SIZE
    assert free(left, 0.0, whole=False) == left.image_bytes
    assert sorted(path.name for path in folder.rglob("*")) == ["slot-0", "state", "weights"]
    left = one(tmp_path)
    assert free(left, 0.0, whole=True) >= 2 * SIZE
    assert not folder.exists()


def test_concurrent_removal_by_another_run_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, scandir = run_of(tmp_path, "ends-now"), os.scandir

    def removed_before_it_is_looked_into(path: int | str | os.PathLike[str]):
        if not isinstance(path, int) and Path(path).name == "slot-0":
            monkeypatch.setattr(os, "scandir", scandir)
            shutil.rmtree(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", removed_before_it_is_looked_into)
    left = one(tmp_path)
    assert not (folder / "state" / "slot-0").exists()
    assert left.image_bytes >= 2 * SIZE


def test_node_agent_starts_when_memory_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_of(tmp_path, "unreadable")

    def refuses(_root: Path, _quiet_s: float) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(job_memory, "found", refuses)
    job_memory.free_images_of_dead_runs(tmp_path, 0.0)
    assert "is not freed: [Errno 5]" in caplog.text


def test_recently_changed_memory_is_kept(tmp_path: Path) -> None:
    run_of(tmp_path, "killed-just-now")
    [left] = found(tmp_path, job_memory.QUIET_S)
    assert left.used == "it changed a moment ago"
    assert free(left, job_memory.QUIET_S, whole=True) == 0
    assert left.path.exists()


HOLD = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
{deed}
print("held", flush=True)
input()
"""


@contextmanager
def a_process(path: Path, deed: str) -> Iterator["subprocess.Popen[str]"]:
    """Another process that does `deed` to a file or folder, and waits."""
    argv = [sys.executable, "-c", HOLD.format(deed=deed), str(path)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


MAPPED = "import mmap; m = mmap.mmap(fd, 0, prot=mmap.PROT_READ); os.close(fd)"


@pytest.mark.parametrize(
    ("what", "deed"),
    [
        ("weights/v000000001/model.safetensors", "fcntl.flock(fd, fcntl.LOCK_SH)"),
        ("weights/v000000001/model.safetensors", MAPPED),
        ("weights/v000000002.1.ab.draft", "fcntl.flock(fd, fcntl.LOCK_EX)"),
        ("state/slot-0/weights", "pass"),
        (".", "fcntl.flock(fd, fcntl.LOCK_SH)"),
    ],
    ids=["a reader's lease", "a mapping", "a writer's draft", "an open file", "a node agent's hold"],
)
def test_memory_is_kept_while_any_process_uses_it(tmp_path: Path, what: str, deed: str) -> None:
    folder = run_of(tmp_path, "live")
    unused = one(tmp_path)
    with a_process(folder / what, deed) as process:
        assert one(tmp_path).used
        assert free(unused, 0.0, whole=True) == 0, "nor if the use began after the look"
        assert ImageStore(folder / "weights").content(1)[0] == 1
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert free(one(tmp_path), 0.0, whole=True) > 0
    assert not folder.exists()


def test_lease_page_or_hold_of_this_process_keeps_memory(tmp_path: Path) -> None:
    folder = run_of(tmp_path, "live")
    lease = ReaderLock(folder / "weights" / "v000000001" / "model.safetensors")
    assert one(tmp_path).used
    lease.close()
    page = PageWriter(folder / "weights" / "engine.control")
    assert one(tmp_path).used
    page.close()
    held = JobMemoryHold(folder)
    assert one(tmp_path).used == "a node agent runs its job"
    held.release()
    assert one(tmp_path).used == ""


def test_holder_of_freed_memory_gets_a_lasting_folder(tmp_path: Path) -> None:
    folder = run_of(tmp_path, "again")
    free(one(tmp_path), 0.0, whole=True)
    held = JobMemoryHold(folder)
    assert one(tmp_path).used == "a node agent runs its job"
    assert os.listdir(folder) == []
    held.release()


def test_folders_of_other_users_and_links_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "gleaner-link").symlink_to(tmp_path / "elsewhere")
    if os.geteuid() == 0:
        os.chown(run_of(tmp_path, "theirs"), 12345, 12345)
    assert found(tmp_path, 0.0) == []


def test_starting_node_agent_frees_weights_of_dead_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dead, live = run_of(tmp_path, "dead"), run_of(tmp_path, "live")
    held = JobMemoryHold(live)
    with caplog.at_level("INFO", logger="nodeagent"):
        job_memory.free_images_of_dead_runs(tmp_path, 0.0)
    held.release()
    assert [path.name for path in dead.iterdir()] == ["state"]
    assert ImageStore(live / "weights").versions() == [1]
    [line] = caplog.messages
    assert f"bytes of weights that a dead run left in {dead}" in line


def test_clean_command_frees_exactly_its_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gleaner.actors.cluster.job.SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(job_memory, "QUIET_S", 0.0)
    dead, live = run_of(tmp_path, "dead"), run_of(tmp_path, "live")
    held = JobMemoryHold(live)

    def clean(*options: str) -> OrphanedMemory:
        assert main(["weights", "clean", *options, "--json"]) == OK
        return msgspec.json.decode(capsys.readouterr().out, type=OrphanedMemory)

    would = clean("--dry-run")
    assert would.dry
    assert would.freed_bytes >= 2 * SIZE
    assert (dead / "weights" / "v000000001").exists()
    did = clean()
    assert did.freed_bytes == would.freed_bytes
    assert [one.kept for one in did.folders] == [
        "its run can be resumed from them (--all)",
        "a node agent runs its job",
    ]
    assert clean("--all").freed_bytes >= 2 * SIZE
    assert not dead.exists()
    assert ImageStore(live / "weights").versions() == [1]
    held.release()
    assert main(["weights", "clean", "--all"]) == OK
    assert "freed in 1 folders of runs" in capsys.readouterr().out
    assert not live.exists()
