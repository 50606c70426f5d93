"""Heart and HealthChecks: child processes' heartbeats over their control links.

Every child sends them, and its parent expects them. Owns both ends: the child's timer, and the parent's
record of its children with the checks of it. `health` decides what a silence means; the supervisor decides
what follows a kill, as after any other end.

A heartbeat is sent by the child's own loop, so it proves that the loop runs, not just that the process
exists. Any sender that the wire admits can send one, and it counts for the pid in it: a forged one can only
keep a process alive.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from gleaner.supervisor.inspection.vitals import Recovery
from gleaner.supervisor.system_messages import Heartbeat
from gleaner.supervisor.watch.health import ChildHealth, Health, Parent

if TYPE_CHECKING:
    from gleaner.supervisor.machine import Child
    from gleaner.supervisor.system import ActorSystem

log = logging.getLogger("supervisor")


class HeartbeatSender:
    """Sends heartbeats to the parent of this process, from `start` to `close`; nothing without a parent."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The first heartbeat is sent at once: from then on the process is no longer starting."""
        if (parent := self._system.machine.parent) is not None:
            self._beat(parent)

    def close(self) -> None:
        """No more of them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self, parent: Parent) -> None:
        self._timer = asyncio.get_running_loop().call_later(parent.beat_s, self._beat, parent)
        self._system.send_system(parent.peer, Heartbeat(pid=self._system.machine.pid))


class HealthChecks:
    """The health of every child process of one actor system that was started with a `Health`. Bounded: by the
    children that live."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._children: dict[int, tuple[Child, ChildHealth]] = {}  # by pid
        self._look_s = math.inf  # between two looks: the shortest time between two heartbeats
        self._timer: asyncio.TimerHandle | None = None

    def add(self, child: Child, health: Health) -> None:
        """Expect heartbeats of a child that was just started."""
        if health.beat_s < self._look_s:
            self._look_s = health.beat_s
            self._look_no_more()  # the next look may be far off
        self._children[child.pid] = (child, ChildHealth(health, self._system.turn_clock.now()))
        self._look_later()

    def forget(self, child: Child) -> None:
        """The child is being stopped; the stop has a deadline of its own."""
        self._children.pop(child.pid, None)

    def beat(self, pid: int) -> None:
        """A heartbeat of this process arrived."""
        known = self._children.get(pid)
        if known is not None:
            known[1].beat(self._system.turn_clock.now())

    def close(self) -> None:
        """Look no more."""
        self._children.clear()
        self._look_no_more()

    def _look_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._look_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now_s = self._system.turn_clock.now()
        for pid, (child, pulse) in list(self._children.items()):
            if child.exit is not None:
                del self._children[pid]
            elif cause := pulse.look(now_s, child.cpu_s):
                del self._children[pid]
                log.error("child process %d is killed: %s", pid, cause)
                self._system.inspection.vitals.recoveries[Recovery.CHILD_KILLED] += 1
                child.kill(cause)
        if self._children:
            self._look_later()
