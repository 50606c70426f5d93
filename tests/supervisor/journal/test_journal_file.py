"""Reading a journal from outside: during writes, after a kill, when damaged."""

import asyncio
import shutil
import sqlite3
from pathlib import Path

import pytest

from gleaner.supervisor import JournalDamaged, JournalError, Message, SqliteJournal
from gleaner.supervisor.journal.file import read_streams


class Noted(Message, frozen=True):
    """An event."""

    number: int


class AllNoted(Message, frozen=True):
    """A snapshot."""

    numbers: list[int]


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    """An open journal with two streams; "a" has a snapshot and an event after it."""
    store = SqliteJournal(tmp_path / "j.sqlite", commit_s=0.0)
    await store.open("a", 3)
    await store.open("b", 5)
    await store.append("a", 3, [Noted(number=1), Noted(number=2)])
    await store.snapshot("a", 3, AllNoted(numbers=[1, 2]))
    await store.append("a", 3, [Noted(number=3)])
    await store.append("b", 5, [Noted(number=9)])
    return store.path


async def test_open_journal_is_read_as_a_replay_would(journal: Path) -> None:
    found = read_streams(journal, ["a", "b", "nobody"])
    assert found["a"].messages == (AllNoted(numbers=[1, 2]), Noted(number=3))
    assert (found["a"].incarnation, found["b"].incarnation) == (3, 5)
    assert found["b"].messages == (Noted(number=9),)
    assert "nobody" not in found


async def test_journal_of_a_killed_process_is_read_with_log(journal: Path, tmp_path: Path) -> None:
    for file in journal.parent.glob("j.sqlite*"):
        shutil.copy(file, tmp_path / file.name.replace("j.", "copy."))
    assert (tmp_path / "copy.sqlite-wal").stat().st_size > 0
    assert read_streams(tmp_path / "copy.sqlite", ["b"])["b"].messages == (Noted(number=9),)


async def test_reading_changes_nothing(journal: Path) -> None:
    before = journal.read_bytes()
    await asyncio.to_thread(read_streams, journal, ["a"])
    assert journal.read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ("UPDATE events SET body=x'00' WHERE stream='b'", "fails its checksum"),
        ("DELETE FROM events WHERE stream='b'", "are missing"),
        ("UPDATE events SET seq=7 WHERE stream='b'", "is missing"),
    ],
)
async def test_damage_is_named_with_its_file(journal: Path, damage: str, what: str) -> None:
    with sqlite3.connect(journal) as db:
        db.execute(damage)
    with pytest.raises(JournalDamaged, match=what) as problem:
        read_streams(journal, ["b"])
    assert str(journal) in str(problem.value)
    assert read_streams(journal, ["a"])["a"].messages, "other streams are unchanged"


async def test_non_journal_file_is_refused(tmp_path: Path) -> None:
    noise = tmp_path / "noise.sqlite"
    noise.write_bytes(b"no database at all" * 100)
    with pytest.raises(JournalDamaged, match="noise"):
        read_streams(noise, ["a"])
    with pytest.raises(JournalError, match="no such journal"):
        read_streams(tmp_path / "absent.sqlite", ["a"])
