"""A tiny run that was killed in the middle, put back as often as a test wants to damage it."""

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

from real_runs import RealRun
from tiny_command import CONFIG

from gleaner.actors.training.history import HistoryFollower
from gleaner.nodeagent.state_lock import CONTROL_SOCKET

STEPS_BEFORE = 3


def copy_run(source: Path, target: Path) -> Path:
    """A copy of a run's folder without non-files, such as the control socket of a killed head."""
    return Path(shutil.copytree(source, target, ignore=shutil.ignore_patterns(CONTROL_SOCKET)))


class KilledRun:
    """The folder of a run whose `rlctl` was killed, at its own path; `restore` puts it back as it was.

    Its hosts' memory is gone, as after a reboot; its whole state is on disk.
    """

    def __init__(self, root: Path, model: Path) -> None:
        self.real = RealRun(root, CONFIG, [f"model.path={model}"])
        self._saved = root / "saved"
        self.real.start()
        self.real.wait(lambda: len(self.real.steps()) >= STEPS_BEFORE, "some steps")
        self.real.kill_rlctl()
        self.real.wait_until_all_died()
        self.real.forget_memory()
        copy_run(self.path, self._saved)

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.real.run.path

    def restore(self) -> "KilledRun":
        """As it was when `rlctl` was killed."""
        shutil.rmtree(self.path)
        copy_run(self._saved, self.path)
        self.real.forget_memory()
        self.real.output.write_text("")
        self.real.records.clear()
        self.real._follower = HistoryFollower(self.real.run.history)
        return self

    def journal(self, node: str, process: str) -> Path:
        """The journal of the job's actors in a process."""
        return self.path / "nodes" / node / "journal" / self.real.run.id / f"{process}.sqlite"

    def resumed(self) -> tuple[int, str]:
        """`rlctl resume`: its exit code and its errors. It leaves no process and no memory."""
        self.real.resume()
        code = self.real.ends()
        assert self.real.left() == []
        lines = self.real.output.read_text().splitlines()
        return code, "\n".join(line for line in lines if line.startswith("error: "))


def whole_file(journal: Path) -> Path:
    """The journal with its log merged in, so that a test can damage a single file."""
    _with(journal, lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)"))
    return journal


def change_an_event(journal: Path, stream: str) -> None:
    """Flip one bit within an event; the database itself stays valid."""

    def flip(db: sqlite3.Connection) -> None:
        seq, body = db.execute("SELECT seq, body FROM events WHERE stream=?", (stream,)).fetchone()
        changed = bytes([*body[:-1], body[-1] ^ 1])
        db.execute("UPDATE events SET body=? WHERE stream=? AND seq=?", (changed, stream, seq))
        db.commit()

    _with(journal, flip)


def overwrite_the_middle(journal: Path) -> None:
    """Overwrite one page in the middle of the file, as a bad block of the disk does.

    The file has no free page by then: damage to one costs nothing and is rightly not reported.
    """
    page = 4096
    _with(journal, lambda db: db.execute("VACUUM"))
    with whole_file(journal).open("r+b") as file:
        file.seek(journal.stat().st_size // 2 // page * page)
        file.write(b"\xa5" * page)


def _with(journal: Path, work: Callable[[sqlite3.Connection], object]) -> None:
    db = sqlite3.connect(journal)
    try:
        work(db)
    finally:
        db.close()
