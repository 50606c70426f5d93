"""Journals in SQLite files: torn logs, changed bytes, layouts, full disks.

A log torn anywhere is a prefix. A byte changed anywhere is refused or read correctly. Older layouts are
upgraded. A full disk loses nothing that was acknowledged.
"""

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from gleaner.supervisor import JournalDamaged, JournalError, JournalUnreadable, Message, SqliteJournal
from gleaner.supervisor.journal.file import read_streams, view_file
from gleaner.supervisor.journal.port import Journal
from gleaner.supervisor.journal.sqlite import SqliteKeeper
from gleaner.supervisor.journal.wal_check import wal_damage
from gleaner.supervisor.message import encode_body

SMALL_PAGE = 512  # so that a small journal has every kind of page
COMMITS = 4


class Numbered(Message, frozen=True):
    number: int
    padding: bytes = b""


def replay(path: Path) -> dict[str, list[int]]:
    """The events that a fresh process finds, by stream. Raises JournalError."""
    keeper = SqliteKeeper(path, durable=False, reserve_bytes=0)
    try:
        found = {}
        for name in ("a", "b"):
            snapshot, events = keeper.read(name).replay(keeper.place)
            messages = [snapshot, *[event for _seq, event in events]]
            found[name] = [message.number for message in messages if isinstance(message, Numbered)]
        return found
    finally:
        keeper.close()


def empty(path: Path) -> None:
    """An empty file with small pages: the store makes its tables there."""
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA page_size={SMALL_PAGE}")
        db.execute("VACUUM")


def copy(path: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in path.parent.glob("j.sqlite*"):
        if not file.name.endswith("-shm"):
            shutil.copy(file, folder / file.name)
    return folder / "j.sqlite"


@pytest.fixture
async def killed(tmp_path: Path) -> Path:
    """The files of a process that was killed after four commits, which are in its log."""
    home = tmp_path / "home"
    home.mkdir()
    empty(home / "j.sqlite")
    store = SqliteJournal(home / "j.sqlite", commit_s=0)
    for number in range(COMMITS):
        await store.append("a", 1, [Numbered(number=number, padding=bytes([number]) * 40)])
    left = copy(home / "j.sqlite", tmp_path / "left")
    await store.close()
    return left


async def test_commits_are_forced_out_from_the_call_on(tmp_path: Path) -> None:
    keeper = SqliteKeeper(tmp_path / "j.sqlite", durable=False, reserve_bytes=0)
    assert keeper.pragma("synchronous") == 1  # NORMAL: a checkpoint alone waits for the disk
    keeper.force_out()
    assert keeper.pragma("synchronous") == 2  # FULL: each commit does
    keeper.close()


async def test_log_torn_at_any_byte_gives_a_prefix(killed: Path) -> None:
    log = killed.with_name("j.sqlite-wal")
    whole, database = log.read_bytes(), killed.read_bytes()
    lengths = set()
    for size in range(len(whole), -1, -1):
        if 24 < (size - 32) % (SMALL_PAGE + 24) < SMALL_PAGE and size % 64:
            continue  # in the middle of a page all bytes are equivalent
        killed.write_bytes(database)
        log.write_bytes(whole[:size])
        try:
            found = replay(killed)["a"]
        except JournalDamaged:
            # Without the end of the log the database has no tables yet: no append was acknowledged.
            assert size < 32 + 4 * (SMALL_PAGE + 24), size
            continue
        assert found == list(range(len(found))), size
        lengths.add(len(found))
    assert lengths == set(range(COMMITS + 1))


async def test_changed_byte_is_refused_or_read_correctly(killed: Path, tmp_path: Path) -> None:
    keeper = SqliteKeeper(copy(killed, tmp_path / "closed"), durable=False, reserve_bytes=0)
    keeper.claim("b", 7)
    keeper.close()  # the last process to close moves the log into the database
    closed = tmp_path / "closed" / "j.sqlite"
    right = {"a": list(range(COMMITS)), "b": []}
    for path in (closed, killed, killed.with_name("j.sqlite-wal")):
        database = path.with_name("j.sqlite")
        files = {file: file.read_bytes() for file in path.parent.iterdir() if not file.name.endswith("-shm")}
        refused = read_right = 0
        data = files[path]
        places = [*range(min(200, len(data))), *range(200, len(data), 7)]
        for at in places:
            for file, content in files.items():
                file.write_bytes(content)
            changed = bytearray(data)
            changed[at] ^= 1 << (at % 8)
            path.write_bytes(changed)
            try:
                found = replay(database)
            except (JournalDamaged, JournalUnreadable) as problem:
                refused += str(database) in str(problem) and "move" in str(problem)
            else:
                assert found == right, (path.name, at)
                read_right += 1
        assert refused + read_right == len(places), "every refusal names the file and gives advice"
        assert (refused > 20) == (path != killed), "the new part of the log does not count in the database"
        for file, content in files.items():
            file.write_bytes(content)
        for stray in path.parent.glob("*-shm"):
            stray.unlink()


def test_log_is_distinguished_from_damage_at_any_page_size(tmp_path: Path) -> None:
    for page in (512, 4096, 65536):
        path = tmp_path / f"{page}.sqlite"
        db = sqlite3.connect(path, isolation_level=None)
        db.execute(f"PRAGMA page_size={page}")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE t (x BLOB)")
        for number in range(5):
            db.execute("INSERT INTO t VALUES (?)", (bytes([number]) * 300,))
        log = path.with_name(f"{path.name}-wal").read_bytes()
        db.close()
        assert wal_damage(log) == ""
        assert wal_damage(log[:-7]) == ""
        assert wal_damage(b"") == ""
        for at in (40, len(log) // 2, len(log) - 1):
            changed = bytearray(log)
            changed[at] ^= 4
            assert "truncate -s" in wal_damage(bytes(changed)), (page, at)


async def test_advice_of_a_damaged_log_error_helps(killed: Path) -> None:
    log = killed.with_name("j.sqlite-wal")
    data = bytearray(log.read_bytes())
    data[len(data) * 3 // 4] ^= 1
    log.write_bytes(data)
    with pytest.raises(JournalDamaged, match="to go on with what was committed before") as problem:
        replay(killed)
    size = int(str(problem.value).partition("truncate -s ")[2].partition("`")[0])
    os.truncate(log, size)
    found = replay(killed)["a"]
    assert 0 < len(found) < COMMITS
    assert found == list(range(len(found)))


# -- layouts --

FIRST = """
CREATE TABLE IF NOT EXISTS streams (name TEXT PRIMARY KEY, incarnation INTEGER NOT NULL, last_seq INTEGER
NOT NULL); CREATE TABLE IF NOT EXISTS events (
    stream TEXT NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (stream, seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS snapshots (
    stream TEXT PRIMARY KEY, seq INTEGER NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL, crc INTEGER NOT
    NULL);
PRAGMA user_version=1;
"""


def write_first_layout(path: Path) -> None:
    """The file that the program wrote before layouts had upgrades."""

    def row(seq: int, number: int) -> tuple[int, str, bytes, int]:
        body = encode_body(Numbered(number=number))
        return seq, "Numbered", body, zlib.crc32(body, zlib.crc32(f"{seq} Numbered".encode()))

    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.executescript(FIRST)
        db.execute("INSERT INTO streams VALUES ('a', 5, 4)")
        db.execute("INSERT INTO snapshots VALUES ('a', ?, ?, ?, ?)", row(2, 12))
        db.executemany("INSERT INTO events VALUES ('a', ?, ?, ?, ?)", [row(3, 3), row(4, 4)])
        db.execute("INSERT INTO streams VALUES ('b', 1, 1)")
        db.execute("INSERT INTO events VALUES ('b', ?, ?, ?, ?)", row(1, 9))


def layout(path: Path) -> int:
    with sqlite3.connect(path) as db:
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
        return version


async def test_first_layout_is_readable_and_upgraded_when_opened(
    tmp_path: Path,
) -> None:
    path = tmp_path / "j.sqlite"
    write_first_layout(path)
    before = read_streams(path, ["a", "b"])
    assert (before["a"].incarnation, layout(path)) == (5, 1)
    assert replay(path) == {"a": [12, 3, 4], "b": [9]}
    assert layout(path) == 2
    assert read_streams(path, ["a", "b"]) == before
    store = SqliteJournal(path, commit_s=0)
    assert await Journal(store, "a", 6).append(Numbered(number=5)) == 5
    await store.close()
    assert replay(path)["a"] == [12, 3, 4, 5]


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ("UPDATE events SET body=x'81a4' WHERE stream='a' AND seq=3", "event 3 of a fails its checksum"),
        ("DELETE FROM events WHERE stream='b'", "events 1 to 1 of b are missing"),
        ("UPDATE snapshots SET crc=7", "snapshot of a fails its checksum"),
    ],
)
def test_damaged_file_is_not_upgraded(tmp_path: Path, damage: str, what: str) -> None:
    path = tmp_path / "j.sqlite"
    write_first_layout(path)
    with sqlite3.connect(path) as db:
        db.execute(damage)
    for _ in range(2):  # the refused upgrade changed nothing
        with pytest.raises(JournalDamaged, match=what):
            replay(path)
        assert layout(path) == 1


def test_newer_layout_is_refused_with_versions_and_advice(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    replay(path)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=7")
    for look in (lambda: replay(path), lambda: read_streams(path, ["a"])):
        with pytest.raises(
            JournalUnreadable, match=r"j.sqlite has layout 7, this program supports up to 2: run"
        ):
            look()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_foreign_database_is_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "j.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
        db.execute(f"PRAGMA user_version={version}")
    with pytest.raises(JournalDamaged, match="j.sqlite"):
        replay(path)
    with sqlite3.connect(path) as db:
        assert [name for (name,) in db.execute("SELECT name FROM sqlite_master")] == ["bookmarks"]


def test_random_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    path.write_bytes(os.urandom(5000))
    with pytest.raises(JournalDamaged, match="j.sqlite"):
        replay(path)
    with pytest.raises(JournalDamaged, match="j.sqlite"), view_file(path) as journal:
        journal.check()


# -- space --

SCENARIO = """
import asyncio, json, os, sys
from pathlib import Path
sys.path[:0] = {path!r}
from gleaner.supervisor import JournalFull, SqliteJournal
from gleaner.supervisor.journal.port import Journal
from tests.supervisor.journal.test_journal_sqlite import Numbered
async def main():
    disk = Path({disk!r})
    store = SqliteJournal(disk / "j.sqlite", commit_s=0, reserve_bytes=512 << 10)
    journal, kept, warned_at, story = Journal(store, "a", 1), [], None, {{}}
    for number in range(100_000):
        if warned_at is None and store.refuses():
            warned_at, story["warning"] = number, store.refuses()
        try:
            await journal.append(Numbered(number=number, padding=b"x" * 2000))
        except JournalFull as problem:
            story["refused"] = str(problem)
            break
        kept.append(number)
    story["warned_at"], story["kept"] = warned_at, len(kept)
    try:
        await store.probe()
    except JournalFull as problem:
        story["probe"] = str(problem)
    found = [event.number async for event in journal.replay()]
    story["all there"] = found == kept
    (disk / "ballast").unlink()
    await store.probe()
    story["after"] = store.refuses()
    kept.append(await journal.append(Numbered(number=len(kept))) - 1)
    await store.close()
    store = SqliteJournal(disk / "j.sqlite", commit_s=0, reserve_bytes=0)
    found = [event.number async for event in Journal(store, "a", 2).replay()]
    story["all there in the end"] = found == kept
    await store.close()
    print(json.dumps(story))
(Path({disk!r}) / "ballast").write_bytes(bytes(1 << 20))
asyncio.run(main())
"""


def test_filling_disk_is_reported_early_and_reused_when_freed(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    here = [os.getcwd(), *map(str, Path(__file__).parents[:3])]
    scenario = tmp_path / "scenario.py"
    scenario.write_text(SCENARIO.format(path=here, disk=str(disk)))
    mounted = 'mount -t tmpfs -o size=4m tmpfs "$1" || exit 77; shift; exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", mounted, "sh", str(disk), sys.executable, str(scenario)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60.0, check=False)
    if done.returncode == 77 or "unshare failed" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip("no right to mount a small disk here: a full disk is NOT TESTED")
    assert done.returncode == 0, done.stderr
    story = json.loads(done.stdout)
    assert "new work needs 512: free space there" in story["warning"]
    assert 50 < story["warned_at"] < story["kept"], "it reported this while it still accepted events"
    assert "free space in" in story["refused"]
    assert "free space there" in story["probe"]
    assert story["all there"]
    assert story["after"] == ""
    assert story["all there in the end"]


async def test_missing_space_at_the_start_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="free space there, or make it writable"):
        await asyncio.to_thread(SqliteJournal, tmp_path / "file" / "j.sqlite")
