"""Model of a whole step: its time for a seeding window and a number of instances.

Owns the arithmetic from lengths, engines and trainer to seconds. Pure.

The model decodes a sample of the coming batch in slices of time, on the engines of both kinds, for many
windows and numbers of instances at once (arrays of candidates x requests):

- an engine's decode step takes `step_s + rows * row_s + context * context_s`
  (`gleaner.actors.protocol.throughput`) and gives each request that it decodes one token; the load is even,
  within a kind and between them;
- requests wait in order of arrival for a slot and free capacity in a cache; when they outgrow the caches, the
  last ones pause;
- reserved engines begin at once and stop at the window's end; their requests go on elsewhere, in front, and
  are prefilled there; preemptible ones begin when they have the weights;
- the trainer begins when the window ends and takes complete groups as they arrive (RLBoost 4.1): with c_j the
  completion of group j and w_j the seconds to train on it, it ends at the largest, over all j, of
  `max(window, c_j) + (w of all groups that are not complete before c_j)`.

The model leaves out differences between engines of a kind, the size of micro-batches, and rewards.
`Factors.pace`, learnt from measured steps, accounts for all of these.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gleaner.actors.protocol.throughput import EnginePace

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Counts = NDArray[np.int64]

SLICES = 64  # of the time of the rollout
MOST_SLICES = 5 * SLICES
PREFILLED_IN_A_STEP = 256.0
"""Tokens whose prefill takes as long as a decode step with an empty cache, until that was measured: the
computation of a device while it reads its memory once (H100 295 operations a byte, H200 206, A100 153, L40S
419, at most)."""
PREFILL_OFF = 4.0
"""A measured prefill is accepted within this factor of that: it is estimated from turns that decode too,
which is rough for short windows."""
CLEARLY_MORE = 0.1  # of what would be even
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Work:
    """One step's work. lengths: response tokens of a sample of its groups; groups, samples: of the batch.
    train_token_s: the trainer's, a token of prompt or response; update_s: after the last group."""

    lengths: list[list[int]]
    groups: int
    samples: int
    prompt_tokens: float
    train_token_s: float
    update_s: float


@dataclass(frozen=True, slots=True)
class Machines:
    """Engines. reserved, preemptible: one of each; engines: of the reserved hosts; instance_engines: of a
    preemptible one; start_s: until it has the weights. pace: factor on all times of engines."""

    reserved: EnginePace
    preemptible: EnginePace
    engines: float
    instance_engines: float
    start_s: float
    pace: float = 1.0


@dataclass(frozen=True, slots=True)
class Predicted:
    """By candidate, seconds from the step's start to the last response, and to the end of training."""

    rolled_s: Floats
    end_s: Floats


def predict(work: Work, machines: Machines, windows_s: Floats, instances: Floats) -> Predicted:
    """The step for each pair of a window and a number of instances; all 0 without a group."""
    candidates = len(windows_s)
    if not work.lengths or not work.groups:
        return Predicted(np.zeros(candidates), np.zeros(candidates))
    run = _Rollout(work, machines, windows_s, instances)
    done = run.to_the_end()
    return Predicted(done.max(axis=1), _trained(work, run.groups_of, done, windows_s, instances))


class _Kind:
    """The engines of one kind, for every candidate: their number and their decode times."""

    def __init__(self, pace: EnginePace, factor: float, count: Floats, weight: float) -> None:
        self.step_s, self.row_s = pace.step_s * factor, pace.row_s * factor
        self.context_s = pace.context_s * factor
        usual_s = pace.step_s / PREFILLED_IN_A_STEP
        measured_s = pace.prefill_token_s or usual_s
        self.prefill_s = factor * min(max(measured_s, usual_s / PREFILL_OFF), usual_s * PREFILL_OFF)
        self.count = count  # (candidates,)
        room = float(pace.cache_tokens) if pace.cache_tokens > 0 else math.inf
        rows = float(pace.slots) if pace.slots > 0 else math.inf
        self.room = np.full_like(count, 0.0)  # (candidates,), in tokens and requests of the sample
        self.rows = np.full_like(count, 0.0)
        self.room[count > 0] = room * count[count > 0] / weight
        self.rows[count > 0] = rows * count[count > 0] / weight
        self.weight = weight
        self.share = weight / np.maximum(count, 1e-9)  # of an engine, for each request of the sample
        self.stall_s = np.zeros_like(count)  # of its engines, by prefills
        self.stalls = False  # some of them are stalled

    def token_s(self, rows: Counts, context: Floats) -> Floats:
        """Seconds of a token of all decoded requests; of the sample, all engines together."""
        seconds: Floats = self.step_s + (self.row_s * rows + self.context_s * context) * self.share
        return np.maximum(seconds, 1e-9, out=seconds)


class _Rollout:
    """See the module: the state of all candidates."""

    def __init__(self, work: Work, machines: Machines, windows_s: Floats, instances: Floats) -> None:
        groups = _shuffled(work.lengths)
        self.groups_of = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        self.ends = np.array([max(1, length) for group in groups for length in group], np.float64)
        weight = work.groups * work.samples / len(self.ends)
        self.prompt = work.prompt_tokens
        self.windows_s = np.where(instances > 0, windows_s, np.inf)
        self.start_s = machines.start_s
        candidates = len(windows_s)
        reserved = np.full(candidates, float(machines.engines))
        self.reserved = _Kind(machines.reserved, machines.pace, reserved, weight)
        remote = instances * machines.instance_engines
        self.remote = _Kind(machines.preemptible, machines.pace, remote, weight)
        self.made = np.zeros((candidates, len(self.ends)))
        self.done_s = np.full((candidates, len(self.ends)), np.inf)
        # State of a request: 0 waiting, 1 on a reserved engine, 2 on a preemptible one, 3 complete.
        self.where = np.zeros((candidates, len(self.ends)), np.int8)
        self.left = self.where.size  # requests that are not complete
        self.handed_over = 0  # candidates whose window is over
        self.slice_s = self._guess_s() / SLICES

    def _guess_s(self) -> float:
        """About as long as the candidate takes that has fewest engines."""
        engines = np.where(self.windows_s > 0, self.reserved.count, 0.0) + self.remote.count
        tokens = float(self.ends.sum()) * self.reserved.weight
        least = max(float(engines.min()), 0.5)
        rows = max(1.0, min(self.reserved.weight * len(self.ends) / least, 256.0))
        context = rows * (self.prompt + float(self.ends.mean()) / 2)
        one = max(self.reserved.step_s, self.remote.step_s) + context * max(
            self.reserved.context_s, self.remote.context_s
        )
        alone = float(self.ends.max()) * max(self.reserved.step_s, self.remote.step_s)
        return max(tokens * one / rows / least, alone, 1e-6)

    def to_the_end(self) -> Floats:
        """Seconds until each response is complete (candidates x requests)."""
        now_s = 0.0
        for _ in range(MOST_SLICES):
            if not self.left:
                break
            self._slice(now_s)
            now_s += self.slice_s
        done_s: Floats = np.minimum(self.done_s, now_s)
        return done_s

    def _slice(self, now_s: float) -> None:
        seeds = now_s < self.windows_s
        rolls = (self.remote.count > 0) & (now_s >= self.start_s)
        seeding, rolling = int(np.count_nonzero(seeds)), int(np.count_nonzero(rolls))
        if len(seeds) - seeding > self.handed_over:
            self.handed_over = len(seeds) - seeding
            self._hand_over(~seeds)
        if seeding and rolling:
            self._even_out(seeds & rolls)
        self._admit(seeds, rolls)
        if seeding:
            self._decode(1, self.reserved, seeds, now_s)
        if rolling:
            self._decode(2, self.remote, rolls, now_s)

    def _hand_over(self, over: Bools) -> None:
        """The window is over: unfinished requests wait in front, because they arrived first. After it none
        begins on a reserved engine."""
        self.where[(self.where == 1) & over[:, None]] = 0

    def _even_out(self, both: Bools) -> None:
        """If no request waits and engines of one kind have clearly more than those of the other, move the
        excess, as ContinuousLB does, the youngest first."""
        if not np.count_nonzero(both):
            return
        idle = both & ~(self.where == 0).any(axis=1)
        if not np.count_nonzero(idle):
            return
        rows = {number: _counted(self.where == number) for number in (1, 2)}
        each = (rows[1] + rows[2]) / np.maximum(self.reserved.count + self.remote.count, 1e-9)
        for number, kind in ((1, self.reserved), (2, self.remote)):
            excess = np.floor(rows[number] - each * kind.count)
            excess = np.where(idle & (excess > 1 + CLEARLY_MORE * each * kind.count), excess, 0.0)
            if excess.any():
                mine = self.where == number
                older = np.cumsum(mine, axis=1) <= (rows[number] - excess)[:, None]
                self.where[mine & ~older] = 0

    def _admit(self, seeds: Bools, rolls: Bools) -> None:
        waits = self.where == 0
        if not np.count_nonzero(waits):
            return
        queued = _counted(waits)
        queue = queued.astype(np.float64)
        size = self._tokens(waits, queued) / np.maximum(queue, 1.0)
        free, there = self._free(1, self.reserved, size)
        reserved = np.where(seeds, free, 0.0)
        free, elsewhere = self._free(2, self.remote, size)
        remote = np.where(rolls, free, 0.0)
        # If all requests fit, engines get equally many.
        engines = self.reserved.count * seeds + self.remote.count * rolls
        total = queue + there + elsewhere
        fair = total * self.reserved.count * seeds / np.maximum(engines, 1e-9) - there
        reserved = np.minimum(np.maximum(np.maximum(fair, queue - remote), 0.0), np.minimum(reserved, queue))
        remote = np.minimum(np.maximum(queue - reserved, 0.0), remote)
        both = np.floor(reserved + remote + 1e-9)
        if not np.count_nonzero(both):
            return
        share = np.where(both > 0, reserved / np.maximum(reserved + remote, 1e-9), 0.0)[:, None]
        rank = np.cumsum(waits, axis=1)
        enters = waits & (rank <= both[:, None])
        local = enters & (np.floor(rank * share + 1e-9) > np.floor((rank - 1) * share + 1e-9))
        self._prefill(local, self.reserved)
        self._prefill(enters & ~local, self.remote)
        self.where[enters] = 2
        self.where[local] = 1

    def _free(self, number: int, kind: _Kind, size: Floats) -> tuple[Floats, Counts]:
        """The number of further requests of this size that fit, and of those that are there."""
        mine = self.where == number
        rows: Counts = _counted(mine)
        context = self._tokens(mine, rows)
        room = np.minimum(kind.rows - rows, (kind.room - context) / np.maximum(size, 1e-9))
        lonely = (rows == 0) & (kind.count > 0)
        free: Floats = np.where(lonely, np.maximum(room, 1.0), np.maximum(room, 0.0))
        return free, rows

    def _tokens(self, which: Bools, rows: Counts) -> Floats:
        """Tokens in the caches of these requests, with their prompts. rows: how many they are."""
        made: Floats = np.einsum("ij,ij->i", self.made, which.astype(np.float64))
        made += self.prompt * rows
        return made

    def _prefill(self, enters: Bools, kind: _Kind) -> None:
        if not np.count_nonzero(enters):
            return
        rows = _counted(enters)
        kind.stalls = True
        tokens = self._tokens(enters, rows) * kind.weight
        kind.stall_s += tokens * kind.prefill_s / np.maximum(kind.count, 1e-9)

    def _decode(self, number: int, kind: _Kind, on: Bools, now_s: float) -> None:
        mine = (self.where == number) & on[:, None]
        if not np.count_nonzero(mine):
            return
        rows: Counts = _counted(mine)
        # Requests that have outgrown the caches pause, the last ones first; one is always decoded.
        context = self._tokens(mine, rows)
        if np.count_nonzero(context > kind.room):
            held = np.cumsum((self.made + self.prompt) * mine, axis=1)
            mine &= (held <= kind.room[:, None]) | (np.cumsum(mine, axis=1) == 1)
            rows = _counted(mine)
            context = self._tokens(mine, rows)
        decodes_s: Floats | float = self.slice_s
        if kind.stalls:
            stalled_s = np.minimum(kind.stall_s, self.slice_s) * on
            kind.stall_s -= stalled_s
            kind.stalls = bool(np.count_nonzero(kind.stall_s))
            decodes_s = self.slice_s - stalled_s
        token_s = kind.token_s(rows, context)
        self.made += mine * (decodes_s / token_s)[:, None]
        full = mine & (self.made >= self.ends)
        if np.count_nonzero(full):
            late_s = (self.made - self.ends) * token_s[:, None]
            self.done_s[full] = (now_s + self.slice_s - np.clip(late_s, 0.0, self.slice_s))[full]
            self.where[full] = 3
            self.left -= int(np.count_nonzero(full))


def _counted(which: Bools) -> Counts:
    """How many there are, by candidate."""
    rows: Counts = np.add.reduce(which, axis=1, dtype=np.int64)
    return rows


def _shuffled(lengths: list[list[int]]) -> list[list[int]]:
    """The same groups in an order that is independent of their lengths, always the same one."""
    order = sorted(range(len(lengths)), key=lambda at: (at * _GOLDEN) % 1.0)
    return [lengths[at] for at in order]


def _trained(
    work: Work, groups_of: NDArray[np.int64], done_s: Floats, windows_s: Floats, instances: Floats
) -> Floats:
    """When the trainer is done with it."""
    count = int(groups_of[-1]) + 1
    starts = np.flatnonzero(np.diff(groups_of, prepend=-1))
    complete_s = np.maximum.reduceat(done_s, starts, axis=1)
    lengths = [length for group in _shuffled(work.lengths) for length in group]
    tokens = np.add.reduceat(np.array(lengths, np.float64) + work.prompt_tokens, starts)
    sampled = np.diff(np.append(starts, len(groups_of)))
    seconds = tokens * (work.train_token_s * work.samples / sampled * work.groups / count)
    rolled_s = done_s.max(axis=1)
    window_s = np.where(instances > 0, np.minimum(windows_s, rolled_s), rolled_s)
    order = np.argsort(complete_s, axis=1, kind="stable")
    begun_s = np.maximum(np.take_along_axis(complete_s, order, axis=1), window_s[:, None])
    left_s = np.cumsum(seconds[order][:, ::-1], axis=1)[:, ::-1]
    ends: Floats = (begun_s + left_s).max(axis=1) + work.update_s
    return ends
