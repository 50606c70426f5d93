"""Tokens per second that one manager absorbs, journaled; measured from outside.

The manager is a process of production. All its threads are kept on one core; the senders have the others.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvloop

from bench.manager_process import ManagerProcess, manager_process
from bench.runtime.task import percentile
from bench.token_plane.firehose import WEIGHTS, Forget, Hold, Holds, Pour, Poured
from bench.token_plane.goals import OURS
from bench.token_plane.sizes import Sizes, SystemResult
from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.rollout import ReleaseBatch, SubmitBatch
from gleaner.configs.schema import Config, Limits, Rollout
from gleaner.supervisor import Done

READY_S = 90.0
TRIES = 5
GROUP = 8  # samples of a prompt
ANSWER = 1 << 20
"""Tokens of an answer: more than any request gets here, so that none ends while it is measured."""


def config(sizes: Sizes) -> Config:
    """Settings of production, except for limits that would keep an instance from having all of its requests
    at once."""
    widest = max(sizes.rows)
    return Config(
        rollout=Rollout(max_pending=max(widest, GROUP), max_new_tokens=ANSWER),
        limits=Limits(ring_frames=sizes.ring_frames),
    )


def measure(sizes: Sizes, scratch: Path) -> list[SystemResult]:
    """A figure for each number of rows."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(sizes, scratch))


async def _measure(sizes: Sizes, scratch: Path) -> list[SystemResult]:
    async with manager_process(scratch, config(sizes)) as manager:
        cores = sorted(os.sched_getaffinity(0))
        apart = len(cores) > 1
        if apart:
            manager.run_on({cores[0]})
        names = [f"spot-{number}/engine" for number in range(sizes.streams)]
        others = cores[1:] if apart else []
        with _instances(manager, scratch, names, others, sizes):
            await _serving(manager, len(names))
            return [await _rows(manager, names, rows, sizes) for rows in sizes.rows]


@contextmanager
def _instances(
    manager: ManagerProcess, scratch: Path, names: Sequence[str], cores: Sequence[int], sizes: Sizes
) -> Iterator[None]:
    """The sending processes, each with its share of the streams."""
    running = []
    try:
        for number in range(sizes.senders):
            orders = {
                "process": f"senders-{number}",
                "scratch": str(scratch / "senders"),
                "head": manager.head.endpoint,
                "names": names[number :: sizes.senders],
                "cores": cores,
                "slots": max(sizes.rows),
                "ring_frames": sizes.ring_frames,
            }
            argv = [sys.executable, "-m", "bench.token_plane.instances", json.dumps(orders)]
            running.append(subprocess.Popen(argv))
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


async def _rows(manager: ManagerProcess, names: Sequence[str], rows: int, sizes: Sizes) -> SystemResult:
    """One batch, as many requests as `rows` on every stream; full speed, then at a pace."""
    batch = f"rows-{rows}"
    await _submit(manager, batch, rows * len(names))
    for name in names:
        await _holds(manager, name, rows)
    rates, cpus, waits = [], [], []
    for _ in range(sizes.repeats):
        poured, cpu_s = await _pour(manager, names, sizes, 0.0)
        tokens = sum(one.tokens for one in poured)
        rates.append(tokens / sizes.seconds)
        cpus.append(cpu_s / tokens * 1e6)
        waits += [one.waited_s / sizes.seconds for one in poured]
    full = _times(poured)
    paced = _times((await _pour(manager, names, sizes, sizes.pace_s))[0])
    await manager.system.ask(MANAGER, ReleaseBatch(batch=batch), deadline_s=READY_S, expect=Done)
    for name in names:
        await manager.system.ask(name, Forget(), deadline_s=READY_S, expect=Done)
    best = max(range(len(rates)), key=lambda run: rates[run])
    return SystemResult(
        OURS,
        rows,
        tokens_per_s=rates[best],
        cpu_s_per_m=cpus[best],
        p50_ms=percentile(paced, 0.5) * 1e3,
        p99_ms=percentile(paced, 0.99) * 1e3,
        full_p50_ms=percentile(full, 0.5) * 1e3,
        full_p99_ms=percentile(full, 0.99) * 1e3,
        waited=statistics.fmean(waits),
        runs=rates,
    )


async def _submit(manager: ManagerProcess, batch: str, requests: int) -> None:
    samples = min(GROUP, requests)
    groups, left = divmod(requests, samples)
    sizes = [samples] * groups + ([left] if left else [])
    prompts = tuple(
        Prompt(split="train", index=number, tokens=tuple(range(64)), seeds=tuple(range(size)))
        for number, size in enumerate(sizes)
    )
    submitted = BatchSubmitted(batch=batch, version=WEIGHTS.version, prompts=prompts, max_new_tokens=ANSWER)
    order = SubmitBatch(batch=submitted, weights=WEIGHTS)
    await manager.system.ask(MANAGER, order, deadline_s=READY_S, expect=Done)


async def _serving(manager: ManagerProcess, count: int) -> None:
    until = time.monotonic() + READY_S
    while (await manager.figures()).serving_preemptible < count:
        if time.monotonic() > until:
            raise TimeoutError(f"{count} instances do not all serve after {READY_S:.0f} s")
        await asyncio.sleep(0.05)


async def _holds(manager: ManagerProcess, name: str, rows: int) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        held = await manager.system.ask(name, Hold(), deadline_s=READY_S, expect=Holds)
        if held.tickets == rows:
            return
        await asyncio.sleep(0.02)
    raise TimeoutError(f"{name} has {held.tickets} requests of {rows} after {READY_S:.0f} s")


async def _pour(
    manager: ManagerProcess, names: Sequence[str], sizes: Sizes, every_s: float
) -> tuple[list[Poured], float]:
    """The results of every instance, and the processor seconds of the manager meanwhile. On a machine so busy
    that not all of them have begun by then, once more, with more time before."""
    for tries in range(TRIES):
        poured, cpu_s = await _pour_once(manager, names, sizes, every_s, sizes.warm_s * 3**tries)
        if all(one.tokens for one in poured):
            return poured, cpu_s
    raise TimeoutError(f"not all of {len(names)} instances poured anything, {TRIES} times")


async def _pour_once(
    manager: ManagerProcess, names: Sequence[str], sizes: Sizes, every_s: float, warm_s: float
) -> tuple[list[Poured], float]:
    begin_s = time.monotonic() + warm_s
    end_s = begin_s + (sizes.paced_s if every_s else sizes.seconds)
    order = Pour(begin_s=begin_s, end_s=end_s, every_s=every_s)
    asks = [
        asyncio.create_task(
            manager.system.ask(name, order, deadline_s=end_s - begin_s + READY_S, expect=Poured)
        )
        for name in names
    ]
    await asyncio.sleep(max(0.0, begin_s - time.monotonic()))
    before = manager.cpu_s()
    await asyncio.sleep(max(0.0, end_s - time.monotonic()))
    used = manager.cpu_s() - before
    return list(await asyncio.gather(*asks)), used


def _times(poured: Sequence[Poured]) -> "array[float]":
    times = array("d")
    for one in poured:
        times.frombytes(one.times)
    return times
