"""Backpressure: a slow actor slows only its senders, across processes too."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gleaner.supervisor import Actor, Message, Overloaded, Unreachable, handles
from gleaner.supervisor.address import Address
from gleaner.supervisor.testing import TEST_LIMITS, TestSystem
from gleaner.transport.link_end import LinkLimits

CAPACITY = LinkLimits().window + TEST_LIMITS.mailbox + 1
"""Messages that one process accepts for one slow actor: held, in its mailbox, being handled."""


class SlowNumber(Message, frozen=True):
    number: int


class SlowQuestion(Message, frozen=True):
    pass


class SlowAnswer(Message, frozen=True):
    seen: int


class Slow(Actor):
    def __init__(self) -> None:
        self.seen: list[int] = []
        self.go_on = asyncio.Event()

    @handles(SlowNumber)
    async def number(self, message: SlowNumber) -> None:
        await self.go_on.wait()
        self.seen.append(message.number)

    @handles(SlowQuestion)
    async def question(self, message: SlowQuestion) -> SlowAnswer:
        return SlowAnswer(seen=len(self.seen))


async def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[TestSystem]:
    async with TestSystem(tmp_path) as system:
        yield system


@pytest.fixture
async def there(here: TestSystem, tmp_path: Path) -> AsyncIterator[TestSystem]:
    async with TestSystem(tmp_path, node="other", join=here) as other:
        yield other


def slow(system: TestSystem, name: str) -> tuple[Address, Slow]:
    actor = Slow()
    return system.spawn(name, lambda: actor), actor


async def send_all(system: TestSystem, to: Address, count: int) -> None:
    for number in range(count):
        await system.tell(to, SlowNumber(number=number))


async def test_remote_messages_wait_for_a_full_mailbox(here: TestSystem, there: TestSystem) -> None:
    full, actor = slow(there, "full")
    free, other = slow(there, "free")
    count = CAPACITY + 500
    sending = asyncio.create_task(send_all(here, full, count))
    await until(lambda: sum(state.held for state in there.system.links.states()) >= LinkLimits().window)
    await asyncio.sleep(0.05)
    assert not sending.done()
    assert "credit for a message" in [wait.what for wait in here.system.waits.snapshot()]
    with pytest.raises(Overloaded):
        await here.ask(full, SlowQuestion(), SlowAnswer)
    assert await here.ask(free, SlowQuestion(), SlowAnswer) == SlowAnswer(seen=0)
    actor.go_on.set()
    await asyncio.wait_for(sending, 60)
    await until(lambda: len(actor.seen) == count)
    assert actor.seen == list(range(count))
    await until(lambda: not any(state.held for state in there.system.links.states()))
    assert other.seen == []
    assert not here.system.dead_letters.counts
    assert not there.system.dead_letters.counts


async def test_held_message_is_dead_letter_when_actor_ends(here: TestSystem, there: TestSystem) -> None:
    full, _actor = slow(there, "full")
    await send_all(here, full, 200)
    await until(lambda: sum(state.held for state in there.system.links.states()) > 100)
    there.kill("full")
    await until(lambda: there.system.dead_letters.counts["its actor ended"] > 100)
    await until(lambda: not any(state.held for state in there.system.links.states()))


async def test_message_without_capacity_in_time_is_dead_letter(here: TestSystem, there: TestSystem) -> None:
    full, _actor = slow(there, "full")
    began = asyncio.get_running_loop().time()
    await asyncio.wait_for(send_all(here, full, CAPACITY + 1), 60)
    assert here.system.dead_letters.counts == {"tell: no room in time": 1}
    assert asyncio.get_running_loop().time() - began >= TEST_LIMITS.credit_s


async def test_sender_waiting_on_a_dead_process_continues_at_once(
    here: TestSystem, there: TestSystem
) -> None:
    full, _actor = slow(there, "full")
    sending = asyncio.create_task(send_all(here, full, CAPACITY + 10))
    await until(lambda: "credit for a message" in [wait.what for wait in here.system.waits.snapshot()])
    here.network.kill("other")
    await asyncio.wait_for(sending, 60)
    assert here.system.dead_letters.counts["tell: process is gone"] >= 1
    assert here.system.dead_letters.counts["tell: no room in time"] == 0
    with pytest.raises(Unreachable):
        await here.ask(full, SlowQuestion(), SlowAnswer, deadline_s=60.0)
