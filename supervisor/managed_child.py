"""RunningChild: one interface for a running child (actor, process or subtree).

Owns how each kind is started, stopped in order, killed, and how its end is reported. `tree` decides when.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gleaner.supervisor.child_spec import BRUTAL_KILL, ChildSpec, Waiting
from gleaner.supervisor.errors import (
    Cause,
    Fenced,
    Hopeless,
    JournalError,
    JournalUnable,
    Killed,
    SupervisorFailed,
)
from gleaner.supervisor.journal.outage import LOOK_S, SUSPENDED_LATE_S, StorageOutageProxy
from gleaner.supervisor.process import ProcessExit, ProcessSpec

if TYPE_CHECKING:
    from gleaner.supervisor.cell import Cell
    from gleaner.supervisor.delivery import Exit
    from gleaner.supervisor.journal.port import JournalStore
    from gleaner.supervisor.machine import Child
    from gleaner.supervisor.supervision import Supervisor
    from gleaner.supervisor.system import ActorSystem

log = logging.getLogger("supervisor")

LONGEST_S = 86400.0
"""`INFINITY` as a timer's number: an ordered stop that takes a day has hung."""
FENCED_STARTS = 3  # the registry and a journal may each fence once; more often is a failure
KILLED_S = 1.0  # for a killed subtree to end; an actor that ignores the kill ends with the process


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a child ended by itself, or why it did not start. `problem` is the exception that it raised, if
    any."""

    how: str
    what: str
    abnormal: bool = True
    hopeless: bool = False
    problem: Exception | None = None
    code: int | None = None

    def causes(self, who: str, parent: str) -> tuple[Cause, ...]:
        """The chain of causes down from this child."""
        if isinstance(self.problem, SupervisorFailed):
            own = Cause(who, self.what, self.problem.verdict, parent)
            return (own, *self.problem.causes)
        return (Cause(who, self.what, self.how, parent, self.code),)

    @property
    def first(self) -> Exception | None:
        """The exception of the child that failed first."""
        return self.problem.first if isinstance(self.problem, SupervisorFailed) else self.problem

    @classmethod
    def of(cls, problem: Exception, what: str, how: str = "") -> ChildEnd:
        """An end by an exception."""
        text = how or f"{type(problem).__name__}: {problem}"
        return cls(text, what, hopeless=isinstance(problem, Hopeless), problem=problem)


OnEnd = Callable[[ChildEnd], None]


class RunningChild(Protocol):
    """A child that was begun. `on_end` is called at most once, when it ends by itself after its start."""

    async def start(self, halted: asyncio.Future[None]) -> ChildEnd | None:
        """Wait until it is up, or `halted` is done; returns how it failed, if it did."""

    async def stop(self, within_s: float, *, again: bool = False) -> None:
        """End it in order within `within_s`, then by force. `again`: another life is to follow."""

    def kill(self) -> None:
        """End it at once."""

    def heir(self) -> Cell | None:
        """The holder of the waiting messages for an ended actor's next life, if those are kept."""

    @property
    def incarnation(self) -> int:
        """Incarnation of an actor, else 0."""

    @property
    def pid(self) -> int:
        """Process id of a process, else 0."""


class RunningActor:
    """An actor; it is up when its `on_start` returned.

    An actor whose journal takes nothing for now has not ended: its heir, or else a `StorageOutageProxy`, has
    its name until it can go on.
    """

    pid = 0

    def __init__(
        self,
        system: ActorSystem,
        spec: ChildSpec,
        on_end: OnEnd,
        journals: JournalStore | None,
        heir: Cell | None,
    ) -> None:
        assert callable(spec.start)
        self._what = f"actor on {system.node}/{system.process}"
        self._on_end: OnEnd | None = on_end
        self._up = False
        self._early: Exit | None = None  # its end before its supervisor took note of its start
        self._waiting: asyncio.Task[None] | None = None  # for its journal
        self._system, self._spec, self._journals = system, spec, journals
        self._cell = self._again(heir)

    def _again(self, heir: Cell | None) -> Cell:
        """A new life: that of the heir, which holds the waiting messages, or else a new one."""
        if heir is None or not heir.latest().alive:
            return self._spawned()
        cell = heir.latest()
        self._system.adopt(cell, self._exited)
        return cell

    def _spawned(self) -> Cell:
        spec, keep = self._spec, self._spec.mailbox is Waiting.KEEP
        assert callable(spec.start)
        return self._system.spawn(spec.name, spec.start, self._exited, self._journals, keep=keep)

    def heir(self) -> Cell | None:
        """See `RunningChild`."""
        return self._cell.heir

    @property
    def incarnation(self) -> int:
        """Incarnation of the actor."""
        return self._cell.address.incarnation

    async def start(self, halted: asyncio.Future[None]) -> ChildEnd | None:
        """See `RunningChild`."""
        for _ in range(FENCED_STARTS):
            started = self._cell.started
            await asyncio.wait([started, halted], return_when=asyncio.FIRST_COMPLETED)
            if not started.done() or started.cancelled():
                return None  # its supervisor stops
            problem = started.exception()
            if not isinstance(problem, Fenced):
                break
            # Its number was too low, for example after this host's clock went back; by now the next one is
            # above the number that fenced it. The child is not at fault, so it is no failed start.
            log.warning("new life under a higher incarnation: %s: %s", self._spec.name, problem)
            self._early = None
            self._cell = self._again(self._cell.heir)
        if isinstance(problem, Exception) and not isinstance(problem, JournalUnable):
            return ChildEnd.of(problem, self._what)
        self._up = True
        if problem is None and self._early is not None:
            self._exited(self._early)
        return None

    async def stop(self, within_s: float, *, again: bool = False) -> None:
        """See `RunningChild`."""
        self._let_go()
        self._cell.keep = self._cell.keep and again
        if within_s == BRUTAL_KILL:
            self.kill()
        else:
            await self._cell.stop(min(within_s, LONGEST_S))

    def kill(self) -> None:
        """See `RunningChild`."""
        self._let_go()
        self._cell.keep = False
        self._cell.crash(Killed(f"{self._cell.address.name} was killed by its supervisor"))

    def _exited(self, exit_: Exit) -> None:
        if self._on_end is not None and isinstance(exit_.problem, JournalUnable):
            self._suspend(exit_.problem)
            return
        if self._on_end is None:
            return  # stopped on purpose
        if not self._up:
            self._early = exit_  # `start` reports it
            return
        if exit_.problem is None:
            self._on_end(ChildEnd(exit_.cause, self._what, abnormal=False))
        else:
            self._on_end(ChildEnd.of(exit_.problem, self._what, exit_.cause))

    # -- while its journal takes nothing --

    def _suspend(self, problem: JournalUnable) -> None:
        reason = str(problem)
        log.error("%s is suspended: %s", self._spec.name, reason)
        heir = self._cell.heir
        if heir is not None:
            self._cell = heir
        else:
            self._cell = self._system.spawn(
                self._spec.name, lambda: StorageOutageProxy(reason), None, self._journals
            )
        self._waiting = asyncio.get_running_loop().create_task(self._until_journal_works())

    async def _until_journal_works(self) -> None:
        name, waits = self._spec.name, self._system.waits
        async with waits.waiting(name, "its journal", "the disk", SUSPENDED_LATE_S, go_on=True):
            while True:
                await asyncio.sleep(LOOK_S)
                with contextlib.suppress(JournalError):
                    await self._cell.ctx.journal.probe()
                    break
        if isinstance(self._cell.actor, StorageOutageProxy):
            await self._cell.stop(KILLED_S)
            self._cell = self._spawned()
        else:
            self._system.adopt(self._cell, self._exited)
        self._waiting = None
        log.warning("actor resumed, its journal takes writes again: %s", self._spec.name)

    def _let_go(self) -> None:
        self._on_end = None
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class RunningProcess:
    """A process; it counts as up when it was started, whatever it does then."""

    incarnation = 0

    def heir(self) -> None:
        """None: it has no mailbox."""

    def __init__(self, system: ActorSystem, spec: ProcessSpec, on_end: OnEnd) -> None:
        self._what = f"process on {system.node}"
        self._spec = spec
        self._system = system
        self._on_end: OnEnd | None = on_end
        self.process: Child | None = None

    @property
    def pid(self) -> int:
        """Process id of the process."""
        return self.process.pid if self.process is not None else 0

    async def start(self, halted: asyncio.Future[None]) -> ChildEnd | None:
        """See `RunningChild`."""
        try:
            self.process = self._system.start_process(self._spec, self._exited)
        except OSError as problem:
            return ChildEnd.of(problem, self._what, f"{self._spec.argv[0]}: {problem}")
        return None

    async def stop(self, within_s: float, *, again: bool = False) -> None:
        """See `RunningChild`."""
        self._on_end = None
        if self.process is not None:
            self._system.health.forget(self.process)
            await self.process.stop(min(within_s, LONGEST_S))

    def kill(self) -> None:
        """See `RunningChild`."""
        self._on_end = None
        if self.process is not None:
            self.process.kill()

    def _exited(self, exit_: ProcessExit) -> None:
        if self._on_end is not None:
            hopeless = exit_.code in self._spec.hopeless
            what = f"process {self.pid}{self._what.removeprefix('process')}"
            self._on_end(ChildEnd(exit_.cause, what, exit_.abnormal, hopeless, code=exit_.code))


class RunningTree:
    """A supervisor below a supervisor; it is up when all its children are."""

    incarnation = 0
    pid = 0

    def heir(self) -> None:
        """None: it has no mailbox."""

    def __init__(self, make: Callable[[Callable[[Exception | None], None]], Supervisor], on_end: OnEnd):
        self._on_end: OnEnd | None = on_end
        self.tree = make(self._ended)

    async def start(self, halted: asyncio.Future[None]) -> ChildEnd | None:
        """See `RunningChild`."""
        halted.add_done_callback(self._halt)
        try:
            await self.tree.start()
        except SupervisorFailed as problem:
            return ChildEnd.of(problem, "supervisor")
        finally:
            halted.remove_done_callback(self._halt)
        return None

    def _halt(self, _halted: asyncio.Future[None]) -> None:
        self.tree.halt()

    async def stop(self, within_s: float, *, again: bool = False) -> None:
        """See `RunningChild`."""
        self._on_end = None
        stopping = asyncio.get_running_loop().create_task(self.tree.stop())
        done, _ = await asyncio.wait([stopping], timeout=min(within_s, LONGEST_S))
        if not done:
            self.kill()
            await asyncio.wait([stopping], timeout=KILLED_S)
            stopping.cancel()

    def kill(self) -> None:
        """See `RunningChild`."""
        self._on_end = None
        self.tree.kill()

    def _ended(self, problem: Exception | None) -> None:
        if self._on_end is None:
            return
        if problem is None:
            self._on_end(ChildEnd("shut down, its work is done", "supervisor", abnormal=False))
        else:
            self._on_end(ChildEnd.of(problem, "supervisor"))
