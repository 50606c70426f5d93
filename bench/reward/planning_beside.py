"""Answers of a reward proxy while it plans, beside those while it does not.

    python -m bench.reward.planning_beside              16,000 open items of 8 batches in two stages
    python -m bench.reward.planning_beside --seconds 20 --json

A proxy has that many open items, and the history of a batch before them. It is asked for the offer of a
reward host, `ASKS_PER_S` times a second: while nothing is planned, and while one plan follows the other,
each made by the planner in a process of its own; in turn, medians of the rounds. An ask counts from the
moment at which it was due: a loop that stands still delays all that come meanwhile. Needs two cores without
other work, of which the planner takes one.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median, quantiles

import msgspec
import numpy as np
import uvloop

from gleaner.actors.names import PLANNER, REWARD
from gleaner.actors.protocol.instances import NewWork
from gleaner.actors.protocol.reward import (
    CancelItems,
    OfferWorkers,
    ResizeWorkers,
    ScoreItems,
    StillOffered,
    WorkersTaken,
)
from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.local_services import WORKERS as LOCAL
from gleaner.actors.reward.planner import RewardPlanner
from gleaner.actors.reward.planning.forecast import BatchHistory
from gleaner.actors.reward.proxy import RewardProxy, text_worker
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward.worker_process import WorkerProcess
from gleaner.configs.load import from_tree
from gleaner.nodeagent import garbage
from gleaner.nodeagent.host import ProcessLocation, run_process
from gleaner.nodeagent.shutdown import Shutdown
from gleaner.nodeagent.system import open_system
from gleaner.supervisor import Actor, ActorSystem, Done, Registry, handles
from gleaner.supervisor.names.client import REGISTRY
from gleaner.transport.wire import Peer

ASKS_PER_S = 200
HOST = "far/reward"
WORKERS = 64
"""Of each stage, on that host."""
PLANNER_S = 60.0
"""In which the planner's process is there, and has made its first plan of a phase."""


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of an answer. plans: that were made meanwhile."""

    phase: str
    asks: int
    plans: int
    p50_ms: float
    p99_ms: float


class SilentHost(Actor):
    """Takes items, and never has a result: they stay open."""

    @handles(ScoreItems)
    async def take(self, message: ScoreItems) -> Done:
        return Done()

    @handles(ResizeWorkers)
    async def resize(self, message: ResizeWorkers) -> Done:
        return Done()

    @handles(CancelItems)
    async def cancel(self, message: CancelItems) -> None:
        return


class PlannedProxy(RewardProxy):
    """A proxy whose items, history and plans the measurement decides."""

    def fill(self, items: int, batches: int) -> None:
        """Have so many open items; the batch before had as many in each."""
        each = items // batches
        rng = np.random.default_rng(0)
        stages = self._pipelines.names
        arrivals_s, times_s = np.sort(rng.uniform(0, 300, each)), rng.lognormal(1, 1, (each, len(stages)))
        self._dispatch.batches.learn("step", BatchHistory(arrivals_s, times_s))
        for number in range(items):
            batch, now_s = f"step-{number % batches}", self.ctx.now()
            item = RewardItem(f"r{number}", batch, now_s, stages[0], b"", "", tuple(stages))
            self._dispatch.submit(item)

    @property
    def open(self) -> int:
        """Open items."""
        return len(self._dispatch.items)

    @property
    def plans(self) -> int:
        """Made so far."""
        return self._scaling.plans

    def plan_again(self) -> None:
        """Make a plan, as if a batch had begun."""
        self._scaling.changed()


def _settings() -> RewardSettings:
    task = {"name": "task", "data": "none.jsonl", "verifier": "code", "params": {"language": "c++"}}
    reward = {"stages": {"separate": True}, "planner": {"kind": "distrs"}, "max_queue": 2**16}
    return RewardSettings.of(from_tree({"task": [task], "reward": reward}, "bench"))


@asynccontextmanager
async def _service(items: int, batches: int) -> AsyncIterator[tuple[ActorSystem, PlannedProxy, str]]:
    """A proxy with these items, a host that has some of them, and the process of the planner."""
    settings = _settings()
    proxy = PlannedProxy(settings, "", WorkerProcess.start, text_worker(settings))
    with tempfile.TemporaryDirectory() as folder:
        async with open_system(ProcessLocation("bench", "head", Path(folder) / "head")) as system:
            system.spawn(REGISTRY, lambda: Registry(lambda: system.limits.lease_s))
            system.spawn(REWARD, lambda: proxy)
            host = system.spawn(HOST, SilentHost).address
            workers = dict.fromkeys(proxy._pipelines.names, WORKERS)
            offer = OfferWorkers(host=HOST, actor=host, workers=workers, running={})
            taken = await system.ask(REWARD, offer, deadline_s=30.0, expect=WorkersTaken)
            barred = NewWork(instance=LOCAL, allowed=False)  # the host of the proxy would score them
            await system.ask(REWARD, barred, deadline_s=30.0, expect=Done)
            proxy.fill(items, batches)
            command = [sys.executable, "-m", "bench.reward.planning_beside", "--planner"]
            planner = await asyncio.create_subprocess_exec(*command, system.wire.local.endpoint, folder)
            try:
                await system.resolve(PLANNER, PLANNER_S)
                yield system, proxy, taken.epoch
            finally:
                planner.kill()
                await planner.wait()


async def _asked(system: ActorSystem, epoch: str, seconds: float) -> list[float]:
    """Milliseconds of each answer."""
    taken_ms: list[float] = []

    async def ask(due_s: float) -> None:
        await system.ask(REWARD, StillOffered(host=HOST, epoch=epoch), deadline_s=30.0, expect=Done)
        taken_ms.append(1e3 * (time.perf_counter() - due_s))

    async with asyncio.TaskGroup() as asks:
        begun_s = time.perf_counter()
        for number in range(int(seconds * ASKS_PER_S)):
            due_s = begun_s + number / ASKS_PER_S
            await asyncio.sleep(max(due_s - time.perf_counter(), 0))
            asks.create_task(ask(due_s))
    return taken_ms


async def _plans(proxy: PlannedProxy, made: asyncio.Event) -> None:
    """One plan after the other. made: set by the first one."""
    before = proxy.plans
    while True:
        proxy.plan_again()
        await asyncio.sleep(0.05)
        if proxy.plans > before:
            made.set()


async def measure(items: int, batches: int, seconds: float, rounds: int) -> list[Answers]:
    """Answers of both phases, each `rounds` times."""
    found: list[Answers] = []
    async with _service(items, batches) as (system, proxy, epoch):
        await _asked(system, epoch, 1.0)
        if proxy.open != items:
            raise RuntimeError(f"{proxy.open} items are open instead of {items}")
        for number in range(2 * rounds):
            before, phase = proxy.plans, ("idle", "planning")[number % 2]
            planning, made = None, asyncio.Event()
            if phase == "planning":
                planning = asyncio.ensure_future(_plans(proxy, made))
                async with asyncio.timeout(PLANNER_S):
                    await made.wait()
            taken_ms = await _asked(system, epoch, seconds)
            if planning is not None:
                planning.cancel()
            answers = Answers(
                phase=phase,
                asks=len(taken_ms),
                plans=proxy.plans - before,
                p50_ms=median(taken_ms),
                p99_ms=quantiles(taken_ms, n=100)[98],
            )
            found.append(answers)
            await asyncio.sleep(1.0)  # the last plan of a phase is no part of the next one
    return found


async def _planner(stop: Shutdown, endpoint: str, folder: Path) -> int:
    """The process of the planner."""
    planner = _settings().reward.planner
    async with open_system(ProcessLocation("bench", "plan", folder / "plan", head=Peer(endpoint))) as system:
        system.spawn(PLANNER, lambda: RewardPlanner(planner.kind, planner.max_delay_s))
        await stop.wait()
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; print a table, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.reward.planning_beside", description=__doc__)
    parser.add_argument("--items", type=int, default=16_000, help="that are open")
    parser.add_argument("--batches", type=int, default=8, help="of these")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--planner", nargs=2, metavar=("ENDPOINT", "DIR"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.planner:
        endpoint, folder = args.planner
        return run_process(lambda stop: _planner(stop, endpoint, Path(folder)), "bench")
    garbage.look_rarely()
    found = uvloop.run(measure(args.items, args.batches, args.seconds, args.rounds))
    if args.json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(found)) + "\n")
        return 0
    sys.stdout.write("phase      asks   plans   p50, ms   p99, ms\n")
    for one in found:
        sys.stdout.write(f"{one.phase:8} {one.asks:6} {one.plans:7} {one.p50_ms:9.2f} {one.p99_ms:9.2f}\n")
    pairs = list(zip(found[::2], found[1::2], strict=True))
    ratio = median(planning.p99_ms / idle.p99_ms for idle, planning in pairs)
    sys.stdout.write(f"p99 of an answer: {ratio:.2f} of that of the idle proxy\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
