"""Continuous load balancing: request moves (RLBoost, Algorithm 2, lines 13-27).

Pure: a snapshot of the instances in, at most one round of moves out. It moves nothing: the manager executes
what `decide` returns, and reports what then happened in the next snapshot.

As in the paper, pending requests move first, from the most loaded instance to one that has none and has free
capacity (lines 18-21). Executing requests move only between instances whose speed has been measured (lines
22-27), and never so many that the source falls below the plateau B of its throughput. The paper gives an idle
instance all max(m - B, 0) of the fullest one. This module differs in three points:

- How many: of 200 requests and a B of 30 the paper's rule leaves the idle instance with 170, which is then
  the slow one. Here the number is the one at which both together decode most tokens a second, by the fitted
  curves; with equal speeds that is half of the difference.
- From where to where: the target need not be idle, and the source need not be the fullest. Requests go from
  where one more or less changes throughput least to where it changes it most; with equal speeds and contexts
  those are the fullest and the emptiest.
- Whether: while both are far up their curves, a move only costs a prefill. What it gains until the moved
  requests end must exceed that cost, and noise. So the fleet's tokens a second grow with every move by a
  stated share, and no sequence of moves returns to an earlier state.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gleaner.actors.rollout.dispatch.throughput_table import StepModel

Floats = NDArray[np.float64]

GAIN_SHARE = 0.1
"""Least gain, as a share of the tokens a second of source and target: fitted curves are off by some per cent,
lengths by more."""
GAIN_COSTS = 1.0
"""The gain beyond the cost of a move must be this many times that cost. A request must have this many times
its prefill left to be moved at all: one near its end stays."""
GAIN_S = 1.0
"""Seconds of both instances that a move gains at least: an abort, its last row, a commit and a dispatch take
a good part of one second."""
MOST_MOVES = 512
"""Requests of one round: each is a prefill somewhere, and the next snapshot has newer data."""
SOURCES, TARGETS = 16, 4
"""Instances examined in one round, from the ends of the order: the others are examined in the next one."""

FEW_GATES = 8
"""Gates of a target up to which each is compared, which is quicker than a search."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests on an instance, a column each.

    `context`: tokens of prompt and response so far. `expected`: tokens that it will still generate, in the
    mean. `gate`: which weights it may be decoded under, as a number. `movable`: it may move now.
    """

    tickets: NDArray[np.int64]
    context: Floats
    expected: Floats
    gate: NDArray[np.int64]
    movable: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tickets)

    def only(self, which: NDArray[np.bool_]) -> "Requests":
        """The rows selected by `which`."""
        return Requests(
            self.tickets[which],
            self.context[which],
            self.expected[which],
            self.gate[which],
            self.movable[which],
        )


@dataclass(frozen=True, slots=True)
class Load:
    """An instance in a snapshot.

    Attributes:
        slots: requests that it decodes together.
        gates: whose requests it may take; none if it takes no new ones.
        speed: of its hardware, of any unit that all instances share.
        model: of its decode steps; None until it was measured.
        stays: false if it is about to leave, as an instance does that lends a trainer's device for a while.
        busy: a move from or to it is in progress.
        device: what it shares with others, by name; "": nothing.
        crowded: its device cannot run it at full speed beside the instances that decode.
    """

    id: str
    slots: int
    gates: frozenset[int]
    pending: Requests
    executing: Requests
    speed: float = 1.0
    model: StepModel | None = None
    stays: bool = True
    busy: bool = False
    device: str = ""
    crowded: bool = False

    @property
    def rows(self) -> int:
        """Number of its requests."""
        return len(self.executing) + len(self.pending)

    @property
    def context(self) -> float:
        """Tokens of all its requests."""
        return float(self.executing.context.sum() + self.pending.context.sum())

    @property
    def room(self) -> int:
        """Slots that no request has or waits for."""
        return self.slots - self.rows


@dataclass(frozen=True, slots=True)
class Move:
    """These tickets of `source` go to `target`."""

    source: str
    target: str
    tickets: tuple[int, ...]
    executing: bool


def decide(loads: Sequence[Load]) -> list[Move]:
    """The moves of one round; none if nothing is to be gained. An instance is part of one move at most."""
    return _move_pending(loads) or _move_executing(loads)


def _move_pending(loads: Sequence[Load]) -> list[Move]:
    """Lines 18-21: one request to each instance that has none pending and a free slot, from the one with the
    longest queue, in seconds of work. A request that starts at once leaves its target with none pending
    again."""
    sources = sorted(
        (load for load in loads if not load.busy and load.pending.movable.any()),
        key=lambda load: (-len(load.pending) / load.speed, load.id),
    )
    targets = sorted(
        (load for load in loads if not (load.busy or len(load.pending)) and load.room > 0 and load.gates),
        key=lambda load: (len(load.executing) / load.speed, load.id),
    )
    moves: list[Move] = []
    for source in sources[:SOURCES]:
        for target in targets:
            fit = source.pending.movable & _may(source.pending, target)
            if fit.any():
                last_in_queue = int(source.pending.tickets[fit][-1])
                moves.append(Move(source.id, target.id, (last_in_queue,), executing=False))
                targets.remove(target)
                break
    return moves


def _move_executing(loads: Sequence[Load]) -> list[Move]:
    """Lines 22-27: from where a request more or less matters least to where it matters most."""
    # If no instance stays, as with no preemptible instance, all are alike.
    some_stay = any(load.stays and load.gates for load in loads)
    worth = {load.id: _of_one_more(load, load.model) for load in loads if load.model and not load.busy}
    sources = sorted((load for load in loads if load.id in worth), key=lambda load: (worth[load.id], load.id))
    targets = [
        load
        for load in reversed(sources)
        if load.gates and not len(load.pending) and load.room > 0 and (load.stays or not some_stay)
    ]
    moves: list[Move] = []
    left = MOST_MOVES
    for source in sources[:SOURCES]:
        for target in targets[:TARGETS]:
            if worth[target.id] <= worth[source.id]:
                break
            found = _between(source, target, left)
            if found is not None:
                moves.append(found)
                left -= len(found.tickets)
                targets = [load for load in targets if load.id not in (source.id, target.id)]
                break
    return moves


def _of_one_more(load: Load, model: StepModel) -> float:
    """What one more request would add to the tokens a second of an instance: the slope of its throughput."""
    return model.base_s / max(float(model.step_s(load.rows, load.context)), 1e-9) ** 2


def _between(source: Load, target: Load, most: int) -> Move | None:
    """Move as many as make both together fastest, if that is worth it."""
    here, there, executing = source.model, target.model, source.executing
    if here is None or there is None or not len(executing):
        return None
    if target.crowded and source.device == target.device:
        return None  # the other instances lose what the target gains, and the prefill is lost
    step_s = float(here.step_s(source.rows, source.context))
    prefill_s = executing.context * there.prefill_token_s
    far = executing.expected * step_s > GAIN_COSTS * prefill_s
    fit = np.flatnonzero(executing.movable & far & _may(executing, target))
    plateau = here.plateau(float(executing.context.mean()), source.slots)
    most = min(most, len(fit), target.room, source.rows - plateau)  # lines 24-25
    if most < 1:
        return None
    each = float(executing.context[fit].mean())
    counts = np.arange(1.0, most + 1)
    before = source.rows / step_s + float(there.tokens_s(target.rows, target.context))
    left = here.tokens_s(source.rows - counts, source.context - counts * each)
    got = there.tokens_s(target.rows + counts, target.context + counts * each)
    faster = left + got - before
    cost = counts * float(prefill_s[fit].mean()) * got  # tokens: the target decodes nothing meanwhile
    gain = faster * float(executing.expected[fit].mean()) * step_s - cost
    best = int(np.argmax(gain))
    if faster[best] < GAIN_SHARE * before or gain[best] < max(GAIN_COSTS * cost[best], GAIN_S * before):
        return None
    count = best + 1
    order = fit[np.argsort(-executing.expected[fit], kind="stable")]
    moved = order[np.arange(count) * len(order) // count]  # an even sample: both go on with the same mix
    return Move(source.id, target.id, tuple(executing.tickets[moved].tolist()), executing=True)


def _may(requests: Requests, target: Load) -> NDArray[np.bool_]:
    """Which of these requests the target may decode."""
    if len(target.gates) > FEW_GATES:
        return np.isin(requests.gate, sorted(target.gates))
    may = np.zeros(len(requests), np.bool_)
    for gate in target.gates:
        may |= requests.gate == gate
    return may
