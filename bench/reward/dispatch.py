"""Dispatch of reward items: what the proxy's queues cost an item, beside a plain heap.

    python -m bench.reward.dispatch                    100,000 items of 16 batches wait
    python -m bench.reward.dispatch --items 10000

One process, processor time. Items of 16 batches wait for 8 hosts with 8 workers each; then the results of
each host come together, as in its message, and bring the next items. The peer does the least that any queue
must: a heap of items in the order of EBF, and a future for each verdict. It has no jobs, hosts, credit,
attempts, cancelling or accounts.
"""

import argparse
import asyncio
import heapq
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence

import msgspec

from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.item_dispatch import ItemDispatch
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.verdicts import OK

STAGE = "score"
BATCHES, HOSTS, WORKERS = 16, 8, 8
JOBS = (1, 6, 64)
ITEM_S = 10.0
"""So long that a worker has one item at a time."""
VERDICT = Verdict(1.0, OK)


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time of an item, us: to be queued, to be settled, and to be picked and given to a host. jobs:
    that share the queues, 0 for the plain heap. scored: items that got their verdict."""

    jobs: int
    submit_us: float
    settle_us: float
    give_us: float
    scored: int


class Host:
    """A `HostLink` that keeps the ids of what it got."""

    def __init__(self) -> None:
        self.has: list[str] = []

    def give(self, stage: str, items: Sequence[RewardItem]) -> None:
        """See `HostLink`."""
        self.has += [item.id for item in items]

    def cancel(self, items: Sequence[str], attempts: Mapping[str, int] | None = None) -> None:
        """See `HostLink`."""

    def resize(self, stage: str, workers: int) -> None:
        """See `HostLink`."""


async def ours(items: int, ended: int, jobs: int, seed: int = 1) -> Cost:
    """Queue so many items, then end some of them."""
    rng = random.Random(seed)
    dispatch, hosts = ItemDispatch([STAGE], items, 1), {f"host-{number}": Host() for number in range(HOSTS)}
    dispatch.hosts.took(STAGE, ITEM_S)
    for name, host in hosts.items():
        dispatch.join(name, {STAGE: WORKERS}, host)
    dispatch.batches.complete_s.update({f"batch-{number}": float(number) for number in range(BATCHES)})
    drawn = [rng.randrange(BATCHES) for _ in range(items)]
    began_s = time.process_time()
    verdicts = [
        dispatch.submit(
            RewardItem(f"r{number}", f"batch-{batch}", float(number), STAGE, b"", f"job-{number % jobs}")
        )
        for number, batch in enumerate(drawn)
    ]
    queued_s = time.process_time() - began_s
    scored, settled_s, given_s = 0, 0.0, 0.0
    while scored < ended:
        for name, host in hosts.items():
            has, host.has = host.has, []
            began_s = time.process_time()
            with dispatch.together():
                for item in has:
                    dispatch.result(name, item, STAGE, VERDICT, ITEM_S, attempt=0)
                results_s = time.process_time()
            given_s += time.process_time() - results_s
            settled_s += results_s - began_s
            scored += len(has)
    assert sum(verdict.done() for verdict in verdicts) == scored
    return _cost(jobs, queued_s / items, settled_s / scored, given_s / scored, scored)


async def plain(items: int, ended: int, seed: int = 1) -> Cost:
    """The same with a heap alone."""
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    heap: list[tuple[float, float, str]] = []
    verdicts: dict[str, asyncio.Future[Verdict]] = {}
    drawn = [float(rng.randrange(BATCHES)) for _ in range(items)]
    began_s = time.process_time()
    for number, complete_s in enumerate(drawn):
        name = f"r{number}"
        verdicts[name] = loop.create_future()
        heapq.heappush(heap, (complete_s, float(number), name))
    queued_s = time.process_time()
    picked = [heapq.heappop(heap)[2] for _ in range(ended)]
    picked_s = time.process_time()
    for name in picked:
        verdicts.pop(name).set_result(VERDICT)
    settled_s = time.process_time() - picked_s
    return _cost(0, (queued_s - began_s) / items, settled_s / ended, (picked_s - queued_s) / ended, ended)


def _cost(jobs: int, submit_s: float, settle_s: float, give_s: float, scored: int) -> Cost:
    return Cost(
        jobs=jobs, submit_us=submit_s * 1e6, settle_us=settle_s * 1e6, give_us=give_s * 1e6, scored=scored
    )


async def costs(items: int, ended: int) -> list[Cost]:
    """The peer first, then ours with more and more jobs."""
    return [await plain(items, ended), *[await ours(items, ended, jobs) for jobs in JOBS]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; print a table, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.reward.dispatch", description=__doc__)
    parser.add_argument("--items", type=int, default=100_000, help="that wait (default: 100,000)")
    parser.add_argument("--ended", type=int, default=20_000, help="of these that end (default: 20,000)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    if not 0 < args.ended <= args.items // 2:
        parser.error(f"--ended {args.ended}: expected 1 to half of --items ({args.items // 2})")
    found = asyncio.run(costs(args.items, args.ended))
    if args.json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(found)) + "\n")
        return 0
    sys.stdout.write("queue        queued us  settled us  picked and given us\n")
    for cost in found:
        name = f"jobs: {cost.jobs}" if cost.jobs else "plain heap"
        sys.stdout.write(f"{name:12} {cost.submit_us:9.1f} {cost.settle_us:11.1f} {cost.give_us:20.1f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
