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

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from gleaner.actors.cluster.step_engines import Bools, Counts, Engines, Floats
from gleaner.actors.protocol.throughput import EnginePace

SLICES = 64  # of the time of the rollout
MOST_SLICES = 5 * SLICES
LOOKS_EVERY = 4  # slices: at what can be left out
LEFT_OUT = 0.2  # of the arrays, at least: copies of them cost time too
CLEARLY_MORE = 0.1  # of what would be even
_GOLDEN = 0.6180339887498949
_KINDS = np.array([[[1]], [[2]]], np.int8)
"""The states of requests on engines of the two kinds."""
_WAITS_OR_RUNS = np.array([[[0]], [[1]], [[2]]], np.int8)
_COMPLETE = 3


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
    work: Work,
    machines: Machines,
    windows_s: Floats,
    instances: Floats,
    stairs_s: Floats | None = None,
    *,
    earliest: bool = False,
) -> Predicted:
    """The step for each pair of a window and a number of instances; all 0 without a group. stairs_s: when
    half of the reserved engines leave for training, inf: with the others; None: in no candidate. earliest: of
    the times only the least `end_s` is wanted, so what cannot end then is not followed to its end."""
    candidates = len(windows_s)
    if not work.lengths or not work.groups:
        return Predicted(np.zeros(candidates), np.zeros(candidates))
    stairs = np.full(candidates, np.inf) if stairs_s is None else stairs_s
    run = _Rollout(work, machines, windows_s, instances, stairs)
    for number in range(MOST_SLICES):
        if not run.left:
            break
        if number % LOOKS_EVERY == 0:
            if earliest and np.count_nonzero(complete := run.complete()):
                ends_s = _so_far(work, run, windows_s, instances, stairs).end_s
                run.give_up(ends_s > ends_s[complete].min())
            run.forget()
        run.slice()
    return _so_far(work, run, windows_s, instances, stairs)


def _so_far(work: Work, run: "_Rollout", windows_s: Floats, instances: Floats, stairs_s: Floats) -> Predicted:
    """The steps as if what is not complete were complete now: not longer than they will be."""
    done_s = np.minimum(run.done_s, run.now_s)[:, run.counts]
    rolled_s = done_s.max(axis=1)
    windows = np.where(instances > 0, np.minimum(windows_s, rolled_s), rolled_s)
    return Predicted(rolled_s, _trained(work, run.counted, done_s, windows, np.minimum(stairs_s, windows)))


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
        self.stairs = bool(np.isfinite(self.stairs_s).any())
        self.start_s = machines.start_s
        candidates = len(windows_s)
        count = np.stack((
            np.full(candidates, float(machines.engines)), instances * machines.instance_engines
        ))  # fmt: skip
        self.engines = Engines((machines.reserved, machines.preemptible), machines.pace, count, weight)
        self.all_engines = np.maximum(count[0] + count[1], 1e-9)
        self.candidates, self.requests = np.arange(candidates), np.arange(len(self.ends))  # not left out
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
        self.now_s = 0.0

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

    def slice(self) -> None:
        """Decode for one slice of time."""
        now_s = self.now_s
        if self.stairs and np.count_nonzero(halved := now_s >= self.stairs_s):
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
        self.now_s += self.slice_s

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
        idle = both & self.where.all(axis=1)
        if not np.count_nonzero(idle):
            return
        mine = self.where == _KINDS
        rows = np.add.reduce(mine, axis=-1, dtype=np.int64)
        even = (rows[0] + rows[1]) / self.all_engines * self.engines.count
        excess = np.floor(rows - even)
        moves = idle & (excess > 1 + CLEARLY_MORE * even)
        if not np.count_nonzero(moves):
            return
        for kind in np.flatnonzero(moves.any(axis=1)):
            stay = np.where(moves[kind], rows[kind] - excess[kind], rows[kind])
            older = np.cumsum(mine[kind], axis=1) <= stay[:, None]
            self.where[mine[kind] & ~older] = 0

    def _admit(self) -> None:
        if self.where.all():  # none waits
            return
        engines, waits_or_runs = self.engines, self.where == _WAITS_OR_RUNS
        counted, tokens = self._counted(waits_or_runs)
        waits, queue, rows = waits_or_runs[0], counted[0], counted[1:]
        size = tokens[0] / np.maximum(queue, 1.0)
        # The number of further requests of this size that fit.
        room = (engines.room - tokens[1:]) / np.maximum(size, 1e-9)
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
        share = np.where(both > 0, reserved / np.maximum(reserved + remote, 1e-9), 0.0)
        ranks = np.cumsum(waits, axis=1)
        candidate, request = _where(waits & (ranks <= both[:, None]))
        rank, share = ranks[candidate, request], share[candidate]
        local = np.floor(rank * share + 1e-9) > np.floor((rank - 1) * share + 1e-9)
        kind = np.where(local, 0, 1)
        self.where[candidate, request] = kind + 1
        self._prefill(kind, candidate, self.made[candidate, request] + self.prompt)

    def _counted(self, which: Bools) -> tuple[Floats, Floats]:
        """How many these requests are, and their tokens in the caches with those of their prompts."""
        each = which.astype(np.float64)
        rows: Floats = np.add.reduce(each, axis=-1)
        return rows, np.vecdot(self.made, each) + self.prompt * rows

    def _prefill(self, kind: Counts, candidate: Counts, tokens: Floats) -> None:
        """Requests with so many tokens begin on engines of these kinds."""
        engines = self.engines
        at = kind * engines.count.shape[1] + candidate
        sums = np.bincount(at, tokens, engines.count.size).reshape(engines.count.shape)
        engines.stall_s += sums * engines.weight * engines.prefill_s / engines.least
        engines.stalls = True

    def _decode(self, now_s: float) -> None:
        engines = self.engines
        mine = self.where == _KINDS
        rows, context = self._counted(mine)
        # Requests that have outgrown the caches pause, the last ones first; one is always decoded.
        full_caches = context > engines.room
        if np.count_nonzero(full_caches):
            for kind in np.flatnonzero(full_caches.any(axis=1)):
                held = np.cumsum((self.made + self.prompt) * mine[kind], axis=1)
                fits = held <= engines.room[kind][:, None]
                mine[kind] &= fits | (np.cumsum(mine[kind], axis=1) == 1)
            rows, context = self._counted(mine)
        decodes_s: Floats | float = self.slice_s
        if engines.stalls:
            # Prefills pass while their kind decodes anything.
            stalled_s: Floats = np.minimum(engines.stall_s, self.slice_s) * (rows > 0)
            engines.stall_s -= stalled_s
            engines.stalls = bool(np.count_nonzero(engines.stall_s))
            decodes_s = self.slice_s - stalled_s
        token_s = engines.token_s(rows, context)
        more = mine * (decodes_s / token_s)[:, :, None]
        self.made += more[0]
        self.made += more[1]
        candidate, request = _where((mine[0] | mine[1]) & (self.made >= self.ends))
        if len(candidate):
            on = token_s[self.where[candidate, request] - 1, candidate]
            late_s = (self.made[candidate, request] - self.ends[request]) * on
            done_s = now_s + self.slice_s - np.minimum(late_s, self.slice_s)
            self.done_s[self.candidates[candidate], self.requests[request]] = done_s
            self.where[candidate, request] = _COMPLETE
            self.left -= len(candidate)

    def complete(self) -> Bools:
        """The candidates whose requests are all complete."""
        complete: Bools = np.isfinite(self.done_s).all(axis=1)
        return complete

    def give_up(self, which: Bools) -> None:
        """Do not decode these candidates any more. Their other requests are never complete."""
        here = which[self.candidates]
        self.left -= int(np.count_nonzero(self.where[here] != _COMPLETE))
        self.where[here] = _COMPLETE

    def forget(self) -> None:
        """Leave out the candidates that are complete, and the requests that are complete in all others: a
        slice takes longer the more there are of both."""
        runs = self.where != _COMPLETE
        candidates, requests = runs.any(axis=1), runs.any(axis=0)
        if np.count_nonzero(candidates) * np.count_nonzero(requests) > (1 - LEFT_OUT) * runs.size:
            return
        self.candidates, self.requests = self.candidates[candidates], self.requests[requests]
        both = np.ix_(candidates, requests)
        self.made, self.where, self.ends = self.made[both], self.where[both], self.ends[requests]
        self.windows_s, self.stairs_s = self.windows_s[candidates], self.stairs_s[candidates]
        self.all_engines, self.on = self.all_engines[candidates], self.on[:, candidates]
        self.engines.keep(candidates)


def _where(which: Bools) -> tuple[Counts, Counts]:
    """Candidates and requests of these. As `nonzero`, which takes long for arrays of two dimensions."""
    candidates, requests = np.divmod(which.ravel().nonzero()[0], which.shape[1])
    return candidates, requests


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
