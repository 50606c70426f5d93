"""What the loop of all tests promises them."""

import asyncio
import time
from pathlib import Path

import pytest
from patient_loop import TURN_S, PatientLoop

from gleaner.supervisor.journal.sqlite import SqliteJournal
from gleaner.supervisor.testing import TestSystem


async def test_every_test_runs_on_it() -> None:
    assert isinstance(asyncio.get_running_loop(), PatientLoop)


def test_what_runs_a_loop_of_its_own_runs_on_it_too() -> None:
    async def which() -> type[asyncio.AbstractEventLoop]:
        return type(asyncio.get_running_loop())

    assert asyncio.run(which()) is PatientLoop


async def test_a_process_that_stands_still_misses_no_deadline() -> None:
    loop = asyncio.get_running_loop()
    answered = loop.create_future()
    loop.call_later(0.1, answered.set_result, None)
    before_s = loop.time()
    time.sleep(0.4)
    assert loop.time() - before_s <= TURN_S + 1e-6
    async with asyncio.timeout(0.3):
        await answered


async def test_an_idle_loop_keeps_real_time_or_is_late_and_never_early() -> None:
    real_s, own_s = time.monotonic(), asyncio.get_running_loop().time()
    await asyncio.sleep(0.1)
    assert asyncio.get_running_loop().time() - own_s >= 0.1
    assert time.monotonic() - real_s >= 0.1 - 1e-3


async def test_whoever_is_ready_has_its_turn_before_a_timer_that_is_longer_than_a_turn() -> None:
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            time.sleep(0.02)  # slow, as on a busy machine
            await asyncio.sleep(0)

    working = asyncio.create_task(work())
    await asyncio.sleep(0.2)
    working.cancel()
    assert turns >= 0.2 / (2 * TURN_S) - 1


async def test_a_journal_that_takes_long_makes_nobody_else_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TestSystem(tmp_path) as system:
        store = system.system._journals
        assert isinstance(store, SqliteJournal)
        read = store._keeper.read

        def slow(stream: str) -> object:
            time.sleep(0.5)
            return read(stream)

        monkeypatch.setattr(store._keeper, "read", slow)
        async with asyncio.timeout(0.2):
            await store.read("nobody")
