"""Interrupts of a command: the first signal asks it to stop, the second forces it."""

import asyncio
import os
import signal

import pytest

from gleaner.rlctl.errors import INTERRUPTED, CommandError
from gleaner.rlctl.interrupt import Interrupt


async def signalled(interrupt: Interrupt, times: int) -> None:
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.01)


async def test_first_signal_asks_and_second_hurries() -> None:
    interrupt = Interrupt()
    interrupt.listen()
    hurries: list[str] = []
    interrupt.hurried(lambda: hurries.append("now"))
    await signalled(interrupt, 1)
    assert interrupt.is_set()
    assert hurries == []
    await signalled(interrupt, 1)
    assert hurries == ["now"]


async def test_work_continues_until_the_user_requests_an_end() -> None:
    interrupt = Interrupt()
    interrupt.listen()
    cancelled: list[bool] = []

    async def quick() -> str:
        return "done"

    async def long() -> None:
        try:
            await asyncio.sleep(60.0)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    assert await interrupt.unless(quick()) == "done"
    working = asyncio.create_task(interrupt.unless(long()))
    await asyncio.sleep(0)
    await signalled(interrupt, 1)
    with pytest.raises(CommandError) as end:
        await working
    assert end.value.code == INTERRUPTED
    assert cancelled == [True]
