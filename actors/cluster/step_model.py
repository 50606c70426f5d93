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
from bisect import bisect_right
from collections.abc import Sequence
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
_KINDS = np.array([[[1]], [[2]]], np.int8)
"""The states of requests on engines of the two kinds."""


@dataclass(frozen=True, slots=True)
class Work:
    """One step's work. lengths: response tokens of a sample of its groups; groups, samples: of the batch.
    train_token_s: the trainer's, a token of prompt or response; update_s: after the last group. surplus:
    groups that are rolled out beside these, until the last of these is complete: a short round."""

    lengths: list[list[int]]
    groups: int
    samples: int
    prompt_tokens: float
    train_token_s: float
    update_s: float
    surplus: int = 0


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


def predict(
    work: Work, machines: Machines, windows_s: Floats, instances: Floats, stairs_s: Floats | None = None
) -> Predicted:
    """The step for each pair of a window and a number of instances; all 0 without a group. stairs_s: when
    half of the reserved engines leave for training, inf: with the others; None: in no candidate."""
    candidates = len(windows_s)
    if not work.lengths or not work.groups:
        return Predicted(np.zeros(candidates), np.zeros(candidates))
    stairs = np.full(candidates, np.inf) if stairs_s is None else stairs_s
    run = _Rollout(work, machines, windows_s, instances, stairs)
    done = run.to_the_end()[:, run.counts]
    rolled_s = done.max(axis=1)
    windows = np.where(instances > 0, np.minimum(windows_s, rolled_s), rolled_s)
    return Predicted(rolled_s, _trained(work, run.counted, done, windows, np.minimum(stairs, windows)))


class _Engines:
    """The engines of both kinds, for every candidate: their numbers and decode times. Arrays of kinds x
    candidates, the reserved kind first."""

    def __init__(self, paces: Sequence[EnginePace], factor: float, count: Floats, weight: float) -> None:
        self.step_s = np.array([[pace.step_s * factor] for pace in paces])
        self.row_s = np.array([[pace.row_s * factor] for pace in paces])
        self.context_s = np.array([[pace.context_s * factor] for pace in paces])
        self.prefill_s = np.array([[factor * _prefill_token_s(pace)] for pace in paces])
        self.count = count
        self.there = count > 0
        self.least = np.maximum(count, 1e-9)
        room = [float(pace.cache_tokens) if pace.cache_tokens > 0 else math.inf for pace in paces]
        rows = [float(pace.slots) if pace.slots > 0 else math.inf for pace in paces]
        self.room = np.zeros_like(count)  # in tokens and requests of the sample
        self.rows = np.zeros_like(count)
        for kind, there in enumerate(self.there):
            self.room[kind, there] = room[kind] * count[kind, there] / weight
            self.rows[kind, there] = rows[kind] * count[kind, there] / weight
        self.weight = weight
        self.share = weight / self.least  # of an engine, for each request of the sample
        self.stall_s = np.zeros_like(count)  # of its engines, by prefills
        self.stalls = False  # some of them are stalled

    def halve(self, which: Bools) -> None:
        """Half of the reserved engines of these candidates are gone."""
        for of in (self.count, self.room, self.rows):
            of[0, which] /= 2
        self.least = np.maximum(self.count, 1e-9)
        self.share = self.weight / self.least

    def token_s(self, rows: Counts, context: Floats) -> Floats:
        """Seconds of a token of all decoded requests; of the sample, all engines together."""
        seconds: Floats = self.step_s + (self.row_s * rows + self.context_s * context) * self.share
        return np.maximum(seconds, 1e-9, out=seconds)


class _Rollout:
    """See the module: the state of all candidates."""

    def __init__(
        self, work: Work, machines: Machines, windows_s: Floats, instances: Floats, stairs_s: Floats
    ) -> None:
        groups = _shuffled([*((group, True) for group in work.lengths), *_surplus(work)])
        self.counted = [group for group, counts in groups if counts]
        self.counts = np.array([counts for group, counts in groups for _ in group])
        self.ends = np.array([max(1, length) for group, _ in groups for length in group], np.float64)
        weight = (work.groups + work.surplus) * work.samples / len(self.ends)
        self.prompt = work.prompt_tokens
        self.windows_s = np.where(instances > 0, windows_s, np.inf)
        self.stairs_s = np.where(stairs_s < self.windows_s, stairs_s, np.inf)
        self.start_s = machines.start_s
        candidates = len(windows_s)
        count = np.stack((
            np.full(candidates, float(machines.engines)), instances * machines.instance_engines
        ))  # fmt: skip
        self.engines = _Engines((machines.reserved, machines.preemptible), machines.pace, count, weight)
        self.all_engines = np.maximum(count[0] + count[1], 1e-9)
        self.made = np.zeros((candidates, len(self.ends)))
        self.done_s = np.full((candidates, len(self.ends)), np.inf)
        # State of a request: 0 waiting, 1 on a reserved engine, 2 on a preemptible one, 3 complete.
        self.where = np.zeros((candidates, len(self.ends)), np.int8)
        self.left = int(self.where.size)  # requests that are not complete
        self.closing_s = sorted(self.windows_s.tolist())
        self.handed_over = 0  # candidates whose window is over
        self.on = np.zeros(count.shape, np.bool_)  # the engines that decode now
        self.on[0] = True
        self.slice_s = self._guess_s() / SLICES

    def _guess_s(self) -> float:
        """About as long as the candidate takes that has fewest engines."""
        engines = np.where(self.windows_s > 0, self.engines.count[0], 0.0) + self.engines.count[1]
        tokens = float(self.ends.sum()) * self.engines.weight
        least = max(float(engines.min()), 0.5)
        rows = max(1.0, min(self.engines.weight * len(self.ends) / least, 256.0))
        context = rows * (self.prompt + float(self.ends.mean()) / 2)
        step_s = float(self.engines.step_s.max())
        one = step_s + context * float(self.engines.context_s.max())
        return max(tokens * one / rows / least, float(self.ends.max()) * step_s, 1e-6)

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
        halved = now_s >= self.stairs_s
        if np.count_nonzero(halved):
            self._halve(halved)
        over = bisect_right(self.closing_s, now_s)
        if over > self.handed_over:
            self.handed_over = over
            self.on[0] = now_s < self.windows_s
            self._hand_over(~self.on[0])
        if now_s >= self.start_s:
            self.on[1] = self.engines.there[1]
            if over < len(self.closing_s):
                self._even_out(self.on[0] & self.on[1])
        self._admit()
        self._decode(now_s)

    def _halve(self, halved: Bools) -> None:
        """Every second request of a reserved engine waits again, in front."""
        self.stairs_s[halved] = np.inf
        self.engines.halve(halved)
        self.all_engines = np.maximum(self.engines.count.sum(axis=0), 1e-9)
        here = (self.where == 1) & halved[:, None]
        self.where[here & (np.cumsum(here, axis=1) % 2 == 1)] = 0

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
        mine = self.where == _KINDS
        rows = _counted(mine)
        even = (rows[0] + rows[1]) / self.all_engines * self.engines.count
        excess = np.floor(rows - even)
        excess = np.where(idle & (excess > 1 + CLEARLY_MORE * even), excess, 0.0)
        for kind in np.flatnonzero(excess.any(axis=1)):
            older = np.cumsum(mine[kind], axis=1) <= (rows[kind] - excess[kind])[:, None]
            self.where[mine[kind] & ~older] = 0

    def _admit(self) -> None:
        waits = self.where == 0
        if not np.count_nonzero(waits):
            return
        engines, queued = self.engines, _counted(waits)
        queue = queued.astype(np.float64)
        size = self._tokens(waits, queued) / np.maximum(queue, 1.0)
        mine = self.where == _KINDS
        rows = _counted(mine)
        # The number of further requests of this size that fit.
        room = (engines.room - self._tokens(mine, rows)) / np.maximum(size, 1e-9)
        room = np.minimum(engines.rows - rows, room)
        lonely = (rows == 0) & engines.there
        reserved, remote = np.where(self.on, np.maximum(room, lonely), 0.0)
        # If all requests fit, engines get equally many.
        decode = engines.count * self.on
        total = queue + rows[0] + rows[1]
        fair = total * decode[0] / np.maximum(decode[0] + decode[1], 1e-9) - rows[0]
        reserved = np.minimum(np.maximum(np.maximum(fair, queue - remote), 0.0), np.minimum(reserved, queue))
        remote = np.minimum(np.maximum(queue - reserved, 0.0), remote)
        both = np.floor(reserved + remote + 1e-9)
        if not np.count_nonzero(both):
            return
        share = np.where(both > 0, reserved / np.maximum(reserved + remote, 1e-9), 0.0)[:, None]
        rank = np.cumsum(waits, axis=1)
        enters = waits & (rank <= both[:, None])
        local = enters & (np.floor(rank * share + 1e-9) > np.floor((rank - 1) * share + 1e-9))
        self._prefill(np.stack((local, enters & ~local)))
        self.where[enters] = 2
        self.where[local] = 1

    def _tokens(self, which: Bools, rows: Counts) -> Floats:
        """Tokens in the caches of these requests, with their prompts. rows: how many they are."""
        made: Floats = np.einsum("ij,...ij->...i", self.made, which.astype(np.float64))
        made += self.prompt * rows
        return made

    def _prefill(self, enters: Bools) -> None:
        engines = self.engines
        tokens = self._tokens(enters, _counted(enters)) * engines.weight
        engines.stall_s += tokens * engines.prefill_s / engines.least
        engines.stalls = True

    def _decode(self, now_s: float) -> None:
        engines = self.engines
        mine = (self.where == _KINDS) & self.on[:, :, None]
        rows: Counts = _counted(mine)
        # Requests that have outgrown the caches pause, the last ones first; one is always decoded.
        context = self._tokens(mine, rows)
        full_caches = context > engines.room
        if np.count_nonzero(full_caches):
            for kind in np.flatnonzero(full_caches.any(axis=1)):
                held = np.cumsum((self.made + self.prompt) * mine[kind], axis=1)
                fits = held <= engines.room[kind][:, None]
                mine[kind] &= fits | (np.cumsum(mine[kind], axis=1) == 1)
            rows = _counted(mine)
            context = self._tokens(mine, rows)
        decodes_s: Floats | float = self.slice_s
        if engines.stalls:
            # Prefills pass while their kind decodes anything.
            decodes: Bools = np.logical_or.reduce(rows, axis=1, keepdims=True)
            stalled_s: Floats = np.minimum(engines.stall_s, self.slice_s) * (self.on & decodes)
            engines.stall_s -= stalled_s
            engines.stalls = bool(np.count_nonzero(engines.stall_s))
            decodes_s = self.slice_s - stalled_s
        token_s = engines.token_s(rows, context)
        more = mine * (decodes_s / token_s)[:, :, None]
        self.made += more[0]
        self.made += more[1]
        full = mine & (self.made >= self.ends)
        ended = int(np.count_nonzero(full))
        if ended:
            late_s = (self.made - self.ends) * token_s[:, :, None]
            done_s = now_s + self.slice_s - np.clip(late_s, 0.0, self.slice_s)
            for at in range(len(full)):
                self.done_s[full[at]] = done_s[at][full[at]]
            self.where[full[0] | full[1]] = 3
            self.left -= ended


def _prefill_token_s(pace: EnginePace) -> float:
    """Seconds of the prefill of a token, near what is usual."""
    usual_s = pace.step_s / PREFILLED_IN_A_STEP
    measured_s = pace.prefill_token_s or usual_s
    return min(max(measured_s, usual_s / PREFILL_OFF), usual_s * PREFILL_OFF)


def _counted(which: Bools) -> Counts:
    """How many there are, by candidate."""
    rows: Counts = np.add.reduce(which, axis=-1, dtype=np.int64)
    return rows


def _shuffled(groups: list[tuple[list[int], bool]]) -> list[tuple[list[int], bool]]:
    """The same groups in an order that is independent of their lengths, always the same one."""
    order = sorted(range(len(groups)), key=lambda at: (at * _GOLDEN) % 1.0)
    return [groups[at] for at in order]


def _surplus(work: Work) -> list[tuple[list[int], bool]]:
    """Groups that do not count. They run until the longest response that counts is complete, so each is one
    of the longest that count, with a response of that length."""
    count = round(work.surplus * len(work.lengths) / work.groups) if work.groups else 0
    edge = max(map(max, work.lengths))
    longest = sorted(work.lengths, key=max)[-max(1, len(work.lengths) // 4) :]
    return [([*longest[at % len(longest)][:-1], edge], False) for at in range(count)]


def _trained(
    work: Work, groups: list[list[int]], done_s: Floats, windows_s: Floats, stairs_s: Floats
) -> Floats:
    """When the trainer is done with it. groups: the lengths of those that count, as in done_s. windows_s:
    when it has all devices; stairs_s: when it has half of them, at most that."""
    count = len(groups)
    sampled = np.array([len(group) for group in groups])
    starts = np.cumsum(sampled) - sampled
    complete_s = np.maximum.reduceat(done_s, starts, axis=1)
    lengths = [length for group in groups for length in group]
    tokens = np.add.reduceat(np.array(lengths, np.float64) + work.prompt_tokens, starts)
    seconds = tokens * (work.train_token_s * work.samples / sampled * work.groups / count)
    order = np.argsort(complete_s, axis=1, kind="stable")
    arrived_s = np.take_along_axis(complete_s, order, axis=1)
    # In seconds of all devices: before its window it has gained half of a second in each.
    early, window = ((windows_s - stairs_s) / 2)[:, None], windows_s[:, None]
    half = np.clip((arrived_s - stairs_s[:, None]) / 2, 0.0, early)
    begun = half + np.maximum(arrived_s - window, 0.0)
    left = np.cumsum(seconds[order][:, ::-1], axis=1)[:, ::-1]
    needs = (begun + left).max(axis=1)
    on_half = needs <= early[:, 0]
    ends: Floats = np.where(on_half, stairs_s + 2 * needs, windows_s + needs - early[:, 0]) + work.update_s
    return ends
