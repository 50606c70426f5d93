"""Asks in asyncio systems: a fixed number outstanding, or a random storm.

Imported by programs that run in the peers' environments: the standard library alone.
"""

import asyncio
import logging
import random
import time
from array import array
from collections.abc import Awaitable, Callable

from bench.runtime.task import AskResult, Effort, Storm, payload

Ask = Callable[[bytes], Awaitable[bytes]]


async def asks(ask: Ask, seconds: float, outstanding: int) -> AskResult:
    """Ask for so long. Raises AssertionError when an answer has other bytes."""
    clock = time.perf_counter
    latencies: array[float] = array("d")
    effort = Effort()
    began = clock()
    until = began + seconds

    async def one_after_the_other(number: int) -> None:
        while (sent := clock()) < until:
            content = payload(number)
            reply = await ask(content)
            latencies.append(clock() - sent)
            if reply != content:
                raise AssertionError("other bytes came back")
            number += outstanding

    await asyncio.gather(*(one_after_the_other(number) for number in range(outstanding)))
    return AskResult(latencies, clock() - began, effort.spent_s())


async def ask_around(
    storm: Storm, pick: Callable[[random.Random], Ask], seed: int, begin_s: float, until_s: float
) -> None:
    """One actor of the storm: one ask at a time, to the actor that `pick` draws; times are of the machine's
    monotonic clock. An ask that fails is lost, and logged."""
    clock, rng = time.monotonic, random.Random(f"storm/{seed}")
    await asyncio.sleep(max(0.0, begin_s - clock()))
    number = 0
    while (sent := clock()) < until_s:
        storm.asked += 1
        number += 1
        content = payload(number)
        try:
            reply = await pick(rng)(content)
        except Exception as problem:  # noqa: BLE001 (every system has errors of its own; it counts as lost)
            logging.getLogger("bench").warning("lost: %r", problem)
            storm.failed += 1
        else:
            now = clock()
            storm.answer(reply == content, now - sent, now <= until_s)


async def drained(storm: Storm, patience_s: float = 30.0) -> None:
    """Wait until no ask is outstanding; asks without an answer by then are lost."""
    until = time.monotonic() + patience_s
    while storm.outstanding and time.monotonic() < until:  # noqa: ASYNC110 (no signal for the last one)
        await asyncio.sleep(0.05)
