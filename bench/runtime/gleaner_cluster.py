"""Gleaner's processes in the comparison, opened as a node agent opens its own."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TypeVar

import uvloop

from bench.runtime.task import Task
from gleaner.nodeagent.host import ProcessLocation
from gleaner.nodeagent.system import open_system
from gleaner.supervisor import ActorSystem, Registry
from gleaner.supervisor.names.client import REGISTRY

T = TypeVar("T")
START_S = 30.0  # a process of the comparison is up by then


@asynccontextmanager
async def head(task: Task) -> AsyncIterator[ActorSystem]:
    """The first process of the cluster: it holds the registry."""
    async with open_system(ProcessLocation("bench", "head", task.scratch / "head")) as system:
        system.spawn(REGISTRY, lambda: Registry(lambda: system.limits.lease_s))
        yield system


def argv(system: ActorSystem, task: Task, process: str, cast: str, count: int = 0) -> list[str]:
    """The command of a process with these actors, which joins `system`."""
    orders = {"process": process, "cast": cast, "count": count, "scratch": str(task.scratch)}
    orders["head"] = system.wire.local.endpoint
    return [sys.executable, "-m", "bench.runtime.gleaner_process", json.dumps(orders)]


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """A process of this run."""
    return subprocess.Popen(command)


@asynccontextmanager
async def other_process(
    system: ActorSystem, task: Task, process: str, cast: str, count: int = 0
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A second process with these actors."""
    running = start(argv(system, task, process, cast, count))
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def run(measure: Callable[[], Coroutine[object, object, T]]) -> T:
    """Run it on a loop of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure())
