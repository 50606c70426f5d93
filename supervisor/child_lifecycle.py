"""Lives of one supervisor's children: each is started, stopped and reported once.

Owns what is kept of a child over its lives (how often it was restarted, how it ended last). Decides nothing:
`supervision.Supervisor` calls it when something is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gleaner.supervisor.cell import Cell
from gleaner.supervisor.child_spec import ChildSpec
from gleaner.supervisor.errors import ActorError
from gleaner.supervisor.managed_child import KILLED_S, ChildEnd, OnEnd, RunningChild
from gleaner.supervisor.system_messages import ActorState
from gleaner.supervisor.tree import Start, Status
from gleaner.supervisor.waits import Waits

log = logging.getLogger("supervisor")

START_LATE_S = 60.0
"""A child whose start takes so long is an event, again each time: an actor that loads a model takes less."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """A child was restarted: its parent and name, the cause, and the number of restarts."""

    name: str
    cause: str
    restarts: int


@dataclass(frozen=True, slots=True)
class ChildExit:
    """A life of a child ended by itself."""

    name: str
    life: int
    ended: ChildEnd


@dataclass(slots=True)
class _Child:
    running: RunningChild | None = None
    life: int = 0
    restarts: int = 0
    last: ChildEnd | None = None
    heir: Cell | None = None  # waiting messages for the next life of an actor

    def over(self, ended: ChildEnd) -> None:
        self.last = ended
        if self.running is not None:
            self.heir = self.running.heir()
        self.running = None


class ChildLifecycle:
    """See the module.

    Args:
        parent: the supervisor's name.
        begin: makes a child that is about to start; what it calls at its end, and the heir of its last life,
            are arguments.
        on_exit: called for every life that ended by itself.
        on_restart: called for every restart.
        waits: where the wait for a child that starts or stops is entered.
    """

    def __init__(
        self,
        parent: str,
        begin: Callable[[ChildSpec, OnEnd, Cell | None], RunningChild],
        on_exit: Callable[[ChildExit], None],
        on_restart: Callable[[Restarted], None] | None,
        waits: Waits,
    ) -> None:
        self._waits = waits
        self._parent = parent
        self._begin = begin
        self._on_exit = on_exit
        self._on_restart = on_restart
        self._children: dict[str, _Child] = {}  # bounded: declared children, see `keep`

    async def start(self, action: Start, spec: ChildSpec, halted: asyncio.Future[None]) -> ChildEnd | None:
        """Begin a life, until it is up or `halted` is done; returns how it failed, if it did."""
        name = spec.name
        child = self._children.setdefault(name, _Child())
        if action.because:
            child.restarts += 1
            self._tell_restart(action, child)
        child.life += 1
        life = child.life
        try:
            heir, child.heir = child.heir, None
            child.running = self._begin(spec, lambda ended: self._on_exit(ChildExit(name, life, ended)), heir)
            async with self._waits.waiting(self._parent, "a child to start", name, START_LATE_S, go_on=True):
                ended = await child.running.start(halted)
        except ActorError as problem:
            ended = ChildEnd.of(problem, "never begun")
        if ended is not None:
            child.over(ended)
            log.warning("%s: %s did not start: %s", self._parent, name, ended.how)
        return ended

    def ended(self, exited: ChildExit) -> bool:
        """Take note of an end; False for that of an older life, which was stopped on purpose meanwhile."""
        child = self._children.get(exited.name)
        if child is None or child.life != exited.life:
            return False
        child.over(exited.ended)
        log.warning("%s: %s ended: %s", self._parent, exited.name, exited.ended.how)
        return True

    async def stop(self, name: str, within_s: float, *, again: bool = False) -> None:
        """End a life in order; the report of its end is ignored. `again`: another life is to follow."""
        child = self._children.get(name)
        if child is not None:
            child.life += 1
            if child.running is not None:
                late_s = min(within_s, START_LATE_S) + KILLED_S
                async with self._waits.waiting(self._parent, "a child to stop", name, late_s, go_on=True):
                    await child.running.stop(within_s, again=again)
                child.heir = child.running.heir()
                child.running = None

    def kill(self) -> None:
        """End them all at once, the newest first."""
        for child in reversed(self._children.values()):
            if child.running is not None:
                child.running.kill()

    def begun(self) -> list[str]:
        """Children that were begun and not seen to end, in order."""
        return [name for name, child in self._children.items() if child.running is not None]

    def last(self, name: str) -> ChildEnd:
        """The last end of a child."""
        last = self._children[name].last
        assert last is not None, f"{name} has not ended yet"
        return last

    def keep(self, status: Mapping[str, Status]) -> None:
        """Forget children that are no longer declared, and messages that wait for a life that does not
        follow."""
        for name, child in list(self._children.items()):
            if child.heir is not None and status.get(name) is not Status.RESTARTING:
                child.heir.latest().discard()
                child.heir = None
            if name not in status:
                del self._children[name]

    def running(self, name: str) -> RunningChild | None:
        """The running life of child `name`."""
        child = self._children.get(name)
        return child.running if child is not None else None

    def state(self, name: str, status: Status, strategy: str) -> ActorState:
        """State of a child of a supervisor with this strategy, for `rlctl ps`."""
        child = self._children.get(name) or _Child()
        running = child.running
        return ActorState(
            name=name,
            incarnation=running.incarnation if running is not None else 0,
            state="starting" if running is not None and status is not Status.RUNNING else status.value,
            mailbox=0,
            handled=0,
            dropped=0,
            restarts=child.restarts,
            last_failure=child.last.how if child.last is not None else "",
            parent=self._parent,
            pid=running.pid if running is not None else 0,
            strategy=strategy,
        )

    def _tell_restart(self, action: Start, child: _Child) -> None:
        if self._on_restart is None:
            return
        cause = self.last(action.because).how
        reason = cause if action.name == action.because else f"with {action.because}: {cause}"
        self._on_restart(Restarted(action.name, reason, child.restarts))
