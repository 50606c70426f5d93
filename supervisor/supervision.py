"""Carries out what `tree.TreeState` decides: starts, stops and restarts actors, processes and subtrees.

Owns the running children of one supervisor. Ordered start, reverse stop with a deadline then kill, escalation
upward when the intensity is spent.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.cell import Cell
from supervisor.delivery import Exit
from supervisor.errors import ActorError, Hopeless, RestartIntensityReached
from supervisor.journal import JournalStore
from supervisor.process import ChildProcess, ProcessExit, ProcessSpec
from supervisor.system import ActorSystem
from supervisor.system_messages import ActorState
from supervisor.tree import Action, ChildSpec, Escalate, Start, Stop, TreeSpec, TreeState

log = logging.getLogger("supervisor")


@dataclass(frozen=True, slots=True)
class Restarted:
    """A child was restarted: whose, why, and for the how-many-th time."""

    name: str
    cause: str
    restarts: int


@dataclass(frozen=True, slots=True)
class _Ended:
    """A child ended by itself. `verdict`: its own, that a restart would not help."""

    name: str
    abnormal: bool
    cause: str
    hopeless: bool = False
    verdict: Hopeless | None = None


@dataclass(slots=True)
class _Child:
    spec: ChildSpec
    running: Cell | ChildProcess | Supervisor | None = None
    restarts: int = 0
    last_failure: str = ""
    pending: asyncio.Task[None] | None = None


class Supervisor:
    """One supervisor of the tree.

    Args:
        system: where actor children are spawned.
        spec: strategy, intensity and children.
        on_failure: called once when the intensity is spent, or a child is hopeless (then with its own
            words), after every child was stopped.
        on_restart: told of every restart, for reports.
        journals: where actor children keep their streams; None: in the process's store.
    """

    def __init__(
        self,
        system: ActorSystem,
        spec: TreeSpec,
        *,
        on_failure: Callable[[Exception], None],
        on_restart: Callable[[Restarted], None] | None = None,
        journals: JournalStore | None = None,
    ) -> None:
        self.name = spec.name
        self._system = system
        self._state = TreeState(spec, random.Random(f"{system.seed}/{spec.name}"))
        self._children: dict[str, _Child] = {child.name: _Child(child) for child in spec.children}
        self._on_failure = on_failure
        self._on_restart = on_restart
        self._journals = journals
        self._work: asyncio.Task[None] | None = None
        self._queue: asyncio.Queue[_Ended] = asyncio.Queue()  # bounded: one exit a running child
        self._stopping = False

    async def start(self) -> None:
        """Start every child in order; an actor counts as started when its `on_start` returned."""
        self._system.state_sources.append(self.states)
        for name in list(self._children):
            await self._start_child(name)
        self._work = asyncio.get_running_loop().create_task(self._supervise(), name=f"supervisor {self.name}")

    async def add(self, spec: ChildSpec) -> None:
        """Declare and start one more child. Raises: ValueError when its name is taken."""
        self._state.add(spec)
        self._children[spec.name] = _Child(spec)
        await self._start_child(spec.name)

    async def remove(self, name: str) -> None:
        """Stop a child for good."""
        child = self._children.get(name)
        if child is None:
            return
        self._state.remove(name)
        await self._stop_child(child)
        self._children.pop(name, None)

    def process(self, name: str) -> ChildProcess | None:
        """The running process of child `name`."""
        child = self._children.get(name)
        return child.running if child is not None and isinstance(child.running, ChildProcess) else None

    def names(self) -> list[str]:
        """Declared children, in order."""
        return list(self._children)

    async def stop(self) -> None:
        """Stop every child in reverse order, each within its `shutdown_s`."""
        self._stopping = True
        if self._work is not None and self._work is not asyncio.current_task():
            self._work.cancel()
        for name in reversed(list(self._children)):
            await self._stop_child(self._children[name])
        if self.states in self._system.state_sources:
            self._system.state_sources.remove(self.states)

    def states(self) -> list[ActorState]:
        """What `rlctl ps` shows of the children."""
        rows = []
        for child in self._children.values():
            running = child.running
            rows.append(
                ActorState(
                    name=child.spec.name,
                    incarnation=running.address.incarnation if isinstance(running, Cell) else 0,
                    state="restarting" if running is None else "running",
                    mailbox=0,
                    handled=0,
                    dropped=0,
                    restarts=child.restarts,
                    last_failure=child.last_failure,
                    parent=self.name,
                    pid=running.pid if isinstance(running, ChildProcess) else 0,
                )
            )
        return rows

    # -- one child --

    async def _start_child(self, name: str) -> None:
        child = self._children[name]
        start = child.spec.start
        try:
            if isinstance(start, ProcessSpec):
                child.running = ChildProcess(start, lambda exit_: self._process_exited(name, exit_, start))
            elif isinstance(start, TreeSpec):
                subtree = Supervisor(
                    self._system,
                    start,
                    on_failure=lambda problem: self._failed(name, str(problem), problem),
                    on_restart=self._on_restart,
                    journals=self._journals,
                )
                child.running = subtree
                await subtree.start()
            else:
                cell = self._system.spawn(
                    name, start, lambda exit_: self._actor_exited(name, exit_), self._journals
                )
                child.running = cell
                await asyncio.wait([cell.started])
        except (OSError, ActorError) as problem:
            child.running = None
            child.last_failure = f"could not start: {problem}"
            self._queue.put_nowait(_Ended(name, True, child.last_failure))
            return
        if child.running is not None:
            self._state.started(name)

    async def _stop_child(self, child: _Child) -> None:
        if child.pending is not None:
            child.pending.cancel()
            child.pending = None
        running, child.running = child.running, None
        self._state.stopped(child.spec.name)
        if isinstance(running, Supervisor):
            await running.stop()
        elif isinstance(running, Cell | ChildProcess):
            await running.stop(child.spec.shutdown_s)

    def _actor_exited(self, name: str, exit_: Exit) -> None:
        if exit_.problem is None:
            self._exited(_Ended(name, False, exit_.cause))
        else:
            self._failed(name, exit_.cause, exit_.problem)

    def _failed(self, name: str, cause: str, problem: Exception) -> None:
        verdict = problem if isinstance(problem, Hopeless) else None
        self._exited(_Ended(name, True, cause, verdict is not None, verdict))

    def _process_exited(self, name: str, exit_: ProcessExit, spec: ProcessSpec) -> None:
        self._exited(_Ended(name, exit_.abnormal, exit_.cause, exit_.code in spec.hopeless))

    def _exited(self, ended: _Ended) -> None:
        child = self._children.get(ended.name)
        if self._stopping or child is None or child.running is None:
            return  # stopped on purpose
        child.running = None
        child.last_failure = ended.cause
        self._queue.put_nowait(ended)

    # -- decisions --

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            ended = await self._queue.get()
            log.warning("%s: %s ended: %s", self.name, ended.name, ended.cause)
            for action in self._state.exited(
                ended.name, abnormal=ended.abnormal, now_s=loop.time(), hopeless=ended.hopeless
            ):
                if isinstance(action, Escalate):
                    text = f"supervisor {self.name}: {action.reason}; last cause: {ended.cause}"
                    await self.stop()
                    self._on_failure(ended.verdict or RestartIntensityReached(text))
                    return
                await self._carry_out(action, ended.name, ended.cause)

    async def _carry_out(self, action: Action, failed: str, cause: str) -> None:
        child = self._children.get(action.name) if isinstance(action, Stop | Start) else None
        if child is None:
            return
        if isinstance(action, Stop):
            await self._stop_child(child)
        elif isinstance(action, Start):
            child.restarts += 1
            if self._on_restart is not None:
                reason = cause if action.name == failed else f"with {failed}: {cause}"
                self._on_restart(Restarted(action.name, reason, child.restarts))
            if action.delay_s <= 0:
                await self._start_child(action.name)
            else:
                child.pending = asyncio.get_running_loop().create_task(
                    self._start_later(action.name, action.delay_s)
                )

    async def _start_later(self, name: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        child = self._children.get(name)
        if child is not None:
            child.pending = None
            await self._start_child(name)
