"""ChildHealth: health check of one child process, from its heartbeats.

It decides when a living child process must be killed. Pure: heartbeats and looks go in with their times, a
cause is returned; no clock, no process.

A process that exits is seen at once. One that is stopped, deadlocked, or held up in a system call is not: it
keeps its names, its device and its work, and nothing ends it. So a child reports over its control link, from
the loop that runs its actors, that the loop runs; a silence of `Health.silent_s` ends it.

The bound is hard, not learnt as that of `detector`: a kill cannot be taken back, and a verdict some seconds
sooner is worth less than one false kill. Two things stretch it to `Health.start_s`:

- a child without a first heartbeat is starting: it imports, it reads from a cold disk, before its loop runs;
- a child that uses the processor is busy: its loop is held up by work, or starved by other processes. A
  stopped or deadlocked child uses none.

All times are those of the parent's `turn_clock`: a parent that was stopped itself received nothing meanwhile.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gleaner.transport.wire import Peer

BEATS = 10
"""Heartbeats in the silence that ends a child: nine that a busy machine holds up are no verdict."""
LATE = 0.5
"""Share of `silent_s` from which the use of the processor is read; before that it has no effect."""
LEAST_CPU_S = 0.05
"""Processor seconds that show work. It is a hundred times what the threads of a stuck process use in a
silence. It is less than 1 % of the default silence, which a starved process gets on any machine that runs."""


@dataclass(frozen=True, slots=True)
class Health:
    """Expected behaviour of a child, in seconds: a heartbeat every `silent_s` / `BEATS`; `silent_s` without
    one end it, `start_s` where it starts or is busy. Raises ValueError unless 0 < silent_s <= start_s."""

    silent_s: float = 10.0
    start_s: float = 120.0

    def __post_init__(self) -> None:
        if not 0 < self.silent_s <= self.start_s:
            raise ValueError(f"{self}: expected 0 < silent_s <= start_s")

    @property
    def beat_s(self) -> float:
        """Between two heartbeats."""
        return self.silent_s / BEATS


@dataclass(frozen=True, slots=True)
class Parent:
    """The process that receives this process's heartbeats, and how often."""

    peer: Peer
    beat_s: float

    def __str__(self) -> str:
        """The form in which a child gets it in its environment; neither an endpoint nor a z85 key has a
        blank."""
        return f"{self.beat_s!r} {self.peer.endpoint} {self.peer.public_key}".strip()

    @classmethod
    def parse(cls, text: str) -> "Parent":
        """The inverse of `str`. Raises ValueError."""
        beat_s, endpoint, *key = text.split()
        return cls(Peer(endpoint, *key), float(beat_s))


class ChildHealth:
    """The health of one child, which was started at `now_s`."""

    def __init__(self, health: Health, now_s: float) -> None:
        self.health = health
        self._beaten = False
        self._last_s = now_s  # the newest heartbeat; at first the start
        self._worked_s = now_s  # when it was last seen to use the processor
        self._cpu_s: float | None = None  # processor seconds at that time

    def beat(self, now_s: float) -> None:
        """A heartbeat came."""
        self._beaten = True
        self._last_s = now_s
        self._cpu_s = None

    def look(self, now_s: float, cpu_s: Callable[[], float]) -> str:
        """The reason to kill the child; "" while it is well. `cpu_s` returns the processor seconds that it
        has used; called only when it is late."""
        silent_s = now_s - self._last_s
        if silent_s < self.health.silent_s * LATE:
            return ""
        since = "" if self._beaten else " since its start"
        if silent_s >= self.health.start_s:
            return f"no heartbeat for {silent_s:.1f} s{since}"
        if not self._beaten:
            return ""
        used_s = cpu_s()
        if self._cpu_s is None:
            self._cpu_s, self._worked_s = used_s, self._last_s
        elif used_s - self._cpu_s >= LEAST_CPU_S:
            self._cpu_s, self._worked_s = used_s, now_s
        idle_s = now_s - max(self._last_s, self._worked_s)
        return f"no heartbeat for {silent_s:.1f} s" if idle_s >= self.health.silent_s else ""
