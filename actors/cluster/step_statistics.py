"""`StepStatistics`: measured lengths and speeds of past steps, for the next step's model.

The speeds are those of engines and trainer. Owns the learnt values and the methods: smoothing, growth of
lengths, correction of the model by its errors. Pure; bounded: lengths of some groups of a few steps, the rest
are numbers.
"""

import math

import msgspec
import numpy as np

from gleaner.actors.cluster.step_model import Machines, Work, predict
from gleaner.actors.protocol.step_times import StepTimes, finite
from gleaner.actors.protocol.throughput import EnginePace

POOLED_STEPS = 3  # whose lengths represent the next step's: one batch's mean is off by some percent
LEVEL, TREND = 0.4, 0.15  # of a new step in the mean length, and in its growth
MOST_GROWTH = 0.1  # of the mean length in a step
SMOOTH = 0.5  # of a new step in the trainer's times
SETTLED = 0.5  # instances, that there were more or fewer in a step than at its end
LITTLE_WAIT = 0.01  # of a step: less is none
TRIM_UP, TRIM_DOWN, MOST_TRIM = 0.04, 0.02, 0.5  # of a window: in a step without a wait, in one with, at most
PACE_GAIN, LEAST_PACE, MOST_PACE = 0.5, 1 / 3, 3.0


class StepStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of the steps so far, of one kind in a job with rounds. Lengths in tokens, of the newest
    step last; log_mean: the logarithm of their mean, with its growth a step; times in seconds. rest_s: of a
    step, beside seeding, waiting and training. pace: factor on the times of engines; trim: the share that is
    subtracted from the model's window."""

    lengths: list[list[list[int]]] = []
    log_mean: float = 0.0
    growth: float = 0.0
    groups: int = 0
    surplus: int = 0
    samples: int = 0
    limit: int = 0
    prompt_tokens: float = 0.0
    train_token_s: float = 0.0
    update_s: float = 0.0
    rest_s: float = 0.0
    start_s: float = 0.0
    reserved: EnginePace | None = None
    preemptible: EnginePace | None = None
    reserved_engines: int = 0
    instance_engines: float = 1.0
    pace: float = 1.0
    trim: float = 0.0


def ready(learnt: StepStatistics) -> tuple[Work, Machines] | None:
    """The model of the next step; None while data are missing."""
    reserved, preemptible = learnt.reserved or learnt.preemptible, learnt.preemptible or learnt.reserved
    if reserved is None or preemptible is None or not learnt.lengths or learnt.train_token_s <= 0:
        return None
    work = Work(
        lengths=coming(learnt),
        groups=learnt.groups,
        samples=learnt.samples,
        prompt_tokens=learnt.prompt_tokens,
        train_token_s=learnt.train_token_s,
        update_s=learnt.update_s,
        surplus=learnt.surplus,
    )
    return work, _machines(learnt, reserved, preemptible)


def of_another_kind(learnt: StepStatistics) -> StepStatistics:
    """The same engines and trainer, and no lengths yet: for the first round of a kind."""
    return msgspec.structs.replace(learnt, lengths=[], log_mean=0.0, growth=0.0, trim=0.0)


def of_lengths(learnt: StepStatistics, groups: list[list[int]], surplus: int) -> StepStatistics:
    """The same engines and trainer, with these lengths."""
    log_mean = math.log(max(_mean(groups), 1.0))
    return msgspec.structs.replace(
        learnt, lengths=[groups], log_mean=log_mean, growth=0.0, trim=0.0, surplus=surplus
    )


def with_machines(learnt: StepStatistics, newest: StepStatistics) -> StepStatistics:
    """These lengths, on the engines and the trainer as they were measured last."""
    return msgspec.structs.replace(
        learnt,
        prompt_tokens=newest.prompt_tokens,
        train_token_s=newest.train_token_s,
        update_s=newest.update_s,
        rest_s=newest.rest_s,
        start_s=newest.start_s,
        reserved=newest.reserved,
        preemptible=newest.preemptible,
        reserved_engines=newest.reserved_engines,
        instance_engines=newest.instance_engines,
        pace=newest.pace,
    )


def coming(learnt: StepStatistics) -> list[list[int]]:
    """Lengths of the next step's groups: those of the last steps, scaled to the expected mean, none beyond
    the limit."""
    wanted = math.exp(learnt.log_mean + learnt.growth)
    every = len(learnt.lengths)
    pool: list[list[int]] = []
    for age, groups in enumerate(reversed(learnt.lengths)):
        # Every step gives its share, evenly from the longest group down; the newest one gives its longest.
        factor = wanted / max(_mean(groups), 1e-9)
        chosen = groups[len(groups) - 1 - age :: -every] if len(groups) > age else []
        pool += [[_grown(length, factor, learnt.limit) for length in group] for group in chosen]
    factor = wanted / max(_mean(pool), 1e-9)
    return [[_grown(length, factor, learnt.limit) for length in group] for group in pool]


def learn(known: StepStatistics, times: StepTimes, n_reserved: int) -> StepStatistics:
    """The learnt values after a step."""
    seen = times.seen
    if seen is None or not seen.lengths or not all(seen.lengths):
        return known
    fresh = not known.lengths
    log_mean = math.log(max(_mean(seen.lengths), 1.0))
    tokens = (_mean(seen.lengths) + seen.prompt_tokens) * seen.requests
    token_s = max(0.0, finite(times.train_s) - seen.update_s) / max(tokens, 1.0)
    on_half_s = finite(seen.half_s)  # training took half of it, and rollout all of it
    used_s = seen.seeding_s + finite(times.train_wait_s) + finite(times.train_s) + on_half_s / 2
    rest_s = max(0.0, seen.step_s - used_s)
    level = log_mean if fresh else known.log_mean + known.growth
    off = log_mean - level
    growth = min(max(known.growth + TREND * LEVEL * off, -MOST_GROWTH), MOST_GROWTH)
    new = msgspec.structs.replace(
        known,
        lengths=[*known.lengths, seen.lengths][-POOLED_STEPS:],
        log_mean=level + LEVEL * off,
        growth=0.0 if fresh else growth,
        groups=seen.groups,
        surplus=seen.surplus,
        samples=max(1, seen.requests // max(1, seen.groups)),
        limit=seen.limit,
        prompt_tokens=seen.prompt_tokens,
        train_token_s=_smooth(known.train_token_s, token_s, fresh),
        update_s=_smooth(known.update_s, seen.update_s, fresh),
        rest_s=_smooth(known.rest_s, rest_s, fresh),
        reserved=seen.reserved or known.reserved,
        preemptible=seen.preemptible or known.preemptible,
        reserved_engines=times.reserved_engines or known.reserved_engines or n_reserved,
        instance_engines=max(1.0, finite(times.instance_engines)),
    )
    if times.mean_prem > 0 and finite(times.remote_s) > 0:
        new = msgspec.structs.replace(new, start_s=_smooth(known.start_s, seen.start_s, known.start_s <= 0))
    if abs(times.mean_prem - times.next_prem) > SETTLED:
        return new  # too little is known of the instances in the step to correct the model
    return msgspec.structs.replace(new, pace=_paced(new, times, PACE_GAIN), trim=_trimmed(known, times))


def _trimmed(known: StepStatistics, times: StepTimes) -> float:
    """The share that is subtracted from the model's window, after a step.

    The only sign of a window that is too long is that the trainer never waits. So it is shortened until the
    trainer waits in two steps of three: a second too long is a second of step, one too short about half of
    one, for the reserved engines would have taken more than a second off the instances.
    """
    seen = times.seen
    if seen is None or times.next_prem == 0 or seen.step_s <= 0:
        return known.trim
    waited = finite(times.train_wait_s) > LITTLE_WAIT * seen.step_s
    return min(max(known.trim + (-TRIM_DOWN if waited else TRIM_UP), 0.0), MOST_TRIM)


def _paced(learnt: StepStatistics, times: StepTimes, gain: float) -> float:
    """The factor on engines' times, after a step with these lengths, this window and these instances."""
    reserved, preemptible = learnt.reserved or learnt.preemptible, learnt.preemptible or learnt.reserved
    seen = times.seen
    if seen is None or reserved is None or preemptible is None or seen.rolled_s <= 0:
        return learnt.pace
    work = Work(
        lengths=seen.lengths,
        groups=learnt.groups,
        samples=learnt.samples,
        prompt_tokens=seen.prompt_tokens,
        train_token_s=learnt.train_token_s,
        update_s=seen.update_s,
        surplus=seen.surplus,
    )
    window_s = np.array([seen.seeding_s + finite(seen.half_s)])
    stair_s = np.array([np.inf if seen.stair_s is None else seen.stair_s])
    count, machines = np.array([finite(times.mean_prem)]), _machines(learnt, reserved, preemptible)
    rolled_s = float(predict(work, machines, window_s, count, stair_s).rolled_s[0])
    if not 0 < rolled_s < math.inf:
        return learnt.pace
    factor: float = (seen.rolled_s / rolled_s) ** gain
    return min(max(learnt.pace * factor, LEAST_PACE), MOST_PACE)


def _machines(learnt: StepStatistics, reserved: EnginePace, preemptible: EnginePace) -> Machines:
    return Machines(
        reserved=reserved,
        preemptible=preemptible,
        engines=float(max(1, learnt.reserved_engines)),
        instance_engines=learnt.instance_engines,
        start_s=learnt.start_s,
        pace=learnt.pace,
    )


def _mean(groups: list[list[int]]) -> float:
    return sum(map(sum, groups)) / max(1, sum(map(len, groups)))


def _grown(length: int, factor: float, limit: int) -> int:
    if limit and length >= limit:
        return limit  # it ended at the limit: its natural length is not known
    grown = max(1, round(length * factor))
    return min(grown, limit) if limit else grown


def _smooth(known: float, new: float, fresh: bool) -> float:
    return new if fresh else known + SMOOTH * (new - known)
