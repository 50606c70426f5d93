"""xoscar, measured on one pool on this host.

API: `await ref.method(...)`, many outstanding as coroutines; a one-way message is `await
ref.method.tell(...)`. Actors are `StatelessActor`, which takes no lock around a call. The pool's main process
asks, a sub-process answers; uvloop in both, which is xoscar's own default.
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

import uvloop
import xoscar

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

ADDRESS = "127.0.0.1"
_here = Storm()
_everybody: list[Any] = []
"""Of one process of the storm; its actors share them."""


class Echo(xoscar.StatelessActor):  # type: ignore[misc]
    """Answers with the received bytes."""

    def ping(self, content: bytes) -> bytes:
        """The same bytes."""
        return content

    def life(self) -> int:
        """Process id."""
        return os.getpid()

    async def hang(self) -> None:
        """A call that is in flight when the process dies."""
        await asyncio.sleep(3600)

    def crash(self) -> None:
        """Its pool restarts sub-processes; an exception ends nothing."""
        os._exit(1)

    async def ask(self, other: Any, warm_up_s: float, seconds: float) -> bytes:
        """Latencies of asks to `other`."""
        await asks(other.ping, warm_up_s, 1)
        return (await asks(other.ping, seconds, 1)).latencies.tobytes()


class Counter(xoscar.StatelessActor):  # type: ignore[misc]
    """Counts one-way messages."""

    def __init__(self) -> None:
        self.sink = Sink()

    def told(self, content: bytes) -> None:
        """One more."""
        self.sink.take(content)

    def counted(self) -> tuple[int, int]:
        """Count of one-way messages, and how many of them were out of order."""
        found = self.sink.count, self.sink.disordered
        self.sink = Sink()
        return found


class StormActor(xoscar.StatelessActor):  # type: ignore[misc]
    """Asks the others at random, one at a time, and answers them meanwhile."""

    def __init__(self, number: int) -> None:
        self._number = number

    def ping(self, content: bytes) -> bytes:
        """The same bytes."""
        return content

    async def begin(self, begin_s: float, until_s: float) -> None:
        """Ask beside the calls."""
        self._asking = asyncio.create_task(
            ask_around(_here, lambda rng: rng.choice(_everybody).ping, self._number, begin_s, until_s)
        )


class Scribe(xoscar.StatelessActor):  # type: ignore[misc]
    """One for each process: stores the addresses, saves the counts."""

    def meet(self, everybody: list[Any]) -> None:
        """All storm actors."""
        _everybody[:] = everybody

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
            await counter.told.tell(payload(sent))
            sent += 1
    count, disordered = await counter.counted()
    while count < sent and clock() < until + 30:
        await asyncio.sleep(0.001)
        more, out = await counter.counted()
        count, disordered = count + more, disordered + out
    return TellResult(sent, count, disordered, clock() - began, effort.spent_s())


async def _pool(processes: int, recover: "str | bool" = False) -> Any:
    return await xoscar.create_actor_pool(ADDRESS, n_process=processes, auto_recover=recover)


async def _on(pool: Any, kind: type, *arguments: object, process: int = 0, uid: str = "") -> Any:
    """An actor in a sub-process of the pool."""
    return await xoscar.create_actor(
        kind,
        *arguments,
        address=pool.external_address,
        uid=uid or None,
        allocate_strategy=xoscar.allocate_strategy.ProcessIndex(process),
    )


async def _pair(task: Task) -> None:
    sizes = task.sizes
    pool = await _pool(1)
    echo = await _on(pool, Echo, process=1)
    if task.wants("ask_1"):
        await asks(echo.ping, sizes.warm_up_s, 1)
        task.report("ask_1", **(await asks(echo.ping, sizes.seconds, 1)).latency())
    if task.wants("ask_64"):
        await asks(echo.ping, sizes.warm_up_s, OUTSTANDING)
        asked = await asks(echo.ping, sizes.seconds, OUTSTANDING)
        task.report("ask_64", **asked.rate())
    if task.wants("tell"):
        counter = await _on(pool, Counter, process=1)
        await _tells(counter, sizes.warm_up_s)
        task.report("tell", **(await _tells(counter, sizes.seconds)).figures())


async def _local(task: Task) -> None:
    pool = await _pool(1)
    asker = await _on(pool, Echo, process=1)
    echo = await _on(pool, Echo, process=1)
    latencies = array("d")
    latencies.frombytes(await asker.ask(echo, task.sizes.warm_up_s, task.sizes.seconds))
    task.report("ask_local", **AskResult(latencies, 0, 0).latency())


async def _storm(task: Task) -> None:
    sizes = task.sizes
    each = sizes.storm_actors // sizes.storm_processes
    pool = await _pool(sizes.storm_processes)
    processes = range(1, sizes.storm_processes + 1)
    scribes = [await _on(pool, Scribe, process=process) for process in processes]
    actors = [
        await _on(pool, StormActor, process * 1000 + number, process=process)
        for process in processes
        for number in range(each)
    ]
    await asyncio.gather(*(scribe.meet(actors) for scribe in scribes))
    begin = time.monotonic() + ready_s(sizes)
    await asyncio.gather(*(actor.begin(begin, begin + sizes.storm_s) for actor in actors))
    if time.monotonic() > begin:
        raise TimeoutError("the actors were not ready when the storm began")
    await asyncio.sleep(begin + sizes.storm_s - time.monotonic())
    await asyncio.gather(*(scribe.over(str(task.scratch)) for scribe in scribes))
    task.report_storm()


async def _spawn(task: Task) -> None:
    pool = await _pool(0)
    await xoscar.create_actor(Echo, address=pool.external_address, uid="first")
    before, began = resident_bytes(), time.perf_counter()
    for number in range(task.sizes.spawned):
        echo = await xoscar.create_actor(Echo, address=pool.external_address, uid=f"echo-{number}")
    await echo.ping(payload(0))
    seconds = time.perf_counter() - began
    held = resident_bytes() - before
    task.report("spawn", seconds=seconds, kib_each=held / task.sizes.spawned / 1024)


async def _idle(task: Task) -> None:
    pool = await _pool(1)
    for number in range(task.sizes.idle_actors):
        await _on(pool, Echo, process=1, uid=f"echo-{number}")
    await asyncio.sleep(1.0)
    percent = await asyncio.get_running_loop().run_in_executor(None, idle_percent, task.sizes.idle_s)
    task.report("idle", percent=percent)


async def _die(task: Task, row: str) -> float:
    pool = await _pool(1)
    echo = await _on(pool, Echo, process=1)
    pid = await echo.life()
    waiting = asyncio.ensure_future(echo.hang())
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


async def _restart(task: Task) -> None:
    pool = await _pool(1, recover="actor")
    echo = await _on(pool, Echo, process=1)
    took = []
    life = await echo.life()
    for _ in range(task.sizes.restarts):
        began = time.perf_counter()
        asyncio.ensure_future(echo.crash()).add_done_callback(lambda done: done.exception())
        while True:
            try:
                now = await asyncio.wait_for(echo.life(), 5.0)
            except Exception:  # noqa: BLE001 (any error while the process is gone: ask again)
                await asyncio.sleep(0.005)
                continue
            if now != life:
                break
        took.append(time.perf_counter() - began)
        life = now
        await asyncio.sleep(1.0)
    for row in task.rows:
        task.report(row, ms=statistics.median(took) * 1e3)


def _run(measure: Callable[[], Coroutine[object, object, Any]]) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure())


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


GROUPS: dict[str, Callable[[Task], None]] = {
    "pair": lambda task: _run(lambda: _pair(task)),
    "local": lambda task: _run(lambda: _local(task)),
    "storm": lambda task: _run(lambda: _storm(task)),
    "crowd": crowd,
    "death": death,
    "restart": lambda task: _run(lambda: _restart(task)),
}

if __name__ == "__main__":
    from bench.runtime import on_xoscar  # the actors under a name that the sub-processes can import

    main(lambda: f"xoscar {version('xoscar')}", on_xoscar.GROUPS)
