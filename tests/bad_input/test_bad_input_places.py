"""Unusable places: full disks, files in place of folders, too little memory; and a second Ctrl-C."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_runs import OPEN_ENDED, RealRun
from tiny_command import CONFIG, Rlctl, command

from gleaner.chaos.run_processes import find
from gleaner.rlctl import preflight
from gleaner.rlctl.errors import INTERRUPTED, USAGE
from gleaner.rlctl.head import STOP_S

realprocess = pytest.mark.realprocess


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 160 MB; a run of the tiny model needs 129 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no right to mount a small disk here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Take all the space that is left."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return filler


def made(root: Path, checkpoint: Path, *settings: str) -> RealRun:
    return RealRun(root, CONFIG, [f"model.path={checkpoint}", *settings])


@pytest.mark.long
@realprocess
@pytest.mark.timeout(900)
def test_run_with_a_full_disk_waits_and_goes_on(small_disk: Path, checkpoint: Path, tmp_path: Path) -> None:
    run = made(small_disk, checkpoint, OPEN_ENDED)
    run.output = tmp_path / "rlctl.out"  # output of rlctl goes to a terminal, not to that disk
    try:
        run.start()
        run.wait(lambda: len(run.steps()) >= 2, "some steps")
        filler = fill(small_disk)
        run.wait(lambda: "the job waits: " in run.output.read_text(), "the reason")
        assert "free space" in run.output.read_text()
        done = run.steps()
        time.sleep(2.0)  # several looks at the journals
        assert len(run.steps()) <= len(done) + 1, "a new step started"

        filler.unlink()
        run.wait(lambda: "the job goes on" in run.output.read_text(), "the job to go on")
        run.until_step_after(len(done) + 1, "with space again")
        run.stops_whole()
        printed = run.output.read_text()
        assert "Traceback" not in printed
    finally:
        run.close()


def test_too_little_disk_space_is_reported_first(
    small_disk: Path, capsys: pytest.CaptureFixture[str], refused: Rlctl
) -> None:
    filler = fill(small_disk)
    code, printed = refused(str(CONFIG), "--runs-dir", str(small_disk / "runs"))
    assert code == USAGE
    assert f"{small_disk}: 0 B are free, a run needs" in printed
    assert list(small_disk.iterdir()) == [filler]


def test_too_little_shared_memory_is_reported_first(
    refused: Rlctl, monkeypatch: pytest.MonkeyPatch, small_disk: Path
) -> None:
    fill(small_disk)
    monkeypatch.setattr(preflight, "SHARED_MEMORY", small_disk)  # the real one is shared
    code, printed = refused(str(CONFIG))
    assert code == USAGE
    assert f"{small_disk}: 0 B are free, a run needs" in printed
    assert "--shm-size" in printed


def test_runs_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = command("rlctl", "run", str(CONFIG), "--runs-dir", str(tmp_path / "file"))
    assert ended.returncode != 0
    assert str(tmp_path / "file") in ended.stderr
    assert "--runs-dir" in ended.stderr
    assert "Traceback" not in ended.stderr


@realprocess
def test_second_ctrl_c_stops_a_run_at_once(checkpoint: Path, tmp_path: Path) -> None:
    run = made(tmp_path, checkpoint, OPEN_ENDED)
    try:
        run.start()
        run.wait(lambda: find(run.run, "agent", "head"), "the head's process")
        head = find(run.run, "agent", "head")[0]
        head.signal(signal.SIGSTOP)
        run.wait(head.stopped, "the head to stand still")  # a pending SIGTERM would be delivered first
        assert run._process is not None
        run._process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert run._process.poll() is None  # rlctl waits for the head to end in order
        run._process.send_signal(signal.SIGINT)
        assert run._process.wait(STOP_S - 5.0) == INTERRUPTED
        assert "error: stopped on request" in run.output.read_text()
        assert "Traceback" not in run.output.read_text()
        assert run.left() == []
    finally:
        run.close()
