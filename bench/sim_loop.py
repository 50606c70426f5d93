"""Microseconds per hand-off on the simulator's loop, beside asyncio and uvloop.

All are measured in the same run. A hand-off is one turn: a task puts into another one's queue, which wakes
it. The same coroutines run on all three loops; on the simulator's once in one process and once across ten.
Timers: a task that waits with a deadline which never expires, as in every ask.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial

import uvloop

from bench.table import Row, run
from gleaner.sim.loop import SimLoop

TASKS = 100
ROUNDS = 300  # each task hands over so often
DEADLINES = 20_000
REPEATS = 3  # the best is reported: other work on the host only slows it

Work = Callable[[], Coroutine[object, object, None]]


async def _ring() -> None:
    """A hundred tasks in a ring, each with a queue; one token for each goes round."""
    queues: list[asyncio.Queue[int]] = [asyncio.Queue() for _ in range(TASKS)]

    async def member(number: int) -> None:
        own, following = queues[number], queues[(number + 1) % TASKS]
        for _ in range(ROUNDS):
            following.put_nowait(await own.get() + 1)

    tasks = [asyncio.get_running_loop().create_task(member(number)) for number in range(TASKS)]
    for queue in queues:
        queue.put_nowait(0)
    for task in tasks:
        await task


async def _deadlines() -> None:
    for _ in range(DEADLINES):
        async with asyncio.timeout(30.0):
            await asyncio.sleep(0)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _simulated(work: Work, processes: int) -> None:
    loop = SimLoop()
    loops = [loop.spawn(f"p{number}", "h") for number in range(processes)]
    tasks: list[Awaitable[None]] = [process.create_task(work()) for process in loops]
    loop.run(until_s=1000.0)
    if loop.findings or not all(isinstance(task, asyncio.Task) and task.done() for task in tasks):
        raise AssertionError(f"the simulated ring did not end: {loop.findings}")
    loop.close()


def _really(runs: Callable[[Coroutine[object, object, None]], None], work: Work) -> None:
    runs(work())


def _best(ways: dict[str, Callable[[], object]], count: int) -> dict[str, float]:
    """Microseconds for each of `count` things, the best of a few turns taken alternately."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(REPEATS):
        for name, way in ways.items():
            best[name] = min(best[name], _timed(way) / count * 1e6)
    return best


def measure() -> list[Row]:
    """One row for each kind of work and peer."""
    rows: list[Row] = []
    for what, work, count in (
        ("queue hand-off, 100 tasks", _ring, TASKS * ROUNDS),
        ("a deadline that does not come", _deadlines, DEADLINES),
    ):
        ways: dict[str, Callable[[], object]] = {
            "one process": partial(_simulated, work, 1),
            "stock asyncio": partial(_really, asyncio.run, work),
            "uvloop": partial(_really, uvloop.run, work),
        }
        best = _best(ways, count)
        ours = best.pop("one process")
        rows += [Row(what, "us", ours, peer, value) for peer, value in best.items()]
    across = _best(
        {"ten": partial(_simulated, _ring, 10), "one": partial(_simulated, _ring, 1)}, TASKS * ROUNDS
    )
    rows.append(Row("hand-off in ten processes", "us", across["ten"] / 10, "in one process", across["one"]))
    return rows


if __name__ == "__main__":
    run("sim_loop", "Cost of a turn on virtual time", measure)
