"""The journal port: promises of every store.

Committed events survive a kill, zombies are fenced, damage is refused, and nothing is lost where no space is
left.
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journal_places_under_test import PlaceUnderTest

from gleaner.supervisor import Fenced, JournalDamaged, JournalError, JournalFull, Message
from gleaner.supervisor.journal import group_commit
from gleaner.supervisor.journal.group_commit import GroupCommit
from gleaner.supervisor.journal.port import Journal


class Fact(Message, frozen=True):
    number: int
    padding: bytes = b""


class AllFacts(Message, frozen=True):
    numbers: list[int]


async def facts(journal: Journal) -> list[Message]:
    return [event async for event in journal.replay()]


def numbered(*numbers: int) -> list[Message]:
    return [Fact(number=number) for number in numbers]


async def test_events_are_replayed_in_order_after_closing(place: PlaceUnderTest) -> None:
    store = place.open()
    journal = Journal(store, "a", 1)
    assert await journal.append(Fact(number=1), Fact(number=2)) == 2
    assert await journal.append(Fact(number=3)) == 3
    await store.close()
    store = place.open()
    assert await facts(Journal(store, "a", 2)) == numbered(1, 2, 3)
    assert await facts(Journal(store, "b", 2)) == []
    assert await Journal(store, "a", 2).append(Fact(number=4)) == 4
    await store.close()


async def test_forced_commits_are_kept_like_others(place: PlaceUnderTest) -> None:
    store = place.open()
    journal = Journal(store, "a", 1)
    await journal.append(Fact(number=1))
    await store.force_out()
    assert await journal.append(Fact(number=2)) == 2
    await store.close()
    store = place.open()
    assert await facts(Journal(store, "a", 2)) == numbered(1, 2)
    await store.close()


async def test_snapshot_bounds_the_replay(place: PlaceUnderTest) -> None:
    store = place.open()
    journal = Journal(store, "a", 1)
    await journal.append(*numbered(*range(100)))
    await journal.snapshot(AllFacts(numbers=list(range(100))))
    await journal.append(Fact(number=100))
    assert await facts(journal) == [AllFacts(numbers=list(range(100))), Fact(number=100)]
    await journal.snapshot(AllFacts(numbers=[]))
    assert await facts(journal) == [AllFacts(numbers=[])]
    await store.close()


async def test_no_two_snapshots_of_a_stream_have_the_same_number(place: PlaceUnderTest) -> None:
    store = place.open()
    journal = Journal(store, "a", 1)
    taken = [await journal.snapshot(AllFacts(numbers=[count])) for count in range(3)]
    assert taken == [1, 2, 3]
    assert await journal.append(Fact(number=3)) == 4
    assert await journal.snapshot(AllFacts(numbers=[3])) == 4
    assert await facts(journal) == [AllFacts(numbers=[3])]
    await store.close()


async def test_queued_writes_take_effect_in_order_of_calls(place: PlaceUnderTest) -> None:
    store = place.open(commit_s=0.02)
    a, b = Journal(store, "a", 1), Journal(store, "b", 1)
    waiting = [
        a.append_soon(*numbered(1, 2)),
        b.append_soon(Fact(number=7)),
        a.snapshot_soon(AllFacts(numbers=[1, 2])),
        a.append_soon(Fact(number=3)),
        b.beside("ledger").append_soon(Fact(number=8)),
        a.snapshot_soon(AllFacts(numbers=[1, 2, 3])),
        a.append_soon(Fact(number=4)),
    ]
    assert [await one for one in waiting] == [2, 1, 2, 3, 1, 3, 4]
    assert await facts(a) == [AllFacts(numbers=[1, 2, 3]), Fact(number=4)]
    assert await facts(b) == numbered(7)
    assert await facts(b.beside("ledger")) == numbered(8)
    await store.close()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    program=st.lists(st.sampled_from(["append", "append two", "snapshot", "new life", "reopen"]), max_size=12)
)
async def test_any_history_is_replayed_as_written(place: PlaceUnderTest, program: list[str]) -> None:
    stream = f"law-{os.urandom(6).hex()}"
    store, life, written = place.open(), 1, []
    expected: list[Message] = []
    journal = Journal(store, stream, life)
    for action in program:
        if action == "append":
            await journal.append(Fact(number=len(written)))
            written.append(len(written))
            expected.append(Fact(number=written[-1]))
        elif action == "append two":
            both = numbered(len(written), len(written) + 1)
            await journal.append(*both)
            written += [len(written), len(written) + 1]
            expected += both
        elif action == "snapshot":
            await journal.snapshot(AllFacts(numbers=written))
            expected = [AllFacts(numbers=list(written))]
        else:
            if action == "reopen":
                await store.close()
                store = place.open()
            life += 1
            journal = Journal(store, stream, life)
        assert await facts(journal) == expected
    await store.close()


async def test_older_incarnation_is_refused_at_the_store(place: PlaceUnderTest) -> None:
    store, other = place.open(), place.open()
    old, new = Journal(store, "a", 1), Journal(other, "a", 2)
    await old.append(Fact(number=1))
    await new.append(Fact(number=2))
    with pytest.raises(Fenced, match="belongs to incarnation 2"):
        await old.append(Fact(number=3))
    with pytest.raises(Fenced):
        await old.snapshot(AllFacts(numbers=[]))
    with pytest.raises(Fenced):
        await Journal(store, "a", 1).append(Fact(number=4))
    with pytest.raises(Fenced, match="was opened by incarnation 2"):
        await facts(Journal(store, "a", 1))
    assert await facts(new) == numbered(1, 2)
    await store.close()
    await other.close()


async def test_fenced_write_fails_no_other_write(place: PlaceUnderTest) -> None:
    store = place.open(commit_s=0.02)
    old, new, other = Journal(store, "a", 1), Journal(store, "a", 2), Journal(store, "b", 1)
    await new.append(Fact(number=1))
    fine, fenced, fine_too = (
        other.append_soon(Fact(number=2)),
        old.append_soon(Fact(number=3)),
        new.append_soon(Fact(number=4)),
    )
    assert (await fine, await fine_too) == (1, 2)
    with pytest.raises(Fenced):
        await fenced
    await store.close()


async def test_acknowledged_events_survive_sigkill(place: PlaceUnderTest) -> None:
    here = [os.getcwd(), *map(str, Path(__file__).parents[:3])]
    code = f"""
import asyncio, sys
sys.path[:0] = {here!r}
from gleaner.supervisor.journal.port import Journal
from tests.supervisor.journal.test_journal_port import Fact
async def main():
    journal = Journal({place.code()}, "a", 1)
    for n in range(10**6):
        await journal.append(Fact(number=n))
        print(n, flush=True)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        acknowledged = [int(writer.stdout.readline()) for _ in range(30)]
        writer.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in writer.stdout.read().split(b"\n")[:-1]]
    store = place.open()
    found = await facts(Journal(store, "a", 2))
    assert found[: len(acknowledged)] == numbered(*acknowledged)
    assert len(found) <= len(acknowledged) + 1
    await store.close()


async def test_simultaneous_appends_share_a_commit(place: PlaceUnderTest) -> None:
    store = place.open(commit_s=0.02)
    assert isinstance(store, GroupCommit)
    commits: list[int] = []
    original = store._keeper.commit
    store._keeper.commit = lambda writes: (commits.append(len(writes)), original(writes))[1]  # type: ignore[method-assign]
    journal = Journal(store, "a", 1)
    await asyncio.gather(*[asyncio.ensure_future(journal.append(Fact(number=n))) for n in range(50)])
    assert max(commits) >= 25
    await store.close()


async def test_awaited_append_flushes_its_group(place: PlaceUnderTest) -> None:
    store = place.open(commit_s=600.0)  # a group that waited so long would fail the test by its timeout
    journal = Journal(store, "a", 1)
    queued = journal.append_soon(Fact(number=0))
    assert await journal.append(Fact(number=1)) == 2
    assert await queued == 1
    await store.close()


async def test_consecutive_awaited_appends_space_their_commits(
    place: PlaceUnderTest,
) -> None:
    store = place.open(commit_s=0.2)
    journal = Journal(store, "a", 1)
    await journal.append(Fact(number=0))
    began_s = time.monotonic()  # the loop's own clock leaves out the time in which it waits for the journal
    for number in range(1, 5):
        await journal.append(Fact(number=number))
    took_s = time.monotonic() - began_s
    assert took_s >= 4 * group_commit.FLUSH_SHARE * 0.2 * 0.9
    await store.close()


async def test_full_disk_refuses_loses_nothing_and_works_once_freed(
    place: PlaceUnderTest,
) -> None:
    store = place.open()
    journal = Journal(store, "a", 1)
    await journal.append(Fact(number=0))
    assert store.refuses() == ""
    free = place.fill(store)
    kept = [0]
    with pytest.raises(JournalFull, match="free space"):
        for n in range(1, 1000):
            await journal.append(Fact(number=n, padding=b"x" * 2000))
            kept.append(n)
    refused = kept[-1] + 1
    assert "free space" in store.refuses()
    with pytest.raises(JournalFull):
        await journal.append(Fact(number=refused, padding=b"x" * 200_000))
    with pytest.raises(JournalFull):
        await store.probe()
    assert [event.number for event in await facts(journal) if isinstance(event, Fact)] == kept
    free()
    await store.probe()
    assert store.refuses() == ""
    assert await journal.append(Fact(number=refused)) == len(kept) + 1
    assert [event.number for event in await facts(journal) if isinstance(event, Fact)] == [*kept, refused]
    await store.close()


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (
            "UPDATE gleaner.events SET body=x'' WHERE {here} AND stream='b'",
            "event 1 of .*b fails its checksum",
        ),
        ("UPDATE gleaner.events SET version=9 WHERE {here} AND stream='b'", "fails its checksum"),
        ("DELETE FROM gleaner.events WHERE {here} AND stream='b'", "events 1 to 1 of .*b are missing"),
        ("UPDATE gleaner.events SET seq=7 WHERE {here} AND stream='b'", "event 1 of .*b is missing"),
        ("DELETE FROM gleaner.snapshots WHERE {here} AND stream='c'", "snapshot of .*c is missing"),
        ("UPDATE gleaner.snapshots SET seq=1 WHERE {here} AND stream='c'", "is at 1, expected 2"),
    ],
)
async def test_damage_is_refused_with_place_and_advice(place: PlaceUnderTest, damage: str, what: str) -> None:
    store = place.open()
    a, b, c = (Journal(store, name, 1) for name in "abc")
    await a.append(Fact(number=1))
    await b.append(Fact(number=1))
    await c.append(*numbered(1, 2))
    await c.snapshot(AllFacts(numbers=[1, 2]))
    await store.close()
    place.sql(damage)
    store = place.open()
    with pytest.raises(JournalDamaged, match=what) as problem:
        await facts(Journal(store, "b" if "'b'" in damage else "c", 2))
    assert "restore it from a copy" in str(problem.value)
    assert ("j.sqlite" in str(problem.value)) or ("postgresql://" in str(problem.value))
    assert await facts(Journal(store, "a", 2)) == numbered(1), "other streams are unchanged"
    with pytest.raises(JournalDamaged, match=what):
        place.content("b" if "'b'" in damage else "c")
    await store.close()


async def test_open_journal_is_read_from_outside_as_replayed(place: PlaceUnderTest) -> None:
    store = place.open()
    journal = Journal(store, "a", 3)
    await journal.append(*numbered(1, 2))
    await journal.snapshot(AllFacts(numbers=[1, 2]))
    await journal.append(Fact(number=3))
    found = place.content("a")
    assert found.messages == (AllFacts(numbers=[1, 2]), Fact(number=3))
    assert found.incarnation == 3
    await store.close()


async def test_long_tail_is_reported_once_until_it_doubles(
    place: PlaceUnderTest, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "MAX_TAIL", 10)
    store = place.open()
    journal = Journal(store, "a", 1)
    with caplog.at_level(logging.WARNING, "supervisor.journal"):
        for n in range(25):
            await journal.append(Fact(number=n))
        await journal.snapshot(AllFacts(numbers=[]))
        await journal.append(*numbered(*range(11)))
        await store.close()
    warnings = [record.getMessage() for record in caplog.records]
    assert [line.split(": ")[1].split(" since")[0] for line in warnings] == [
        "11 events of a", "21 events of a", "11 events of a",
    ]  # fmt: skip


async def test_closed_store_takes_nothing(place: PlaceUnderTest) -> None:
    store = place.open()
    journal = Journal(store, "a", 1)
    pending = journal.append_soon(Fact(number=1))
    await store.close()
    assert await pending == 1, "events queued before are committed"
    with pytest.raises(JournalError, match="closed"):
        await journal.append(Fact(number=2))
    await store.close()
