"""Swarm: draws a schedule from a seed, after drawing the options (swarm testing).

Owns which kinds are on in a run and how often they occur. `fault_sampler` draws the parameters of each fault,
`bounds` has the job's limits. Pure: one seed and one terrain give one schedule, on every machine.

A swarm finds more than the mean of all faults: a run in which only the disk breaks, a hundred times, reaches
states that a run with a little of everything never reaches.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from gleaner.chaos.availability import stays
from gleaner.chaos.bounds import Bounds, bearable
from gleaner.chaos.fault_sampler import NOTICES_S, Drawer
from gleaner.chaos.fault_scenarios import BY_PATH, FaultScenario
from gleaner.chaos.fault_targets import FaultTargets
from gleaner.chaos.faults import KINDS, MACHINE_KINDS, STAY, AnyFault, Notice, Stay
from gleaner.chaos.schedule import Schedule
from gleaner.configs.trace import Trace

SPEEDS = (60.0, 120.0, 360.0)
"""How much faster a trace is replayed: hours of a cloud in minutes of a job."""


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fault options of a campaign; a value from each range is drawn for each run.

    Args:
        kinds: those that may be on; none named: all but those of `gleaner.chaos.machine_faults`.
        share_on: probability of each kind to be on in a run; one is always on.
        begin_s, horizon_s: faults begin, and are over, in this window.
        gap_s: shortest and longest mean time between two faults; a run's own is drawn between them.
        max_faults: in one run.
        calm: share of runs without any fault; they show the cost of the faults.
        trace_share: share of runs whose preemptible hosts follow a trace, where there are any.
        aims: recovery paths to which groups of faults are composed (`gleaner.chaos.fault_scenarios`).
            aim_share: share of runs that have one of them, beside what is drawn.
        machine_share: share of runs that draw faults of disks, clouds, engines and trainers too, and commands
            of operators (`gleaner.chaos.machine_faults`), where `kinds` names none.
        order_share: share of runs in which turns take time and run in a drawn order
            (`gleaner.sim.turn_order`).
    """

    kinds: tuple[str, ...] = ()
    share_on: Annotated[float, Meta(gt=0, le=1)] = 0.35
    begin_s: Annotated[float, Meta(ge=0)] = 2.0
    horizon_s: Annotated[float, Meta(gt=0)] = 120.0
    gap_s: tuple[float, float] = (2.0, 30.0)
    max_faults: Annotated[int, Meta(ge=0, le=1000)] = 40
    calm: Annotated[float, Meta(ge=0, le=1)] = 0.02
    trace_share: Annotated[float, Meta(ge=0, le=1)] = 0.25
    aims: tuple[str, ...] = ()
    aim_share: Annotated[float, Meta(ge=0, le=1)] = 0.35
    machine_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    order_share: Annotated[float, Meta(ge=0, le=1)] = 0.25

    def __post_init__(self) -> None:
        unknown = sorted(set(self.kinds) - set(KINDS))
        if unknown:
            raise ValueError(f"kinds: there is no {unknown[0]}; there are {', '.join(KINDS)}")
        unknown = sorted(set(self.aims) - BY_PATH.keys())
        if unknown:
            raise ValueError(f"aims: there is none at {unknown[0]}; there are {', '.join(BY_PATH)}")
        if not 0 < self.gap_s[0] <= self.gap_s[1]:
            raise ValueError(f"gap_s: expected 0 < shortest <= longest, got {list(self.gap_s)}")
        if self.begin_s >= self.horizon_s:
            raise ValueError(
                f"horizon_s: expected more than begin_s ({self.begin_s:g}), got {self.horizon_s:g}"
            )


def draw(
    seed: int,
    terrain: FaultTargets,
    options: Options,
    bounds: Bounds,
    traces: Mapping[str, Trace] | None = None,
) -> Schedule:
    """The schedule of a seed."""
    rng, order = random.Random(f"{seed}/swarm"), _order(random.Random(f"{seed}/order"), options.order_share)
    if rng.random() < options.calm:
        return Schedule(seed=seed, order=order)
    faults: list[AnyFault] = []
    drawer = Drawer(random.Random(f"{seed}/faults"), terrain, options.horizon_s, bounds)
    machines = random.Random(f"{seed}/machine share").random() < options.machine_share
    wanted = options.kinds or [kind for kind in KINDS if machines or kind not in MACHINE_KINDS]
    able = [kind for kind in KINDS if kind in drawer.draws and kind in wanted]
    on = [kind for kind in able if rng.random() < options.share_on]
    if able and not on:
        on = [rng.choice(able)]
    gap_s = options.gap_s[0] * (options.gap_s[1] / options.gap_s[0]) ** rng.random()
    at_s = options.begin_s + rng.expovariate(1 / gap_s)
    while on and at_s < options.horizon_s and len(faults) < options.max_faults:
        faults.append(drawer.fault(rng.choice(on), round(at_s, 3)))
        at_s += rng.expovariate(1 / gap_s)
    stays_on = not options.kinds or STAY in options.kinds
    come_and_go: list[AnyFault] = []
    if traces and stays_on and terrain.preemptible and rng.random() < options.trace_share:
        come_and_go = _stays(random.Random(f"{seed}/trace"), terrain, options, traces)
    if options.aims and rng.random() < options.aim_share:
        faults += _aimed(random.Random(f"{seed}/aim"), terrain, options, come_and_go)
    return Schedule(seed=seed, order=order).with_faults(
        bearable(_in_time(faults, options), bounds) + come_and_go
    )


def _order(rng: random.Random, share: float) -> int:
    return rng.getrandbits(32) + 1 if rng.random() < share else 0


def _stays(
    rng: random.Random, terrain: FaultTargets, options: Options, traces: Mapping[str, Trace]
) -> list[AnyFault]:
    """A piece of a real trace with events, sped up to the length of the run."""
    trace = traces[rng.choice(sorted(traces))]
    speed = min(rng.choice(SPEEDS), max(trace.end_s / options.horizon_s, 1.0))  # a short one lasts the run
    length_s = options.horizon_s * speed
    from_s = rng.uniform(0.0, max(trace.end_s - length_s, 0.0))
    found = stays(trace, from_s=from_s, for_s=length_s, speed=speed, hosts=terrain.preemptible)
    return [_with_notice(rng, stay) for stay in found]


def _with_notice(rng: random.Random, stay: Stay) -> Stay:
    """Traces seldom contain whether a host got notice; clouds give the same notices as `Notice` draws."""
    notice_s = rng.choice(NOTICES_S)
    return stay if stay.notice_s else msgspec.structs.replace(stay, notice_s=min(notice_s, stay.for_s))


def _in_time(faults: Iterable[AnyFault], options: Options) -> list[AnyFault]:
    """Faults that are over by the horizon. A notice is exempt: its host leaves as soon as it is done, and may
    be taken away long after the job's end."""
    return [fault for fault in faults if isinstance(fault, Notice) or fault.over_s <= options.horizon_s]


def _aimed(
    rng: random.Random, terrain: FaultTargets, options: Options, come_and_go: Sequence[AnyFault]
) -> tuple[AnyFault, ...]:
    """One of the aims, at a time at which it fits, on one of the hosts that there are."""
    aim: FaultScenario = BY_PATH[rng.choice(options.aims)]
    hosts = sorted({fault.host for fault in come_and_go if isinstance(fault, Stay)})
    hosts = hosts or [f"spot-{number}" for number in range(1, terrain.preemptible + 1)]
    latest_s = options.horizon_s - aim.lasts_s
    if not hosts or latest_s < options.begin_s:
        return ()
    return aim.compose(rng, rng.choice(hosts), round(rng.uniform(options.begin_s, latest_s), 3))
