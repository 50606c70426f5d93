"""Path of a reward item: proxy, host, worker and back, beside the worker alone.

    python -m bench.reward.path              programs, and sums that are read without a program
    python -m bench.reward.path --items 400

One core for all processes. The peer is the same warm worker process, asked for one item after the other (for
32 together, where the pool does that) by nothing else: no queue, message or retry. Ours is the whole path: an
ask of the manager's kind to the proxy, its queue, the message to a reward host, its pool, the worker's pipe,
and the messages back (`bench.reward.tier`).

Both run on uvloop and look rarely for garbage, as the processes of a host do. The ratio is of processor time,
of all processes together: on one core that is the ratio of the rates, whatever else the machine does
meanwhile. Rounds alternate; the figures are medians.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence

import msgspec
import psutil
import uvloop

from bench.reward.tier import HOST, tier, worker_of
from gleaner.actors.names import REWARD
from gleaner.actors.protocol.instances import NewWork
from gleaner.actors.protocol.reward import RewardState, RewardStatus, ScoreText, Verdict
from gleaner.actors.reward import pipe
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.local_services import WORKERS
from gleaner.actors.reward.scoring_queue import TOGETHER
from gleaner.actors.reward.worker_process import WorkerProcess
from gleaner.configs.load import from_tree
from gleaner.configs.schema import Config
from gleaner.nodeagent import garbage
from gleaner.supervisor import Done

HOSTS = (WORKERS, HOST)
OPEN = 60
"""Items that are open at a time; a mailbox of these systems takes 64 messages."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time of an item, in microseconds: of the worker alone, and of the whole path. ratio: of the
    rates of one core, path to worker. p99_ms: of an item on the path, on the clock, `OPEN` at a time."""

    work: str
    items: int
    worker_us: float
    path_us: float
    ratio: float
    p99_ms: float


def _config(verifier: str) -> Config:
    task = {"name": "task", "data": "none.jsonl", "verifier": verifier}
    return from_tree({"task": [task], "reward": {"deadline_s": 10.0}}, "bench")


def _item(verifier: str, number: int) -> pipe.TextItem:
    if verifier == "code":
        entry = Entry(question="?", tests=({"input": f"{number}\n", "output": f"{2 * number}"},))
        response = "```python\nprint(2 * int(input()))\n```"
    else:
        entry, response = Entry(question="?", answer=str(number)), f"It is \\boxed{{{number}}}."
    return pipe.TextItem("task", msgspec.json.encode(entry), response)


def spent_s() -> float:
    """Processor time of this process and all below it, with those that ended there."""
    total_s = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


async def worker_us(verifier: str, items: int) -> float:
    """Processor time of an item of a worker that is asked by nothing else."""
    worker = await WorkerProcess.start(worker_of(_config(verifier)))
    try:
        together = TOGETHER if verifier != "code" else 1
        frames = []
        for first in range(0, items, together):
            part = [_item(verifier, number) for number in range(first, min(first + together, items))]
            frames.append(pipe.pack(pipe.ScoreItems(list(part)) if together > 1 else part[0]))
        await worker.ask(frames[0], 60.0)
        before_s = spent_s()
        for frame in frames:
            await worker.ask(frame, 60.0)
        return 1e6 * (spent_s() - before_s) / items
    finally:
        await worker.kill()


async def path_us(verifier: str, items: int) -> tuple[float, float]:
    """Processor time of an item on the whole path, and the 99th percentile of its milliseconds."""
    took_s: list[float] = []
    async with tier(_config(verifier)) as near:
        while len((await near.ask(REWARD, RewardStatus(), RewardState)).hosts) < len(HOSTS):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await near.ask(REWARD, NewWork(instance=WORKERS, allowed=False), Done)  # the other host has all
        room = asyncio.Semaphore(OPEN)

        async def score(number: int) -> None:
            item = _item(verifier, number)
            ask = ScoreText(
                request=f"r{number}", task="task", entry=item.entry, response=item.response, batch="b"
            )
            async with room:
                began_s = time.perf_counter()
                verdict = await near.ask(REWARD, ask, Verdict, deadline_s=120.0)
            took_s.append(time.perf_counter() - began_s)
            if verdict.score != 1.0:
                raise SystemExit(f"item {number} has {verdict.status}: {verdict.detail}")

        await score(-1)
        before_s = spent_s()
        await asyncio.gather(*(score(number) for number in range(items)))
        return 1e6 * (spent_s() - before_s) / items, 1e3 * sorted(took_s)[int(0.99 * items)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; print a table, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.reward.path", description=__doc__)
    parser.add_argument("--items", type=int, default=200, help="programs; ten times as many sums")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    garbage.look_rarely()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    found: list[Rate] = []
    for verifier, items in (("code", args.items), ("math", 10 * args.items)):
        rounds = [
            (uvloop.run(worker_us(verifier, items)), *uvloop.run(path_us(verifier, items)))
            for _ in range(args.rounds)
        ]
        worker, path, p99_ms = (statistics.median(column) for column in zip(*rounds, strict=True))
        found.append(
            Rate(
                work=verifier,
                items=items,
                worker_us=worker,
                path_us=path,
                ratio=worker / path,
                p99_ms=p99_ms,
            )
        )
    if args.json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(found)) + "\n")
        return 0
    sys.stdout.write("work   items   worker alone, us   whole path, us   ratio   p99, ms\n")
    for rate in found:
        sys.stdout.write(
            f"{rate.work:6} {rate.items:5} {rate.worker_us:18.0f} {rate.path_us:16.0f} {rate.ratio:7.2f} "
            f"{rate.p99_ms:9.1f}\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
