"""TurnOrder: the order and the pace of one process's turns, drawn from a seed.

Without it turns take no time and run first come, first served, so nothing ever happens between two awaits of
a process that are due at one moment. With it a pass of the process's loop takes time, and what became ready
meanwhile runs in the next pass:

- first the callbacks of the pass before, in their order, as asyncio promises. Tasks among them take each
  other's places at random: no code may depend on which of two ready tasks runs first (random scheduling, as
  in Burckhardt et al., A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs, ASPLOS 2010);
- then the events, in any order: messages, disks and pieces of work come through a kernel, which keeps no
  order between two sockets. Timers of the process keep their order among themselves, as in asyncio's heap.

Owns what is drawn. `ready_queue.PassQueue` holds the waiting turns.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable

from gleaner.sim.ready_queue import AnyTurn, ReadyTimer

QUICKEST_S, SLOWEST_S = 20e-6, 5e-3
"""Range of the mean duration of a process's passes. A quick loop that handles one message takes the first;
one that handles a step's worth of samples the second."""
LONG = 0.01  # share of passes that take ten times as long: a large message, a collection of garbage
LONGEST_S = 0.1  # of all passes; far below the silences that end a process
DEVICES = "gleaner.sim."
"""Modules whose timers are events of hardware: the network, disks, pieces of work."""


class TurnOrder:
    """See the module.

    Args:
        seed: of all its draws; it differs between processes.
    """

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)
        self._mean_s: float = QUICKEST_S * (SLOWEST_S / QUICKEST_S) ** self._rng.random()

    def pass_s(self) -> float:
        """Seconds of the next pass."""
        seconds = -self._mean_s * math.log(1.0 - self._rng.random())
        if self._rng.random() < LONG:
            seconds *= 10.0
        return min(seconds, LONGEST_S)

    def arranged(self, turns: list[AnyTurn]) -> list[AnyTurn]:
        """The turns of one pass, in the order in which they run."""
        if len(turns) < 2:
            return turns
        soon: list[AnyTurn] = [turn for turn in turns if not isinstance(turn, ReadyTimer)]
        events: list[AnyTurn] = [turn for turn in turns if isinstance(turn, ReadyTimer)]
        timers = [turn for turn in events if _of_process(turn)]
        tasks = [turn for turn in soon if _of_task(turn)]
        self._rng.shuffle(tasks)
        self._rng.shuffle(events)
        return [*_replaced(soon, _of_task, tasks), *_replaced(events, _of_process, timers)]


def _replaced(turns: list[AnyTurn], which: Callable[[AnyTurn], bool], others: list[AnyTurn]) -> list[AnyTurn]:
    """The turns, those for which `which` is true replaced by the others in their order."""
    other = iter(others)
    return [next(other) if which(turn) else turn for turn in turns]


def _of_task(turn: AnyTurn) -> bool:
    return isinstance(getattr(turn._callback, "__self__", None), asyncio.Task)


def _of_process(turn: AnyTurn) -> bool:
    """A timer that the process set itself."""
    return not str(getattr(turn._callback, "__module__", "")).startswith(DEVICES)
