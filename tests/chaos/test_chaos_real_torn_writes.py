"""Torn last writes, as a kill leaves them.

The journal treats the torn write as its end and loses nothing.
"""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from gleaner.chaos.real.torn_writes import tear, torn_write
from gleaner.supervisor.journal.wal_check import wal_damage

WRITER = """
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("pragma journal_mode=wal"); db.execute("pragma wal_autocheckpoint=8")
db.execute("create table t (n integer primary key, text)")
for n in range(int(sys.argv[2])):
    db.execute("insert into t values (?, ?)", (n, "x" * 500))
os._exit(9)  # killed: no close, no checkpoint
"""


def killed_writer(file: Path, rows: int) -> bytes:
    subprocess.run([sys.executable, "-c", WRITER, str(file), str(rows)], check=False, timeout=60)
    return file.with_name(file.name + "-wal").read_bytes()


def rows_of(file: Path) -> int:
    with sqlite3.connect(file) as db:
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)
        return int(db.execute("select count(*) from t").fetchone()[0])


@pytest.mark.parametrize("rows", [1, 5, 11, 23, 40])
def test_commits_before_a_torn_write_survive(tmp_path: Path, rows: int) -> None:
    file = tmp_path / "journal" / "job" / "rollout.sqlite"
    file.parent.mkdir(parents=True)
    before = killed_writer(file, rows)
    torn = tear(tmp_path / "journal", "rollout")
    after = file.with_name("rollout.sqlite-wal").read_bytes()
    assert torn == (torn_write(before) is not None)
    assert (before != after) == bool(torn)
    assert wal_damage(after) == ""
    assert rows_of(file) == rows


def test_torn_write_is_where_a_writer_would_continue(tmp_path: Path) -> None:
    file = tmp_path / "agent.sqlite"
    log = killed_writer(file, 3)
    left = torn_write(log)
    assert left is not None
    offset, data = left
    assert offset == len(log)
    assert 24 < len(data) < 24 + 4096


def test_empty_or_foreign_file_is_left_alone(tmp_path: Path) -> None:
    assert torn_write(b"") is None
    assert torn_write(os.urandom(64)) is None
    (tmp_path / "other.sqlite-wal").write_bytes(b"")
    assert tear(tmp_path) == 0
