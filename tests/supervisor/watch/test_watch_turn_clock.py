"""TurnClock: a clock that pauses with its process, and timeouts measured by it."""

import asyncio

import pytest
import uvloop
from patient_loop import PatientLoop

from gleaner.supervisor import Done
from gleaner.supervisor.address import Address
from gleaner.supervisor.pending_asks import PendingAsk, PendingAsks
from gleaner.supervisor.virtual_time import VirtualLoop
from gleaner.supervisor.watch.turn_clock import TICK_S, TurnClock, timeout_in_turns

PAUSE_S = 20.0
ROUNDING_S = 1e-6


def pause() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, PatientLoop)
    loop.stand_still(PAUSE_S)


def test_clock_follows_the_loop_while_it_turns() -> None:
    async def measure() -> float:
        clock = TurnClock()
        clock.start()
        began_s = clock.now()
        await asyncio.sleep(PAUSE_S)
        passed_s = clock.now() - began_s
        clock.close()
        return passed_s

    loop = VirtualLoop()
    try:
        assert loop.run_until_complete(measure()) == pytest.approx(PAUSE_S, abs=ROUNDING_S)
    finally:
        loop.close()


async def test_pause_counts_as_one_tick_before_and_after() -> None:
    clock = TurnClock()
    clock.start()
    before_s, loop_s = clock.now(), asyncio.get_running_loop().time()
    pause()
    at_once_s = clock.now()
    await asyncio.sleep(0.01)
    later_s = clock.now()
    assert before_s <= at_once_s <= later_s
    assert later_s - before_s < 2 * TICK_S
    assert asyncio.get_running_loop().time() - loop_s > PAUSE_S
    clock.close()
    assert clock.now() == pytest.approx(later_s, abs=TICK_S)


async def test_measured_pause_does_not_count_at_all() -> None:
    paused_s = 0.0
    clock = TurnClock(lambda: paused_s)
    clock.start()
    before_s = clock.now()
    pause()
    paused_s += PAUSE_S
    assert clock.now() == pytest.approx(before_s, abs=0.2)
    await asyncio.sleep(1.5 * TICK_S)  # a tick, which is late, adds nothing
    clock.close()
    assert clock.now() == pytest.approx(before_s + 1.5 * TICK_S, abs=0.2)


async def test_each_tick_is_called_with_the_seconds_by_which_it_is_late() -> None:
    clock, late_s = TurnClock(), list[float]()
    clock.each_tick.append(late_s.append)
    clock.start()
    await asyncio.sleep(1.5 * TICK_S)
    pause()
    await asyncio.sleep(1.5 * TICK_S)
    clock.close()
    counted = len(late_s)
    await asyncio.sleep(2 * TICK_S)
    assert counted == len(late_s) == 3
    assert max(late_s) == pytest.approx(PAUSE_S - TICK_S / 2, abs=TICK_S / 2)
    assert sorted(late_s)[1] < TICK_S


async def test_answer_that_came_during_a_pause_is_in_time() -> None:
    read, write = asyncio.Queue[str](), asyncio.get_running_loop()
    async with timeout_in_turns(1.0):
        write.call_later(0.01, pause)
        write.call_later(0.02, read.put_nowait, "answer")
        assert await read.get() == "answer"


async def test_silence_of_its_time_in_turns_is_timeout() -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    with pytest.raises(TimeoutError):
        async with timeout_in_turns(1.2):
            loop.call_later(0.1, pause)
            await asyncio.Event().wait()
    assert loop.time() - began_s >= PAUSE_S + 1.2 - TICK_S - ROUNDING_S


async def test_ask_due_after_a_pause_takes_the_answer() -> None:
    loop = asyncio.get_running_loop()
    asks = PendingAsks()
    to = Address(name="other", endpoint="tcp://127.0.0.1:9")
    pending = asks.new(Done(), to, None, "asker", loop.time(), loop.time() + 5.0)
    loop.call_later(0.01, pause)
    loop.call_later(0.05, asks.resolve, pending.corr, Done())
    assert await pending.wait(loop.time() + 5.0) == Done()


async def test_unanswered_ask_ends_soon_after_a_pause() -> None:
    loop = asyncio.get_running_loop()
    pending = PendingAsks().new(
        Done(), Address(name="other", endpoint="tcp://127.0.0.1:9"), None, "asker", 0.0, 5.0
    )
    loop.call_later(0.01, pause)
    began_s = loop.time()
    assert await pending.wait(began_s + 5.0) is None
    assert loop.time() - began_s < PAUSE_S + 2 * TICK_S


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e-4])
def test_wait_of_almost_no_time_ends_on_the_loop_of_production(seconds: float) -> None:
    """uvloop gives no timer for a moment that is almost there, but a handle that does not know it."""

    async def wait() -> None:
        async with timeout_in_turns(seconds):
            await asyncio.sleep(60)

    async def ask() -> object:
        at_s = asyncio.get_running_loop().time()
        pending = PendingAsk(1, Done(), Address(name="x", endpoint=""), None, "a", at_s, at_s)
        return await pending.wait(at_s + seconds)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        with pytest.raises(TimeoutError):
            runner.run(asyncio.wait_for(wait(), 30))
        assert runner.run(asyncio.wait_for(ask(), 30)) is None
