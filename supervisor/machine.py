"""Machine: an actor system's port to child processes, threads and its own pid.

Owns the port and its real implementation. Does not own how a child process is started and watched
(`process`), nor when (`supervision`). To run the same actors on another machine, a simulated one, pass
another `Machine`.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from gleaner.supervisor.fork_server.client import ForkServer
from gleaner.supervisor.process import HEARTBEAT_VARIABLE, ChildProcess, ProcessExit, ProcessSpec
from gleaner.supervisor.watch.health import Parent

T = TypeVar("T")
OnExit = Callable[[ProcessExit], None]


class Child(Protocol):
    """A child process that was started."""

    @property
    def pid(self) -> int:
        """Its process id on its machine."""

    @property
    def exit(self) -> ProcessExit | None:
        """Its end; None while it lives."""

    def send_signal(self, number: int) -> None:
        """Signal it if it still lives."""

    async def wait(self) -> ProcessExit:
        """Wait until it has ended. This wait has no deadline: the caller has one."""

    async def stop(self, timeout_s: float) -> ProcessExit:
        """SIGTERM, then SIGKILL after `timeout_s`; at once if that is 0."""

    def kill(self, why: str = "") -> None:
        """SIGKILL; `why` goes into the cause of its end."""

    def cpu_s(self) -> float:
        """Processor seconds that it has used so far."""


class Worker(Protocol):
    """A thread that does blocking work, one piece after the other in the order of the calls."""

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        """The result or exception of `work`. Work that has begun is done, even if its caller has stopped
        waiting."""

    def close(self) -> None:
        """Take no more work; work that has not begun is cancelled."""


class Machine(Protocol):
    """See the module; one a process."""

    @property
    def pid(self) -> int:
        """The number of this process."""

    @property
    def parent(self) -> Parent | None:
        """The parent that expects heartbeats of this process; None without one."""

    @property
    def paused_s(self) -> Callable[[], float] | None:
        """Gives the seconds so far in which this process did not run (SIGSTOP, a suspended machine); None
        where the machine does not measure them."""

    def prepared(self) -> Coroutine[Any, Any, None] | None:
        """A wait, for a bounded time, until child processes start fast; None where they do. They may be
        started before."""

    def start(self, spec: ProcessSpec, on_exit: OnExit) -> Child:
        """Start a child process, which dies with this one. `on_exit` is called once, on the loop.

        Raises OSError if it cannot be started.
        """

    def thread(self, name: str) -> Worker:
        """A thread of its own for the user called `name`. Work of an earlier thread of this name, whose user
        has ended, is over before the first piece of this one begins: both may write the same files."""


class RealMachine:
    """The machine that this process runs on. forks: forks its child processes; None: they are executed."""

    def __init__(self, forks: ForkServer | None = None) -> None:
        self._forks = forks
        self._at_work: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        # Taken out of the environment: it is meant for this process, not for those that it starts.
        heartbeat = os.environ.pop(HEARTBEAT_VARIABLE, "")
        self._parent = Parent.parse(heartbeat) if heartbeat else None

    @property
    def parent(self) -> Parent | None:
        """See `Machine`."""
        return self._parent

    @property
    def pid(self) -> int:
        """See `Machine`."""
        return os.getpid()

    @property
    def paused_s(self) -> None:
        """See `Machine`: no clock of a process shows that it was stopped."""

    def prepared(self) -> Coroutine[Any, Any, None] | None:
        """See `Machine`."""
        return self._forks.ready() if self._forks is not None else None

    def start(self, spec: ProcessSpec, on_exit: OnExit) -> Child:
        """See `Machine`."""
        return ChildProcess(spec, on_exit, self._forks)

    def thread(self, name: str) -> Worker:
        """See `Machine`."""
        return _Thread(name, self._at_work.setdefault(name, Lock()))


class _Thread:
    """A `Worker`; the thread itself begins with the first piece of work. `at_work` is held during each."""

    def __init__(self, name: str, at_work: Lock) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._at_work = at_work

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, self._do, work)

    def _do(self, work: Callable[[], T]) -> T:
        with self._at_work:
            return work()

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
