"""Dask actors, measured on one local cluster of worker processes.

API: `await actor.method(...)` from an asynchronous client with direct connections to the workers; many
outstanding as coroutines. The methods are coroutines, so that they run on the worker's loop without a hop to
its actor thread. Dask has no one-way messages and no restart.
"""

import asyncio
import os
import signal
import statistics
import time
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import distributed
from distributed import Client, LocalCluster

from bench.runtime.ask_load import ask_around, asks, drained
from bench.runtime.task import (
    OUTSTANDING,
    AskResult,
    Storm,
    Task,
    idle_percent,
    main,
    payload,
    ready_s,
    resident_bytes,
)

NO_TELL = "a call always carries a result back"
NO_RESTART = "an actor is lost with its worker for good"

_here = Storm()
_everybody: list[Any] = []
"""Of one process of the storm; its actors share them."""


class Echo:
    """Answers with the received bytes."""

    async def ping(self, content: bytes) -> bytes:
        """The same bytes."""
        return content

    async def life(self) -> int:
        """Process id."""
        return os.getpid()

    async def hang(self) -> None:
        """A call that is in flight when the process dies."""
        await asyncio.sleep(3600)

    async def ask(self, other: Any, warm_up_s: float, seconds: float) -> bytes:
        """Latencies of asks to `other`."""
        await asks(other.ping, warm_up_s, 1)
        return (await asks(other.ping, seconds, 1)).latencies.tobytes()


class StormActor:
    """Asks the others at random, one at a time, and answers them meanwhile."""

    def __init__(self, number: int) -> None:
        self._number = number

    async def ping(self, content: bytes) -> bytes:
        """The same bytes."""
        return content

    async def begin(self, begin_s: float, until_s: float) -> None:
        """Ask beside the calls."""
        self._asking = asyncio.create_task(
            ask_around(_here, lambda rng: rng.choice(_everybody).ping, id(self), begin_s, until_s)
        )


class Scribe:
    """One for each process: stores the addresses, saves the counts."""

    async def meet(self, everybody: list[Any]) -> None:
        """All storm actors."""
        _everybody[:] = everybody

    async def over(self, scratch: str) -> None:
        """Wait for the last answers, then save."""
        await drained(_here)
        _here.save(Path(scratch), str(os.getpid()))


@asynccontextmanager
async def _cluster(task: Task, workers: int) -> AsyncIterator[Any]:
    async with (
        LocalCluster(
            n_workers=workers,
            processes=True,
            threads_per_worker=1,
            dashboard_address=None,
            asynchronous=True,
            silence_logs=50,
            local_directory=str(task.scratch),
        ) as cluster,
        Client(cluster, asynchronous=True, direct_to_workers=True) as client,
    ):
        await client.wait_for_workers(workers)
        yield client


async def _on(client: Any, kind: type, *arguments: object, worker: int = 0, count: int = 1) -> list[Any]:
    """Actors on one worker."""
    address = sorted(await client.run(os.getpid))[worker]
    futures = [
        client.submit(kind, *arguments, actor=True, workers=[address], pure=False) for _ in range(count)
    ]
    return list(await client.gather(futures))


async def _pair(task: Task) -> None:
    sizes = task.sizes
    if task.wants("tell"):
        task.cannot("tell", NO_TELL)
    async with _cluster(task, 1) as client:
        (echo,) = await _on(client, Echo)
        if task.wants("ask_1"):
            await asks(echo.ping, sizes.warm_up_s, 1)
            task.report("ask_1", **(await asks(echo.ping, sizes.seconds, 1)).latency())
        if task.wants("ask_64"):
            await asks(echo.ping, sizes.warm_up_s, OUTSTANDING)
            asked = await asks(echo.ping, sizes.seconds, OUTSTANDING)
            task.report("ask_64", **asked.rate())


async def _local(task: Task) -> None:
    async with _cluster(task, 1) as client:
        asker, echo = await _on(client, Echo, count=2)
        latencies = array("d")
        latencies.frombytes(await asker.ask(echo, task.sizes.warm_up_s, task.sizes.seconds))
        task.report("ask_local", **AskResult(latencies, 0, 0).latency())


async def _storm(task: Task) -> None:
    sizes = task.sizes
    each = sizes.storm_actors // sizes.storm_processes
    async with _cluster(task, sizes.storm_processes) as client:
        scribes, actors = [], []
        for worker in range(sizes.storm_processes):
            scribes += await _on(client, Scribe, worker=worker)
            actors += await _on(client, StormActor, worker, worker=worker, count=each)
        await asyncio.gather(*(scribe.meet(actors) for scribe in scribes))
        begin = time.monotonic() + ready_s(sizes)
        await asyncio.gather(*(actor.begin(begin, begin + sizes.storm_s) for actor in actors))
        if time.monotonic() > begin:
            raise TimeoutError("the actors were not ready when the storm began")
        await asyncio.sleep(begin + sizes.storm_s - time.monotonic())
        await asyncio.gather(*(scribe.over(str(task.scratch)) for scribe in scribes))
        task.report_storm()


async def _spawn(task: Task) -> None:
    async with _cluster(task, 1) as client:
        await _on(client, Echo)
        before = sum((await client.run(resident_bytes)).values())
        began = time.perf_counter()
        echoes = await _on(client, Echo, count=task.sizes.spawned)
        await echoes[-1].ping(payload(0))
        seconds = time.perf_counter() - began
        held = sum((await client.run(resident_bytes)).values()) - before
        task.report("spawn", seconds=seconds, kib_each=held / task.sizes.spawned / 1024)


async def _idle(task: Task) -> None:
    async with _cluster(task, 1) as client:
        echoes = await _on(client, Echo, count=task.sizes.idle_actors)
        await asyncio.sleep(2.0)
        percent = await asyncio.get_running_loop().run_in_executor(None, idle_percent, task.sizes.idle_s)
        task.report("idle", percent=percent)
        del echoes


async def _die(task: Task, row: str) -> float:
    async with _cluster(task, 1) as client:
        (echo,) = await _on(client, Echo)
        pid = await echo.life()
        waiting = asyncio.ensure_future(_await(echo.hang()))
        await asyncio.sleep(0.5)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL if row == "killed" else signal.SIGSTOP)
        done, _pending = await asyncio.wait([waiting], timeout=task.sizes.never_s)
        took = time.monotonic() - began
        if not done:
            os.kill(pid, signal.SIGKILL)  # the cluster could not be closed
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
    from bench.runtime import on_dask  # the actors under a name that the workers can import

    main(lambda: f"distributed {distributed.__version__}", on_dask.GROUPS)
