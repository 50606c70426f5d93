"""Gleaner, measured through `ActorSystem`, `Supervisor` and an actor's `ctx`.

These, with `ctx.ask`, `ctx.tell` and `ctx.watch`, are its public interface. Every process is opened as the
node agent opens its own (ZeroMQ over TCP loopback, SQLite journal, registry with leases); uvloop is the
product's loop. All messages are sent from inside an actor.
"""

import asyncio
import gc
import os
import signal
import statistics
import time
from array import array
from functools import partial
from importlib.metadata import version

from bench.runtime.gleaner_cast import (
    MINUTE_S,
    Asker,
    BenchAsked,
    BenchCrash,
    BenchMeasureAsks,
    BenchMeasureTells,
    BenchPing,
    BenchPong,
    BenchTold,
    Echo,
    Watcher,
)
from bench.runtime.gleaner_cluster import START_S, argv, head, other_process, run, start
from bench.runtime.gleaner_process import MANY_RESTARTS
from bench.runtime.gleaner_storm import BenchMeet, BenchStorm, BenchStormOver
from bench.runtime.task import (
    OUTSTANDING,
    AskResult,
    Task,
    TellResult,
    idle_percent,
    main,
    payload,
    ready_s,
    resident_bytes,
)
from gleaner.supervisor import (
    ActorSystem,
    Address,
    Done,
    Limits,
    ProcessSpec,
    Supervisor,
    child,
    one_for_one,
)


def pair(task: Task) -> None:
    """Rows `ask_1`, `ask_64` and `tell`: an actor of this process and one of another."""

    async def measure() -> None:
        async with head(task) as system, other_process(system, task, "other", "pair"):
            asker = system.spawn("asker", Asker).address
            echo = await system.resolve("echo", START_S)
            counter = await system.resolve("counter", START_S)
            if task.wants("ask_1"):
                found = await _asks(system, asker, echo, task, 1)
                task.report("ask_1", **found.latency())
            if task.wants("ask_64"):
                found = await _asks(system, asker, echo, task, OUTSTANDING)
                task.report("ask_64", **found.rate())
            if task.wants("tell"):
                for seconds in (task.sizes.warm_up_s, task.sizes.seconds):
                    reply = await system.ask(
                        asker,
                        BenchMeasureTells(to=counter, seconds=seconds),
                        deadline_s=MINUTE_S,
                        expect=BenchTold,
                    )
                found_told = TellResult(reply.sent, reply.came, reply.disordered, reply.seconds, reply.cpu_s)
                task.report("tell", **found_told.figures())

    run(measure)


def local(task: Task) -> None:
    """ask_local: two actors of one process."""

    async def measure() -> None:
        async with head(task) as system:
            asker = system.spawn("asker", Asker).address
            echo = system.spawn("echo", Echo).address
            found = await _asks(system, asker, echo, task, 1)
            task.report("ask_local", **found.latency())

    run(measure)


async def _asks(
    system: ActorSystem, asker: Address, echo: Address, task: Task, outstanding: int
) -> AskResult:
    sizes = task.sizes
    order = BenchMeasureAsks(
        to=echo, seconds=sizes.seconds, warm_up_s=sizes.warm_up_s, outstanding=outstanding
    )
    found = await system.ask(asker, order, deadline_s=MINUTE_S, expect=BenchAsked)
    latencies = array("d")
    latencies.frombytes(found.latencies)
    return AskResult(latencies, found.seconds, found.cpu_s)


def storm(task: Task) -> None:
    """storm: all actors of all processes ask all at random, one at a time each."""
    sizes = task.sizes
    each = sizes.storm_actors // sizes.storm_processes
    processes = [f"p{number}" for number in range(sizes.storm_processes)]

    async def measure() -> None:
        async with head(task) as system:
            running = [start(argv(system, task, process, "storm", each)) for process in processes]
            try:
                names = [f"{process}-{number}" for process in processes for number in range(each)]
                for name in names:
                    await system.resolve(name, START_S)
                scribes = [f"scribe-{process}" for process in processes]
                meet = BenchMeet(names=names)
                await asyncio.gather(
                    *(system.ask(scribe, meet, deadline_s=MINUTE_S, expect=Done) for scribe in scribes)
                )
                begin = time.monotonic() + ready_s(sizes)
                order = BenchStorm(names=names, begin_s=begin, until_s=begin + sizes.storm_s)
                asks = [system.ask(n, order, deadline_s=MINUTE_S, expect=Done) for n in names]
                await asyncio.gather(*asks)
                if time.monotonic() > begin:
                    raise TimeoutError("the actors were not ready when the storm began")
                await asyncio.sleep(begin + sizes.storm_s - time.monotonic())
                for scribe in scribes:
                    await system.ask(scribe, BenchStormOver(), deadline_s=MINUTE_S, expect=Done)
            finally:
                for other in running:
                    other.kill()
                    other.wait()

    run(measure)
    task.report_storm()


def crowd(task: Task) -> None:
    """spawn, idle: many actors of one process."""

    async def spawn() -> None:
        async with head(task) as system:
            await _spawn(system, "first", 100)
            gc.collect()
            before, began = resident_bytes(), time.perf_counter()
            await _spawn(system, "echo", task.sizes.spawned)
            seconds = time.perf_counter() - began
            gc.collect()
            held = resident_bytes() - before
            task.report("spawn", seconds=seconds, kib_each=held / task.sizes.spawned / 1024)

    async def idle() -> None:
        async with (
            head(task) as system,
            other_process(system, task, "other", "crowd", task.sizes.idle_actors),
        ):
            await system.resolve(f"echo-{task.sizes.idle_actors - 1}", START_S)
            await asyncio.sleep(1.0)
            loop = asyncio.get_running_loop()
            percent = await loop.run_in_executor(None, idle_percent, task.sizes.idle_s)
            task.report("idle", percent=percent)

    if task.wants("spawn"):
        run(spawn)
    if task.wants("idle"):
        run(idle)


async def _spawn(system: ActorSystem, name: str, count: int) -> None:
    """Spawn actors, and wait until each is started and the last one has answered."""
    cells = [system.spawn(f"{name}-{number}", Echo) for number in range(count)]
    for cell in cells:
        await cell.started
    await system.ask(cells[-1].address, BenchPing(content=payload(0)), deadline_s=START_S, expect=BenchPong)


def death(task: Task) -> None:
    """killed, frozen: an actor of this process watches one of another process that is killed or stopped."""

    async def measure(row: str, number: int) -> float:
        async with head(task) as system, other_process(system, task, f"other-{number}", "pair") as other:
            echo = await system.resolve("echo", START_S)
            gone: asyncio.Future[tuple[float, str]] = asyncio.get_running_loop().create_future()
            system.spawn("watcher", lambda: Watcher(echo, gone))
            await system.ask(echo, BenchPing(content=payload(0)), deadline_s=START_S, expect=BenchPong)
            await asyncio.sleep(1.0)  # the link is up and heartbeats have passed
            at = time.monotonic()
            os.kill(other.pid, signal.SIGKILL if row == "killed" else signal.SIGSTOP)
            try:
                seen, _cause = await asyncio.wait_for(gone, task.sizes.never_s)
            except TimeoutError:
                return float("nan")
            return seen - at

    if task.wants("killed"):
        seconds = [run(partial(measure, "killed", number)) for number in range(task.sizes.restarts)]
        task.report("killed", ms=statistics.median(seconds) * 1e3)
    if task.wants("frozen"):
        seconds_frozen = run(partial(measure, "frozen", -1))
        task.report("frozen", seconds=seconds_frozen, bound_s=Limits().silent_s)


def restart(task: Task) -> None:
    """restart, restart_process: a supervised actor, or process, fails; until it answers again."""

    async def actor() -> None:
        async with head(task) as system, other_process(system, task, "other", "frail"):
            task.report("restart", ms=await _fail(system, task, BenchCrash()))

    async def process() -> None:
        async with head(task) as system:
            spec = ProcessSpec(argv(system, task, "other", "frail"), task.scratch / "other.txt")
            tree = Supervisor(
                system,
                one_for_one(child("other", spec), intensity=MANY_RESTARTS),
                on_failure=lambda problem: None,
            )
            await tree.start()
            try:
                task.report("restart_process", ms=await _fail(system, task, BenchCrash(process=True)))
            finally:
                await tree.stop()

    if task.wants("restart"):
        run(actor)
    if task.wants("restart_process"):
        run(process)


async def _fail(system: ActorSystem, task: Task, crash: BenchCrash) -> float:
    """The median of some failures, in milliseconds until a new life has answered by name."""
    took = []
    ping = BenchPing(content=payload(0))
    life = (await system.ask("frail", ping, deadline_s=START_S, expect=BenchPong)).incarnation
    for _ in range(task.sizes.restarts):
        began = time.perf_counter()
        await system.tell("frail", crash)
        reply = await system.ask("frail", ping, deadline_s=START_S, expect=BenchPong)
        took.append(time.perf_counter() - began)
        if reply.incarnation <= life:
            raise AssertionError("the old life answered")
        life = reply.incarnation
        await asyncio.sleep(0.2)
    return statistics.median(took) * 1e3


if __name__ == "__main__":
    main(
        lambda: f"gleaner {version('gleaner')}",
        {"pair": pair, "local": local, "storm": storm, "crowd": crowd, "death": death, "restart": restart},
    )
