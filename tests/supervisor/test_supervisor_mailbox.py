"""`Mailbox`: the order of its two lanes, their limits, and the senders that wait for free capacity."""

import asyncio
import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.supervisor.mailbox import SYSTEM_LIMIT, Lane, Mailbox

LIMIT = 3
MOST_TRIES = 3
"""Of a sender to put an item: each but the first is its turn."""
OPERATIONS = st.lists(st.sampled_from([*Lane, "take"]), max_size=24)


async def turn() -> None:
    """Let the callbacks that are ready run, and the tasks that these wake up."""
    for _ in range(3):
        await asyncio.sleep(0)


async def put(mailbox: Mailbox[int], item: int) -> None:
    """As a sender does."""
    for _ in range(MOST_TRIES):
        if mailbox.offer(Lane.USER, item):
            return
        await mailbox.room()
    raise AssertionError("it is woken up while there is no free capacity")


def full() -> Mailbox[int]:
    mailbox: Mailbox[int] = Mailbox(LIMIT)
    for number in range(LIMIT):
        assert mailbox.offer(Lane.USER, number)
    return mailbox


@given(OPERATIONS)
def test_items_are_taken_in_order_and_those_of_the_system_lane_first(operations: list[Lane | str]) -> None:
    mailbox: Mailbox[int] = Mailbox(LIMIT)
    lanes: dict[Lane, deque[int]] = {Lane.SYSTEM: deque(), Lane.USER: deque()}
    for number, operation in enumerate(operations):
        if isinstance(operation, Lane):
            fits = operation is Lane.SYSTEM or len(lanes[Lane.USER]) < LIMIT
            assert mailbox.offer(operation, number) is fits
            if fits:
                lanes[operation].append(number)
        else:
            queue = lanes[Lane.SYSTEM] or lanes[Lane.USER]
            assert mailbox.take() == (queue.popleft() if queue else None)
        assert [mailbox.depth(lane) for lane in lanes] == [len(queue) for queue in lanes.values()]
        assert len(mailbox) == sum(map(len, lanes.values()))
    assert mailbox.drain() == [*lanes[Lane.SYSTEM], *lanes[Lane.USER]]
    assert (len(mailbox), mailbox.take(), mailbox.drain()) == (0, None, [])


@pytest.mark.parametrize(("lane", "limit"), [(Lane.USER, LIMIT), (Lane.SYSTEM, SYSTEM_LIMIT)])
def test_full_lane_takes_nothing_and_leaves_the_other_one_free(lane: Lane, limit: int) -> None:
    mailbox: Mailbox[int] = Mailbox(LIMIT)
    other = Lane.USER if lane is Lane.SYSTEM else Lane.SYSTEM
    assert [mailbox.offer(lane, number) for number in range(limit + 1)] == [True] * limit + [False]
    assert mailbox.depth(lane) == limit
    assert mailbox.offer(other, -1)
    assert mailbox.take() == (-1 if other is Lane.SYSTEM else 0)


def test_only_wanted_messages_stay_and_in_their_order() -> None:
    mailbox: Mailbox[int] = Mailbox(10)
    mailbox.keep_only(lambda number: False)
    for number in range(10):
        mailbox.offer(Lane.SYSTEM if number < 4 else Lane.USER, number)
    mailbox.keep_only(lambda number: number % 3 == 0)
    assert [mailbox.depth(Lane.SYSTEM), mailbox.depth(Lane.USER)] == [2, 2]
    assert mailbox.drain() == [0, 3, 6, 9]


async def test_reader_that_takes_an_item_wakes_one_sender_in_turn() -> None:
    mailbox, woken = full(), list[str]()
    for name in ("first", "second", "third"):
        mailbox.when_room(lambda name=name: woken.append(name))  # type: ignore[misc]
    await turn()
    assert woken == []
    mailbox.take()
    assert woken == [], "the reader is not held up"
    await turn()
    assert woken == ["first"]
    mailbox.take()
    mailbox.take()
    assert mailbox.take() is None
    await turn()
    assert woken == ["first", "second", "third"], "once each"


async def test_system_item_that_is_taken_wakes_a_sender_too() -> None:
    mailbox, woken = full(), list[int]()
    mailbox.offer(Lane.SYSTEM, 7)
    mailbox.when_room(lambda: woken.append(1))
    assert mailbox.take() == 7
    await turn()
    assert woken == [1]


async def test_senders_put_their_items_in_the_order_in_which_they_wait() -> None:
    mailbox = full()
    senders = [asyncio.create_task(put(mailbox, number)) for number in (10, 11, 12)]
    await turn()
    assert [sender.done() for sender in senders] == [False] * 3
    taken = []
    for _ in range(6):
        taken.append(mailbox.take())
        await turn()
        assert len(mailbox) <= LIMIT
    assert taken == [0, 1, 2, 10, 11, 12]
    await asyncio.gather(*senders)


async def test_reader_that_leaves_wakes_all_senders() -> None:
    mailbox = full()
    senders = [asyncio.create_task(mailbox.room()) for _ in range(3)]
    await turn()
    assert mailbox.drain() == [0, 1, 2]
    await turn()
    assert [sender.done() for sender in senders] == [True] * 3
    mailbox.offer(Lane.USER, 1)
    assert mailbox.take() == 1, "no turn is left over"


async def test_sender_that_is_cancelled_in_its_turn_leaves_it_to_the_next_one() -> None:
    mailbox = full()
    first, second, third = [asyncio.create_task(mailbox.room()) for _ in range(3)]
    await turn()
    mailbox.take()
    await asyncio.sleep(0)  # the first one has its turn, and does not know yet
    first.cancel()
    await turn()
    assert first.cancelled()
    assert (second.done(), third.done()) == (True, False)
    third.cancel()
    await turn()
    assert third.cancelled()


async def test_sender_that_is_cancelled_before_its_turn_wakes_none() -> None:
    mailbox = full()
    first, second = [asyncio.create_task(mailbox.room()) for _ in range(2)]
    await turn()
    second.cancel()
    await turn()
    assert (first.done(), second.cancelled()) == (False, True), "nothing was taken"
    mailbox.take()
    await turn()
    assert first.done()


async def test_sender_is_woken_when_those_before_it_gave_up() -> None:
    mailbox = full()
    gone = [asyncio.create_task(mailbox.room()) for _ in range(2 * LIMIT)]
    waits = asyncio.create_task(mailbox.room())
    await turn()
    for sender in gone:
        sender.cancel()
    await turn()
    mailbox.take()
    await turn()
    assert waits.done(), "the mailbox is read no more once it is empty, so each turn counts"


async def test_turn_of_a_sender_that_is_cancelled_at_that_moment_is_that_of_the_next_one() -> None:
    mailbox = full()
    first, second = [asyncio.create_task(mailbox.room()) for _ in range(2)]
    await turn()
    mailbox.take()
    first.cancel()  # its turn is scheduled, and has not run
    await turn()
    assert first.cancelled()
    assert second.done()


@given(st.lists(st.sampled_from(["wait", "give up", "take", "pass"]), max_size=40), st.randoms())
def test_no_sender_waits_while_the_mailbox_is_empty(operations: list[str], rng: random.Random) -> None:
    async def waiting_put(mailbox: Mailbox[int]) -> None:
        while not mailbox.offer(Lane.USER, 9):  # a sender that did not wait may have been quicker
            await mailbox.room()

    async def judged() -> None:
        mailbox, senders = Mailbox[int](1), list[asyncio.Task[None]]()
        mailbox.offer(Lane.USER, 0)
        for operation in operations:
            if operation == "wait":
                senders.append(asyncio.create_task(waiting_put(mailbox)))
            elif operation == "give up" and senders:
                rng.choice(senders).cancel()
            elif operation == "take":
                mailbox.take()
            else:
                await turn()
        await turn()
        while mailbox.take() is not None:
            await turn()
        await turn()
        assert all(sender.done() for sender in senders)
        assert not any(sender.exception() for sender in senders if not sender.cancelled())

    asyncio.run(judged())
