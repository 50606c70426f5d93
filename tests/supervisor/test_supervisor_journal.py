"""What a journal promises: committed is back after a kill; damage is refused; zombies are fenced."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor import Fenced, JournalDamaged, JournalFull, Message, SqliteJournal
from supervisor.journal import Journal


class Fact(Message, frozen=True):
    number: int
    padding: bytes = b""


class AllFacts(Message, frozen=True):
    numbers: list[int]


async def facts(journal: Journal) -> list[Message]:
    return [event async for event in journal.replay()]


async def test_events_come_back_in_order_after_closing(tmp_path: Path) -> None:
    store = SqliteJournal(tmp_path / "j.sqlite")
    journal = Journal(store, "a", 1)
    assert await journal.append(Fact(number=1), Fact(number=2)) == 2
    assert await journal.append(Fact(number=3)) == 3
    await store.close()
    store = SqliteJournal(tmp_path / "j.sqlite")
    assert await facts(Journal(store, "a", 2)) == [Fact(number=n) for n in (1, 2, 3)]
    assert await facts(Journal(store, "b", 2)) == []
    await store.close()


async def test_a_snapshot_bounds_the_replay(tmp_path: Path) -> None:
    store = SqliteJournal(tmp_path / "j.sqlite")
    journal = Journal(store, "a", 1)
    await journal.append(*[Fact(number=n) for n in range(100)])
    await journal.snapshot(AllFacts(numbers=list(range(100))))
    await journal.append(Fact(number=100))
    assert await facts(journal) == [AllFacts(numbers=list(range(100))), Fact(number=100)]
    await store.close()


async def test_an_older_incarnation_is_refused_at_the_store(tmp_path: Path) -> None:
    store = SqliteJournal(tmp_path / "j.sqlite")
    old, new = Journal(store, "a", 1), Journal(store, "a", 2)
    await old.append(Fact(number=1))
    await new.append(Fact(number=2))
    with pytest.raises(Fenced):
        await old.append(Fact(number=3))
    with pytest.raises(Fenced):
        await Journal(store, "a", 1).append(Fact(number=4))
    assert await facts(new) == [Fact(number=1), Fact(number=2)]
    await store.close()


async def test_what_was_acknowledged_survives_sigkill(tmp_path: Path) -> None:
    code = f"""
import asyncio, sys
sys.path.insert(0, {os.getcwd()!r}); sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from supervisor import SqliteJournal
from supervisor.journal import Journal
from test_supervisor_journal import Fact
async def main():
    journal = Journal(SqliteJournal(Path({str(tmp_path / "j.sqlite")!r})), "a", 1)
    for n in range(10**6):
        await journal.append(Fact(number=n))
        print(n, flush=True)
asyncio.run(main())
"""
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(30)]
    writer.kill()
    acknowledged += [int(line) for line in writer.stdout.read().split(b"\n")[:-1]]
    writer.wait()
    store = SqliteJournal(tmp_path / "j.sqlite")
    found = await facts(Journal(store, "a", 2))
    assert found[: len(acknowledged)] == [Fact(number=n) for n in acknowledged]
    assert len(found) <= len(acknowledged) + 1
    await store.close()


async def test_a_torn_tail_is_dropped_and_the_rest_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    store = SqliteJournal(path, commit_s=0)
    journal = Journal(store, "a", 1)
    for n in range(20):
        await journal.append(Fact(number=n))
    wal, main = (tmp_path / "j.sqlite-wal").read_bytes(), path.read_bytes()
    await store.close()
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "j.sqlite").write_bytes(main)
    (copy / "j.sqlite-wal").write_bytes(
        wal[: len(wal) - 1000]
    )  # as a kill in the middle of a write leaves it
    store = SqliteJournal(copy / "j.sqlite")
    found = await facts(Journal(store, "a", 2))
    assert 0 < len(found) < 20
    assert found == [Fact(number=n) for n in range(len(found))]
    await store.close()


async def test_a_damaged_middle_is_refused_with_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    store = SqliteJournal(path)
    await Journal(store, "a", 1).append(*[Fact(number=n, padding=b"\xab" * 200) for n in range(200)])
    await store.close()
    data = bytearray(path.read_bytes())
    at = data.index(b"\xab" * 200, len(data) // 2) + 50
    data[at : at + 8] = b"deadbeef"
    path.write_bytes(data)

    async def open_and_read() -> None:
        store = SqliteJournal(path)
        try:
            await facts(Journal(store, "a", 2))
        finally:
            await store.close()

    with pytest.raises(JournalDamaged, match="j.sqlite"):
        await open_and_read()
    path.write_bytes(bytes(data[: len(data) // 2]))
    with pytest.raises(JournalDamaged, match="j.sqlite"):
        await open_and_read()
    path.write_bytes(os.urandom(5000))
    with pytest.raises(JournalDamaged, match="j.sqlite"):
        await open_and_read()


async def test_a_full_disk_refuses_what_it_cannot_keep_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    store = SqliteJournal(path)
    store._db.execute("PRAGMA max_page_count=60")  # the file may not grow: SQLITE_FULL, as on a full disk
    journal = Journal(store, "a", 1)
    kept = 0
    with pytest.raises(JournalFull, match="free space"):
        for n in range(1000):
            await journal.append(Fact(number=n, padding=b"x" * 2000))
            kept += 1
    assert kept > 0
    assert await facts(journal) == [Fact(number=n, padding=b"x" * 2000) for n in range(kept)]
    await store.close()


async def test_appends_of_one_moment_share_a_commit(tmp_path: Path) -> None:
    store = SqliteJournal(tmp_path / "j.sqlite", commit_s=0.02)
    journal = Journal(store, "a", 1)
    commits: list[int] = []
    original = store._commit
    store._commit = lambda group: (commits.append(len(group)), original(group))[1]  # type: ignore[method-assign]
    await asyncio.gather(*[asyncio.ensure_future(journal.append(Fact(number=n))) for n in range(50)])
    assert max(commits) >= 25
    await store.close()
