"""The lease of the head: one holder at a time, growing terms.

No journal accepts an event of an older holder.
"""

import asyncio
import contextlib
import os
import struct
import time
from uuid import uuid4

import pytest
from postgres_server import PostgresServer

from gleaner.supervisor import Fenced, JournalAway, Message
from gleaner.supervisor.journal.port import Journal
from gleaner.supervisor.journal.postgres import PostgresJournal
from gleaner.supervisor.journal.postgres_layout import IDLE_S, LeaseTerm, connect
from gleaner.supervisor.journal.postgres_lease import PostgresLease

SHORT_S = 0.4  # a test waits for its end
LONG_S = 3600.0  # no test does


class Ordered(Message, frozen=True):
    number: int


@pytest.fixture
def name() -> str:
    return f"head-{uuid4().hex[:8]}"


def acquired(lease: PostgresLease) -> LeaseTerm:
    """Wait until the lease is acquired: an instance blocked in a write delays it for a while."""
    deadline = time.monotonic() + 60.0
    while True:
        with contextlib.suppress(JournalAway):
            if (term := lease.acquire()) is not None:
                return term
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_lease_has_one_holder_and_growing_terms(journal_database: str, name: str) -> None:
    first = PostgresLease(journal_database, name, "first", LONG_S)
    second = PostgresLease(journal_database, name, "second", LONG_S)
    assert first.look() is None
    term = acquired(first)
    assert (term.term, second.acquire(), first.acquire()) == (1, None, None)
    held = second.look()
    assert held is not None
    assert (held.holder, held.term) == ("first", 1)
    assert LONG_S / 2 < held.left_s <= LONG_S
    assert first.renew(term)
    first.release(term)
    newer = acquired(second)
    assert newer.term == 2
    assert not first.renew(term), "the lease belongs to a newer term"
    first.release(term)  # has no effect on the newer term
    assert second.renew(newer)
    for lease in (first, second):
        lease.close()


def test_expired_lease_goes_to_a_waiting_candidate(journal_database: str, name: str) -> None:
    first = PostgresLease(journal_database, name, "first", LONG_S)
    longer = PostgresLease(journal_database, name, "first", 2 * LONG_S)
    shorter = PostgresLease(journal_database, name, "first", SHORT_S)
    second = PostgresLease(journal_database, name, "second", LONG_S)
    term = acquired(first)
    assert longer.renew(term)
    held = second.look()
    assert held is not None
    assert LONG_S < held.left_s <= 2 * LONG_S, "a renewal counts from now on"
    assert second.acquire() is None
    assert shorter.renew(term)
    assert acquired(second).term == 2
    assert not first.renew(term)
    for lease in (first, longer, shorter, second):
        lease.close()


def test_lease_reports_an_unavailable_database() -> None:
    lease = PostgresLease("postgresql://gleaner@127.0.0.1:1/none", "head", "first", 1.0)
    with pytest.raises(JournalAway, match="start the server"):
        lease.acquire()


async def test_journal_refuses_a_holder_of_an_older_term(journal_database: str, name: str) -> None:
    first = PostgresLease(journal_database, name, "first", SHORT_S)
    second = PostgresLease(journal_database, name, "second", 60.0)
    old_term = await asyncio.to_thread(acquired, first)
    old = PostgresJournal(journal_database, space=f"{name}/rollout", lease=old_term, commit_s=0.0)
    # The zombie's incarnation is the newer one: only the lease identifies it.
    zombie = Journal(old, "a", 99)
    assert await zombie.append(Ordered(number=1)) == 1
    new_term = await asyncio.to_thread(acquired, second)
    for word in (
        zombie.append(Ordered(number=2)),
        zombie.snapshot(Ordered(number=3)),
        Journal(old, "b", 1).append(Ordered(number=4)),
        old.open("a", 100),
        old.probe(),
    ):
        with pytest.raises(Fenced, match=f"the lease {name} is held by second under term 2, .* term 1"):
            await word
    new = PostgresJournal(journal_database, space=f"{name}/rollout", lease=new_term, commit_s=0.0)
    heir = Journal(new, "a", 100)
    assert [event async for event in heir.replay()] == [Ordered(number=1)]
    assert await heir.append(Ordered(number=2)) == 2
    assert await new.read("b") == (None, [])
    for store in (old, new):
        await store.close()
    for lease in (first, second):
        lease.close()


async def test_holder_frozen_in_a_write_does_not_block_lease(
    postgres: PostgresServer, journal_database: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gleaner.supervisor.journal.postgres_layout.IDLE_S", IDLE_S)
    first = PostgresLease(journal_database, name, "first", SHORT_S)
    second = PostgresLease(journal_database, name, "second", 60.0)
    term = await asyncio.to_thread(acquired, first)
    store = PostgresJournal(journal_database, space=f"{name}/rollout", lease=term, commit_s=0.0)
    keeper = store._keeper
    await store.open("a", 1)

    def freeze() -> None:
        with keeper._connected() as db:  # type: ignore[attr-defined]
            db.execute("BEGIN")
            keeper._check_lease(db, term)  # type: ignore[attr-defined]

    await asyncio.to_thread(freeze)
    assert (await asyncio.to_thread(acquired, second)).term == 2
    with pytest.raises(Fenced):
        await store.append("a", 1, [Ordered(number=1)])
    await store.close()
    for lease in (first, second):
        lease.close()


def test_holder_cut_off_in_a_request_frees_lease(
    postgres: PostgresServer, journal_database: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waits for the rest of a request: none of its own time limits applies there."""
    monkeypatch.setattr("gleaner.supervisor.journal.postgres_layout.IDLE_S", IDLE_S)
    first = PostgresLease(journal_database, name, "first", SHORT_S)
    second = PostgresLease(journal_database, name, "second", SHORT_S)
    term = acquired(first)
    db = connect(journal_database)
    db.execute("BEGIN")
    db.execute("SELECT term FROM gleaner.leases WHERE name=%s FOR SHARE", (name,))
    statement = b"\0SELECT 1\0\0\0"
    # A Parse message without the Sync that ends a request (PostgreSQL documentation, 55.2.3).
    os.write(db.fileno(), b"P" + struct.pack("!I", 4 + len(statement)) + statement)
    time.sleep(IDLE_S + 1.0)
    assert acquired(second).term == 2
    db.close()
    assert not first.renew(term)
    for lease in (first, second):
        lease.close()


async def test_many_candidates_never_hold_a_lease_together(journal_database: str, name: str) -> None:
    """A fence means that no event of another term comes between the events of one term."""

    unknown = 0  # appends in flight when a waiting candidate ended the session

    async def live(number: int) -> int:
        nonlocal unknown
        lease = PostgresLease(journal_database, name, f"life {number}", SHORT_S)
        term = await asyncio.to_thread(acquired, lease)
        store = PostgresJournal(journal_database, space=f"{name}/rollout", lease=term, commit_s=0.0)
        written = 0
        try:
            while True:  # until another candidate holds the lease: it is not renewed here
                try:
                    await store.append("a", 1, [Ordered(number=term.term)])
                    written += 1
                except JournalAway:
                    unknown += 1
        except Fenced:
            return written
        finally:
            await store.close()
            lease.close()

    last = PostgresLease(journal_database, name, "the end", 60.0)
    lives = [asyncio.ensure_future(live(number)) for number in range(4)]
    await asyncio.wait(lives, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    while not all(task.done() for task in lives):
        held = await asyncio.to_thread(last.look)
        if held is not None and held.term >= 4:
            await asyncio.to_thread(acquired, last)  # fences the last of them
            break
        await asyncio.sleep(0.02)
    written = await asyncio.gather(*lives)
    wrote = sum(count > 0 for count in written)  # on a busy machine a term may pass before its first append
    store = PostgresJournal(journal_database, space=f"{name}/rollout", commit_s=0.0)
    _, events = await store.read("a")
    terms = [event.number for _seq, event in events if isinstance(event, Ordered)]
    assert terms == sorted(terms), "an older holder wrote after a newer one"
    assert 2 <= wrote <= len(set(terms)) <= 4
    assert sum(written) <= len(terms) <= sum(written) + unknown
    await store.close()
    last.close()
