"""Ray, measured on one local cluster with two CPUs.

API: a synchronous driver and synchronous actors, as in Ray's own microbenchmark; one outstanding is
`ray.get(method.remote())`, many are references gathered by one `ray.get`; a one-way message is a reference
that is dropped. A Ray actor is a process: the storm, and the idle cost, are 8 async actors of 125 plain
objects each, which ask objects of their own process by a plain call.
"""

import asyncio
import os
import random
import signal
import statistics
import time
from array import array
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from bench.runtime.ask_load import Ask, ask_around
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
)

ONE_PROCESS = "an actor is a process of its own"


class Echo:
    """Answers with the received bytes."""

    def ping(self, content: bytes) -> bytes:
        """The same bytes."""
        return content

    def life(self, content: bytes) -> tuple[int, bytes]:
        """The same bytes, and from which process."""
        return os.getpid(), content

    def hang(self) -> None:
        """A call that is in flight when the process dies."""
        time.sleep(3600)

    def crash(self) -> None:
        """A Ray actor survives its exceptions; it restarts only after the end of its process."""
        os._exit(1)


class Counter:
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


class Host:
    """One process of the storm: the objects that ask and answer."""

    def __init__(self, number: int, objects: int) -> None:
        self.number = number
        self.objects = objects
        self.storm = Storm()

    async def ping(self, to: int, content: bytes) -> bytes:
        """Object `to` answers with the same bytes."""
        if not 0 <= to < self.objects:
            raise ValueError(f"no object {to} here")
        return content

    async def ask_around(self, hosts: list[Any], begin_s: float, until_s: float, scratch: str) -> None:
        """All objects of this process ask, one at a time each."""

        def pick(rng: random.Random) -> Ask:
            host, to = rng.randrange(len(hosts)), rng.randrange(self.objects)
            if host == self.number:
                return partial(self.ping, to)
            return partial(hosts[host].ping.remote, to)

        seeds = range(self.number * self.objects, (self.number + 1) * self.objects)
        await asyncio.gather(*(ask_around(self.storm, pick, seed, begin_s, until_s) for seed in seeds))
        self.storm.save(Path(scratch), str(self.number))


def _up(task: Task) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=2,
        object_store_memory=100 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=str(task.scratch),
    )


def _asks(echo: Any, seconds: float, outstanding: int) -> AskResult:
    """Batches of asks; a latency is that of a batch."""
    effort = Effort()
    clock = time.perf_counter
    latencies = array("d")
    contents = [payload(number) for number in range(outstanding)]
    began = clock()
    until = began + seconds
    while (sent := clock()) < until:
        replies = ray.get([echo.ping.remote(content) for content in contents])
        latencies.append(clock() - sent)
        if replies != contents:
            raise AssertionError("other bytes came back")
    return AskResult(latencies, clock() - began, effort.spent_s(), outstanding)


def _tells(counter: Any, seconds: float) -> TellResult:
    effort = Effort()
    clock = time.perf_counter
    began = clock()
    until = began + seconds
    sent = 0
    while clock() < until:
        for _ in range(64):
            counter.told.remote(payload(sent))
            sent += 1
    count, disordered = ray.get(counter.counted.remote())
    return TellResult(sent, count, disordered, clock() - began, effort.spent_s())


def pair(task: Task) -> None:
    """Rows `ask_1`, `ask_64` and `tell`: the driver and an actor."""
    _up(task)
    sizes = task.sizes
    echo = ray.remote(Echo).remote()
    if task.wants("ask_1"):
        _asks(echo, sizes.warm_up_s, 1)
        task.report("ask_1", **_asks(echo, sizes.seconds, 1).latency())
    if task.wants("ask_64"):
        _asks(echo, sizes.warm_up_s, OUTSTANDING)
        task.report("ask_64", **_asks(echo, sizes.seconds, OUTSTANDING).rate())
    if task.wants("tell"):
        counter = ray.remote(Counter).remote()
        _tells(counter, sizes.warm_up_s)
        task.report("tell", **_tells(counter, sizes.seconds).figures())


def local(task: Task) -> None:
    """ask_local."""
    task.cannot("ask_local", ONE_PROCESS)


def _hosts(task: Task) -> list[Any]:
    sizes = task.sizes
    each = sizes.storm_actors // sizes.storm_processes
    kind = ray.remote(num_cpus=0, max_concurrency=2 * sizes.storm_actors)(Host)
    hosts = [kind.remote(number, each) for number in range(sizes.storm_processes)]
    ray.get([host.ping.remote(0, payload(0)) for host in hosts])
    return hosts


def storm(task: Task) -> None:
    """storm."""
    _up(task)
    hosts = _hosts(task)
    begin = time.monotonic() + 1.0
    until = begin + task.sizes.storm_s
    ray.get([host.ask_around.remote(hosts, begin, until, str(task.scratch)) for host in hosts])
    task.report_storm()


def crowd(task: Task) -> None:
    """spawn, idle."""
    if task.wants("spawn"):
        task.cannot("spawn", ONE_PROCESS)
    if task.wants("idle"):
        _up(task)
        hosts = _hosts(task)
        time.sleep(2.0)
        task.report("idle", percent=idle_percent(task.sizes.idle_s))
        del hosts


def death(task: Task) -> None:
    """killed, frozen: until a call in flight to the dead process fails."""
    _up(task)
    kind = ray.remote(num_cpus=0)(Echo)
    for row in task.rows:
        took = []
        for _ in range(task.sizes.restarts if row == "killed" else 1):
            echo = kind.remote()
            pid, _content = ray.get(echo.life.remote(payload(0)))
            waiting = echo.hang.remote()
            time.sleep(0.5)
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL if row == "killed" else signal.SIGSTOP)
            try:
                ray.get(waiting, timeout=task.sizes.never_s)
            except RayActorError:
                took.append(time.monotonic() - began)
            except GetTimeoutError:
                took.append(float("nan"))
        found = statistics.median(took)
        task.report(row, **({"ms": found * 1e3} if row == "killed" else {"seconds": found}))


def restart(task: Task) -> None:
    """restart, restart_process: the same thing in Ray."""
    _up(task)
    echo = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Echo).remote()
    took = []
    life, _content = ray.get(echo.life.remote(payload(0)))
    for _ in range(task.sizes.restarts):
        began = time.perf_counter()
        echo.crash.options(max_task_retries=0).remote()
        now, _content = ray.get(echo.life.remote(payload(0)))
        took.append(time.perf_counter() - began)
        if now == life:
            raise AssertionError("the old process answered")
        life = now
        time.sleep(0.2)
    for row in task.rows:
        task.report(row, ms=statistics.median(took) * 1e3)


GROUPS = {"pair": pair, "local": local, "storm": storm, "crowd": crowd, "death": death, "restart": restart}

if __name__ == "__main__":
    from bench.runtime import on_ray  # the actors under a name that the workers can import

    main(lambda: f"ray {ray.__version__}", on_ray.GROUPS)
