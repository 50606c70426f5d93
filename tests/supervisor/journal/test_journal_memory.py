"""`MemoryJournal`: it keeps the promises of the port, as a store on a disk does."""

import pytest

from gleaner.supervisor import Fenced, JournalFull, Message
from gleaner.supervisor.journal.memory import MemoryJournal


class Remembered(Message, frozen=True):
    number: int


class AllRemembered(Message, frozen=True):
    numbers: list[int]


def remembered(*numbers: int) -> list[Message]:
    return [Remembered(number=number) for number in numbers]


async def test_events_are_read_in_order_with_their_numbers_by_stream() -> None:
    store = MemoryJournal()
    assert await store.append("a", 1, remembered(1, 2)) == 2
    assert await store.append("b", 1, remembered(7)) == 1
    assert await store.append("a", 1, remembered(3)) == 3
    assert await store.read("a") == (None, list(enumerate(remembered(1, 2, 3), 1)))
    assert await store.read("b") == (None, [(1, Remembered(number=7))])
    assert await store.read("c") == (None, [])
    await store.close()
    assert await store.read("a") == (None, list(enumerate(remembered(1, 2, 3), 1))), "it outlives its writers"


async def test_snapshot_replaces_events_and_has_a_number_of_its_own() -> None:
    store = MemoryJournal()
    await store.append("a", 1, remembered(1, 2))
    assert await store.snapshot("a", 1, AllRemembered(numbers=[1, 2])) == 2
    assert await store.snapshot("a", 1, AllRemembered(numbers=[])) == 3
    assert await store.append("a", 1, remembered(3)) == 4
    assert await store.read("a") == (AllRemembered(numbers=[]), [(4, Remembered(number=3))])


async def test_older_incarnation_writes_nothing_after_a_newer_one_opened_the_stream() -> None:
    store = MemoryJournal()
    assert store.newest_incarnation == 0
    await store.open("a", 2)
    await store.append("a", 2, remembered(1))
    await store.open("a", 2)
    await store.open("b", 1)
    await store.open("a", 4)
    assert store.newest_incarnation == 4
    with pytest.raises(Fenced, match="a was opened by incarnation 4, this is 2"):
        await store.append("a", 2, remembered(2))
    with pytest.raises(Fenced):
        await store.snapshot("a", 3, AllRemembered(numbers=[]))
    with pytest.raises(Fenced):
        await store.open("a", 3)
    assert await store.append("a", 4, remembered(3)) == 2
    assert await store.read("a") == (None, [(1, Remembered(number=1)), (2, Remembered(number=3))])
    assert await store.append("b", 1, remembered(9)) == 1, "another stream has its own incarnations"


async def test_full_store_refuses_writes_and_keeps_what_it_has() -> None:
    store = MemoryJournal()
    await store.append("a", 1, remembered(1))
    await store.probe()
    assert store.refuses() == ""
    store.full = True
    assert "full" in store.refuses()
    for write in (
        store.append("a", 1, remembered(2)),
        store.snapshot("a", 1, AllRemembered(numbers=[])),
        store.probe(),
    ):
        with pytest.raises(JournalFull, match="free space"):
            await write
    await store.open("a", 2)
    store.full = False
    await store.force_out()
    assert await store.append("a", 2, remembered(2)) == 2
    assert await store.read("a") == (None, list(enumerate(remembered(1, 2), 1)))
