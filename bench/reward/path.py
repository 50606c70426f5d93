"""Path of a reward item: proxy, host, worker and back, beside the worker alone.

    python -m bench.reward.path              programs, and sums that are read without a program
    python -m bench.reward.path --items 400

One core for all processes. The peer is the same warm worker process, asked for one item after the other (for
32 together, where the pool does that) by nothing else: no queue, message or retry. Ours is the whole path: an
ask of the manager's kind to the proxy, its queue, the message to a reward host, its pool, the worker's pipe,
and the messages back (`bench.reward.tier`).
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence

import msgspec

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
from gleaner.supervisor import Done

HOSTS = (WORKERS, HOST)
OPEN = 60
"""Items that are open at a time; a mailbox of these systems takes 64 messages."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """Items a second of one core. ratio: of the path to the worker."""

    work: str
    items: int
    worker: float
    path: float
    ratio: float


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


async def worker_rate(verifier: str, items: int) -> float:
    """Items a second of a worker that is asked by nothing else."""
    worker = await WorkerProcess.start(worker_of(_config(verifier)))
    try:
        together = TOGETHER if verifier != "code" else 1
        frames = []
        for first in range(0, items, together):
            part = [_item(verifier, number) for number in range(first, min(first + together, items))]
            frames.append(pipe.pack(pipe.ScoreItems(list(part)) if together > 1 else part[0]))
        await worker.ask(frames[0], 60.0)
        began_s = time.perf_counter()
        for frame in frames:
            await worker.ask(frame, 60.0)
        return items / (time.perf_counter() - began_s)
    finally:
        await worker.kill()


async def path_rate(verifier: str, items: int) -> float:
    """Items a second of the whole path."""
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
                verdict = await near.ask(REWARD, ask, Verdict, deadline_s=120.0)
            if verdict.score != 1.0:
                raise SystemExit(f"item {number} has {verdict.status}: {verdict.detail}")

        await score(-1)
        began_s = time.perf_counter()
        await asyncio.gather(*(score(number) for number in range(items)))
        return items / (time.perf_counter() - began_s)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; print a table, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.reward.path", description=__doc__)
    parser.add_argument("--items", type=int, default=200, help="programs; ten times as many sums")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    found: list[Rate] = []
    for verifier, items in (("code", args.items), ("math", 10 * args.items)):
        worker = asyncio.run(worker_rate(verifier, items))
        path = asyncio.run(path_rate(verifier, items))
        found.append(Rate(work=verifier, items=items, worker=worker, path=path, ratio=path / worker))
    if args.json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(found)) + "\n")
        return 0
    sys.stdout.write("work   items   worker alone, 1/s   whole path, 1/s   ratio\n")
    for rate in found:
        sys.stdout.write(
            f"{rate.work:6} {rate.items:5} {rate.worker:19.1f} {rate.path:17.1f} {rate.ratio:7.2f}\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
