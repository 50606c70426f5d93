"""Promises of PatientLoop to all tests."""

import asyncio
import time
from pathlib import Path

import pytest
from patient_loop import TURN_S, PatientLoop

from gleaner.supervisor.journal.sqlite import SqliteJournal
from gleaner.supervisor.testing import TestSystem


async def test_every_test_runs_on_the_patient_loop() -> None:
    assert isinstance(asyncio.get_running_loop(), PatientLoop)


def test_asyncio_run_uses_the_patient_loop_too() -> None:
    async def which() -> type[asyncio.AbstractEventLoop]:
        return type(asyncio.get_running_loop())

    assert asyncio.run(which()) is PatientLoop


async def test_paused_process_misses_no_deadline() -> None:
    loop = asyncio.get_running_loop()
    answered = loop.create_future()
    loop.call_later(0.1, answered.set_result, None)
    before_s = loop.time()
    time.sleep(0.4)
    assert loop.time() - before_s <= TURN_S + 1e-6
    async with asyncio.timeout(0.3):
        await answered


async def test_idle_loop_is_never_early() -> None:
    real_s, own_s = time.monotonic(), asyncio.get_running_loop().time()
    await asyncio.sleep(0.1)
    assert asyncio.get_running_loop().time() - own_s >= 0.1
    assert time.monotonic() - real_s >= 0.1 - 1e-3


async def test_ready_task_runs_before_a_longer_timer() -> None:
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


async def test_slow_journal_makes_no_other_task_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
