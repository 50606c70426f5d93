"""Vitals: loop lag, rates of actors and asks of a process, at negligible cost.

Owns the samples. Does not own the cells, which it reads, nor the operating system's figures of the process
(processor time, memory), which the edge provides.
"""

import asyncio
import enum
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gleaner.supervisor.watch.turn_clock import TurnClock

LAG_TICKS = 20
"""The reported lag is the worst of so many ticks of the turn clock: a stall stays visible for ten seconds. A
tick that is x late was held up for x by other work."""
RATE_S = 4.75
"""At least so long between two looks at every actor, at a tick: a rate is a mean over five to ten seconds."""
ASK_BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Upper bounds of the histogram: two a decade, from an actor beside the asker to a patient deadline."""
MAX_FAILURES = 16
"""Distinct kinds of failed asks: the classes of `AskFailed` are six."""

Machine = Callable[[], Mapping[str, float]]
"""Figures of this process from outside of the runtime: `cpu_s`, `rss_bytes`, `files`."""


class Recovery(enum.StrEnum):
    """Events from which a process recovers without visible effect."""

    ASK_SENT_AGAIN = "ask sent again"  # no answer arrived in time
    ASK_REPEATED = "ask repeated"  # it arrived again and got the first one's answer
    PEER_SILENT = "peer given up"  # silent for too long: its work goes elsewhere
    PEER_BACK = "peer answers again"  # it was suspected
    CHILD_KILLED = "silent child killed"  # it gave no heartbeat; its supervisor decides what follows


class CellCounters(Protocol):
    """The fields that are read of a cell."""

    handled: int


class AskTimes:
    """Histogram of the seconds from ask to answer, and the asks that failed, by the error's class."""

    def __init__(self) -> None:
        self.counts = [0] * (len(ASK_BOUNDS_S) + 1)
        self.sum_s = 0.0
        self.failed: Counter[str] = Counter()

    def add(self, seconds: float) -> None:
        """An ask was answered."""
        self.counts[bisect_left(ASK_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def fail(self, problem: BaseException) -> None:
        """An ask got an error, or no answer in time."""
        name = type(problem).__name__
        self.failed[name if name in self.failed or len(self.failed) < MAX_FAILURES else "other"] += 1


@dataclass(slots=True)
class _Life:
    """One incarnation: since when it is known, and two earlier counts of its handled messages."""

    incarnation: int
    since_s: float
    handled: int
    handled_before: int


class Vitals:
    """Sampled by the turn clock from `start` on.

    Args:
        actors: the living ones now: name, incarnation and what counts their messages.
    """

    def __init__(self, actors: Callable[[], Iterable[tuple[str, int, CellCounters]]]) -> None:
        self.asks = AskTimes()
        self.recoveries: Counter[str] = Counter()
        """Recoveries of this process, by `Recovery`."""
        self.machine: Machine = dict
        self._actors = actors
        self._lags: deque[float] = deque([0.0], maxlen=LAG_TICKS)
        self._lives: dict[str, _Life] = {}
        self._sampled_s = self._sampled_before_s = 0.0

    @property
    def lag_s(self) -> float:
        """Longest hold-up of the loop within the last `LAG_TICKS` ticks."""
        return max(self._lags)

    def start(self, clock: TurnClock) -> None:
        """Begin; call once, on the running loop."""
        now = asyncio.get_running_loop().time()
        self._sampled_s = self._sampled_before_s = now
        self._sample(now)
        clock.each_tick.append(self._tick)

    def rate(self, name: str, incarnation: int, handled: int, now: float) -> float:
        """Messages a second of an actor that has handled `handled` of them by now."""
        life = self._lives.get(name)
        if life is None or life.incarnation != incarnation:
            return 0.0
        span_s = now - max(life.since_s, self._sampled_before_s)
        return (handled - life.handled_before) / span_s if span_s > 0 else 0.0

    def since_s(self, name: str, incarnation: int) -> float | None:
        """The loop time at which an incarnation was first seen, about `RATE_S` late at most; None for one
        that was not seen yet."""
        life = self._lives.get(name)
        return life.since_s if life is not None and life.incarnation == incarnation else None

    def _tick(self, late_s: float) -> None:
        self._lags.append(late_s)
        now = asyncio.get_running_loop().time()
        if now - self._sampled_s >= RATE_S:
            self._sample(now)

    def _sample(self, now: float) -> None:
        before, lives = self._lives, {}
        for name, incarnation, counted in self._actors():
            life = before.get(name)
            if life is None or life.incarnation != incarnation:
                life = _Life(incarnation, now, counted.handled, counted.handled)
            else:
                life.handled_before, life.handled = life.handled, counted.handled
            lives[name] = life
        self._lives = lives
        self._sampled_before_s, self._sampled_s = self._sampled_s, now
