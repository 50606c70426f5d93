"""Journals in PostgreSQL: killed, restarted, shared and newer servers."""

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from postgres_server import PostgresServer, why_not

from gleaner.supervisor import JournalAway, JournalUnreadable, Message, SqliteJournal
from gleaner.supervisor.journal.port import Journal
from gleaner.supervisor.journal.postgres import PostgresJournal, forget_jobs
from gleaner.supervisor.journal.postgres_layout import without_password
from gleaner.supervisor.journal.postgres_view import view_database


class Pebble(Message, frozen=True):
    number: int


class Heap(Message, frozen=True):
    """The last event of a finished job."""


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may kill."""
    if reason := why_not():
        pytest.skip(reason)
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


async def pebbles(store: PostgresJournal, stream: str = "a", incarnation: int = 99) -> list[int]:
    replayed = Journal(store, stream, incarnation).replay()
    return [event.number async for event in replayed if isinstance(event, Pebble)]


async def test_killed_server_keeps_acknowledged_events_exactly_once(
    own_server: PostgresServer,
) -> None:
    store = PostgresJournal(own_server.url(), space="job/rollout", commit_s=0.001)
    journal = Journal(store, "a", 1)
    acknowledged: dict[int, int] = {}
    failed: set[int] = set()
    over = asyncio.Event()

    async def write(writer: int) -> None:
        number = writer
        while not over.is_set():
            number += 10
            try:
                acknowledged[number] = await journal.append(Pebble(number=number))
            except JournalAway:
                failed.add(number)
                await asyncio.sleep(0.02)

    writers = [asyncio.ensure_future(write(writer)) for writer in range(10)]
    for _ in range(2):
        before = len(acknowledged)
        async with asyncio.timeout(60.0):
            while len(acknowledged) < before + 200:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(own_server.kill)
        async with asyncio.timeout(60.0):
            while "start the server" not in store.refuses():
                await asyncio.sleep(0.01)
        await asyncio.to_thread(own_server.start)
        before = len(acknowledged)
        async with asyncio.timeout(60.0):
            while len(acknowledged) < before + 100:
                await asyncio.sleep(0.01)
        assert store.refuses() == ""
    over.set()
    await asyncio.gather(*writers)
    await store.close()

    store = PostgresJournal(own_server.url(), space="job/rollout")
    _, events = await store.read("a")
    found = {seq: event.number for seq, event in events if isinstance(event, Pebble)}
    assert sorted(found) == list(range(1, len(found) + 1)), "no number was given twice or left out"
    assert {number: seq for seq, number in found.items() if number in acknowledged} == acknowledged
    assert len(set(found.values())) == len(found), "no event is duplicated"
    assert set(found.values()) - acknowledged.keys() <= failed, "unwritten events are absent"
    await store.close()


async def test_connection_broken_while_idle_costs_no_append(
    postgres: PostgresServer, journal_database: str
) -> None:
    store = PostgresJournal(journal_database, space="idle/rollout", commit_s=0.0)
    journal = Journal(store, "a", 1)
    await journal.append(Pebble(number=1))
    with postgres.session(journal_database.rpartition("/")[2]) as db:
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name='gleaner'"
            " AND datname=current_database() AND pid<>pg_backend_pid()"
        )
    assert await journal.append(Pebble(number=2)) == 2
    assert await pebbles(store) == [1, 2]
    await store.close()


async def test_processes_share_a_database_without_shared_journals(journal_database: str) -> None:
    stores = [
        PostgresJournal(journal_database, space=f"{job}/rollout", commit_s=0.0) for job in ("one", "two")
    ]
    for number, store in enumerate(stores):
        assert await Journal(store, "a", 1).append(Pebble(number=number)) == 1
    assert [await pebbles(store) for store in stores] == [[0], [1]]
    with view_database(journal_database) as journal:
        assert {"one/rollout: a", "two/rollout: a"} <= set(journal.names())
    for store in stores:
        await store.close()


async def test_concurrent_stores_create_the_tables_once(
    postgres: PostgresServer,
) -> None:
    url = postgres.new_database()
    opened = [asyncio.to_thread(PostgresJournal, url, space=f"job/{n}") for n in range(4)]
    for store in await asyncio.gather(*opened):
        await store.close()


def test_newer_layout_is_refused_with_both_versions(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    asyncio.run(_open_and_close(url))
    with postgres.session(url.rpartition("/")[2]) as db:
        db.execute("UPDATE gleaner.layout SET version=5")
    for look in (lambda: asyncio.run(_open_and_close(url)), lambda: view_database(url).__enter__()):
        with pytest.raises(
            JournalUnreadable, match="has layout 5, this program supports up to 1: run the newer"
        ):
            look()


async def _open_and_close(url: str) -> None:
    await PostgresJournal(url, space="job/x").close()


def test_absent_server_is_named_without_its_password() -> None:
    with pytest.raises(JournalAway, match="start the server") as problem:
        PostgresJournal("postgresql://gleaner:secret@127.0.0.1:1/none", space="job/x")
    assert "postgresql://gleaner:***@127.0.0.1:1/none" in str(problem.value)
    assert "secret" not in str(problem.value)
    assert without_password("postgresql://db.example/gleaner") == "postgresql://db.example/gleaner"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_process_learns_the_newest_incarnation_ever_written(
    kind: str, tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer
) -> None:
    """A clock that was set back, or that of another host, must not make a process older than the one it
    replaces."""
    if kind == "sqlite":
        path = tmp_path_factory.mktemp("newest") / "j.sqlite"
        stores = [SqliteJournal(path), SqliteJournal(path)]
    else:
        url = postgres.new_database()
        stores = [PostgresJournal(url, space=f"job/{n}") for n in "ab"]  # type: ignore[misc]
    async with contextlib.AsyncExitStack() as closing:
        for store in stores:
            closing.push_async_callback(store.close)
        assert await stores[0].newest_incarnation() == 0
        await stores[0].open("a", 2**52)
        await stores[0].open("b", 5)
        assert await stores[1].newest_incarnation() == 2**52


async def test_only_old_finished_jobs_are_forgotten(
    postgres: PostgresServer,
) -> None:
    url = postgres.new_database()
    for job, over in (("oldest", True), ("killed", False), ("newest", True)):
        store = PostgresJournal(url, space=f"{job}/agent")
        try:
            await Journal(store, "a", 1).append(Heap() if over else Pebble(number=1))
        finally:
            await store.close()
    assert forget_jobs(url, ["own"], 1, over="Heap") == ["killed"]
    assert forget_jobs(url, ["own", "killed"], 1, over="Heap") == []
    with view_database(url) as journal:
        assert {name.partition("/")[0] for name in journal.names()} == {"killed", "newest"}
