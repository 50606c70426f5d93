"""Monarch, measured on processes of this host.

API: `await endpoint.call_one(...)`, many outstanding as coroutines; a one-way message is
`endpoint.broadcast(...)`. The program's own process asks, a process of `this_host().spawn_procs()` answers.
Monarch has no restart.
"""

import asyncio
import os
import signal
import statistics
import time
from array import array
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from pathlib import Path
from typing import Any

import monarch.actor
from monarch.actor import Actor, endpoint, this_host

from bench.runtime.ask_load import ask_around, asks, drained
from bench.runtime.task import (
    OUTSTANDING,
    AskResult,
    Effort,
    Sink,
    Storm,
    Task,
    TellResult,
    idle_percent,
    main,
    payload,
    ready_s,
    resident_bytes,
)

NO_RESTART = "there is no restart: the owner learns of the failure and makes a new actor itself"

_here = Storm()
_everybody: list[Any] = []
"""Of one process of the storm; its actors share them."""


class Echo(Actor):  # type: ignore[misc]
    """Answers with the received bytes."""

    @endpoint  # type: ignore[untyped-decorator]
    async def ping(self, content: bytes) -> bytes:
        """The same bytes."""
        return content

    @endpoint  # type: ignore[untyped-decorator]
    async def life(self) -> int:
        """Process id."""
        return os.getpid()

    @endpoint  # type: ignore[untyped-decorator]
    async def held(self) -> int:
        """Memory of its process."""
        return resident_bytes()

    @endpoint  # type: ignore[untyped-decorator]
    async def hang(self) -> None:
        """A call that is in flight when the process dies."""
        await asyncio.sleep(3600)

    @endpoint  # type: ignore[untyped-decorator]
    async def ask(self, other: Any, warm_up_s: float, seconds: float) -> bytes:
        """Latencies of asks to `other`."""
        await asks(other.ping.call_one, warm_up_s, 1)
        return (await asks(other.ping.call_one, seconds, 1)).latencies.tobytes()


class Counter(Actor):  # type: ignore[misc]
    """Counts one-way messages."""

    def __init__(self) -> None:
        self.sink = Sink()

    @endpoint  # type: ignore[untyped-decorator]
    async def told(self, content: bytes) -> None:
        """One more."""
        self.sink.take(content)

    @endpoint  # type: ignore[untyped-decorator]
    async def counted(self) -> tuple[int, int]:
        """Count of one-way messages, and how many of them were out of order."""
        found = self.sink.count, self.sink.disordered
        self.sink = Sink()
        return found


class StormActor(Actor):  # type: ignore[misc]
    """Asks the others at random, one at a time, and answers them meanwhile."""

    def __init__(self, number: int) -> None:
        self._number = number

    @endpoint  # type: ignore[untyped-decorator]
    async def ping(self, content: bytes) -> bytes:
        """The same bytes."""
        return content

    @endpoint  # type: ignore[untyped-decorator]
    async def begin(self, begin_s: float, until_s: float) -> None:
        """Ask beside the calls."""
        self._asking = asyncio.create_task(
            ask_around(_here, lambda rng: rng.choice(_everybody).ping.call_one, id(self), begin_s, until_s)
        )


class Scribe(Actor):  # type: ignore[misc]
    """One for each process: stores the addresses, saves the counts."""

    @endpoint  # type: ignore[untyped-decorator]
    async def meet(self, meshes: list[Any], processes: int) -> None:
        """All storm actors."""
        _everybody[:] = [mesh.slice(procs=process) for mesh in meshes for process in range(processes)]

    @endpoint  # type: ignore[untyped-decorator]
    async def over(self, scratch: str) -> None:
        """Wait for the last answers, then save."""
        await drained(_here)
        _here.save(Path(scratch), str(os.getpid()))


async def _tells(counter: Any, seconds: float) -> TellResult:
    effort = Effort()
    clock = time.perf_counter
    began = clock()
    until = began + seconds
    sent = 0
    while clock() < until:
        for _ in range(64):
            counter.told.broadcast(payload(sent))
            sent += 1
    count, disordered = await counter.counted.call_one()
    return TellResult(sent, count, disordered, clock() - began, effort.spent_s())


async def _pair(task: Task) -> None:
    sizes = task.sizes
    procs = this_host().spawn_procs(per_host={"procs": 1})
    echo = procs.spawn("echo", Echo)
    if task.wants("ask_1"):
        await asks(echo.ping.call_one, sizes.warm_up_s, 1)
        task.report("ask_1", **(await asks(echo.ping.call_one, sizes.seconds, 1)).latency())
    if task.wants("ask_64"):
        await asks(echo.ping.call_one, sizes.warm_up_s, OUTSTANDING)
        asked = await asks(echo.ping.call_one, sizes.seconds, OUTSTANDING)
        task.report("ask_64", **asked.rate())
    if task.wants("tell"):
        counter = procs.spawn("counter", Counter)
        await _tells(counter, sizes.warm_up_s)
        task.report("tell", **(await _tells(counter, sizes.seconds)).figures())


async def _local(task: Task) -> None:
    procs = this_host().spawn_procs(per_host={"procs": 1})
    asker, echo = procs.spawn("asker", Echo), procs.spawn("echo", Echo)
    latencies = array("d")
    latencies.frombytes(await asker.ask.call_one(echo, task.sizes.warm_up_s, task.sizes.seconds))
    task.report("ask_local", **AskResult(latencies, 0, 0).latency())


async def _storm(task: Task) -> None:
    sizes = task.sizes
    each = sizes.storm_actors // sizes.storm_processes
    procs = this_host().spawn_procs(per_host={"procs": sizes.storm_processes})
    meshes = [procs.spawn(f"storm-{number}", StormActor, number) for number in range(each)]
    for mesh in meshes:
        await mesh.initialized
    scribes = procs.spawn("scribe", Scribe)
    await scribes.meet.call(meshes, sizes.storm_processes)
    begin = time.monotonic() + ready_s(sizes)
    await asyncio.gather(*(mesh.begin.call(begin, begin + sizes.storm_s) for mesh in meshes))
    if time.monotonic() > begin:
        raise TimeoutError("the actors were not ready when the storm began")
    await asyncio.sleep(begin + sizes.storm_s - time.monotonic())
    await scribes.over.call(str(task.scratch))
    task.report_storm()


async def _spawn(task: Task) -> None:
    procs = this_host().spawn_procs(per_host={"procs": 1})
    first = procs.spawn("first", Echo)
    before = await first.held.call_one()
    began = time.perf_counter()
    echoes = [procs.spawn(f"echo-{number}", Echo) for number in range(task.sizes.spawned)]
    for echo in echoes:
        await echo.initialized
    await echoes[-1].ping.call_one(payload(0))
    seconds = time.perf_counter() - began
    held = await first.held.call_one() - before
    task.report("spawn", seconds=seconds, kib_each=held / task.sizes.spawned / 1024)


async def _idle(task: Task) -> None:
    procs = this_host().spawn_procs(per_host={"procs": 1})
    echoes = [procs.spawn(f"echo-{number}", Echo) for number in range(task.sizes.idle_actors)]
    for echo in echoes:
        await echo.initialized
    await asyncio.sleep(2.0)
    percent = await asyncio.get_running_loop().run_in_executor(None, idle_percent, task.sizes.idle_s)
    task.report("idle", percent=percent)


async def _die(task: Task, row: str) -> float:
    monarch.actor.unhandled_fault_hook = lambda failure: None  # the default ends this program
    procs = this_host().spawn_procs(per_host={"procs": 1})
    echo = procs.spawn("echo", Echo)
    pid = await echo.life.call_one()
    waiting = asyncio.ensure_future(_await(echo.hang.call_one()))
    await asyncio.sleep(0.5)
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL if row == "killed" else signal.SIGSTOP)
    done, _pending = await asyncio.wait([waiting], timeout=task.sizes.never_s)
    took = time.monotonic() - began
    if not done:
        return float("nan")
    if waiting.exception() is None:
        raise AssertionError("the dead process answered")
    return took


async def _await(future: Any) -> Any:
    return await future


def _run(measure: Callable[[], Coroutine[object, object, Any]]) -> Any:
    return asyncio.run(measure())


def crowd(task: Task) -> None:
    """spawn, idle."""
    if task.wants("spawn"):
        _run(lambda: _spawn(task))
    if task.wants("idle"):
        _run(lambda: _idle(task))


def death(task: Task) -> None:
    """killed, frozen: until a call in flight to the dead process fails."""
    if task.wants("killed"):
        took = [_run(lambda: _die(task, "killed")) for _ in range(task.sizes.restarts)]
        task.report("killed", ms=statistics.median(took) * 1e3)
    if task.wants("frozen"):
        task.report("frozen", seconds=_run(lambda: _die(task, "frozen")))


def restart(task: Task) -> None:
    """restart, restart_process."""
    for row in task.rows:
        task.cannot(row, NO_RESTART)


GROUPS: dict[str, Callable[[Task], None]] = {
    "pair": lambda task: _run(lambda: _pair(task)),
    "local": lambda task: _run(lambda: _local(task)),
    "storm": lambda task: _run(lambda: _storm(task)),
    "crowd": crowd,
    "death": death,
    "restart": restart,
}

if __name__ == "__main__":
    from bench.runtime import on_monarch  # the actors under a name that the processes can import

    main(lambda: f"torchmonarch {version('torchmonarch')}", on_monarch.GROUPS)
