"""Segments of availability: the paper's, from traces, or generated ones.

Generated segments have the same statistics. Owns the paper's table 5 and the generator. The paper cut three
times two hours from a trace of Bamboo (NSDI 23), of which it kept every second instance; it published their
statistics, not the segments.
"""

import random
from dataclasses import dataclass
from pathlib import Path

from bench.evaluation.cells import SEGMENT_S
from gleaner.configs import trace as traces
from gleaner.configs.trace import Event, Trace, TraceEvent

GRID_S = 30.0  # grid of the generated events, as in the public trace
TRIES = 20_000
NEAR = 0.02  # allowed relative error of the mean
FEWEST = 2  # instances at a time; in the public trace, thinned alike, there were never fewer


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of a segment: mean instances over two hours, number of joins after its start, number of
    removals."""

    mean: float
    allocations: int
    preemptions: int


TABLE_5 = {"A": Statistics(6.53, 13, 8), "B": Statistics(4.58, 8, 9), "C": Statistics(6.06, 6, 2)}
"""Paper, appendix C."""


def read(folder: Path, segment: str) -> Trace:
    """A segment of a folder of traces. Raises TraceError."""
    return traces.read(folder / f"rlboost_like_seg{segment}.csv")


def made(segment: str, seed: int = 0) -> Trace:
    """A segment with the statistics of table 5: times and order are drawn until the mean is met."""
    wanted = TABLE_5[segment]
    rng = random.Random(f"{segment}/{seed}")
    for _ in range(TRIES):
        found = _drawn(rng, wanted, f"made-{segment}-{seed}")
        if found is not None and abs(statistics_of(found).mean / wanted.mean - 1) <= NEAR:
            return found
    raise AssertionError(f"no segment {segment} was met in {TRIES} tries")


def _drawn(rng: random.Random, wanted: Statistics, name: str) -> Trace | None:
    """One try; None where fewer than FEWEST would be up."""
    order = [Event.ADD] * wanted.allocations + [Event.REMOVE] * wanted.preemptions
    rng.shuffle(order)
    slots = range(1, int(SEGMENT_S / GRID_S))
    times = sorted(GRID_S * slot for slot in rng.sample(slots, len(order)))
    first = rng.randint(FEWEST, round(2 * wanted.mean))
    up = [f"spot-{number}" for number in range(1, first + 1)]
    events = [TraceEvent(0.0, Event.ADD, name) for name in up]
    number = first
    for t_s, event in zip(times, order, strict=True):
        if event is Event.ADD:
            number += 1
            up.append(f"spot-{number}")
            events.append(TraceEvent(t_s, event, up[-1]))
        else:
            if len(up) <= FEWEST:
                return None
            events.append(TraceEvent(t_s, event, up.pop(rng.randrange(len(up)))))
    return Trace(name, tuple(events))


def statistics_of(trace: Trace) -> Statistics:
    """The entry of table 5 for a segment."""
    up, before_s, area = 0, 0.0, 0.0
    for event in trace.events:
        t_s = min(event.t_s, SEGMENT_S)
        area += up * (t_s - before_s)
        before_s = t_s
        up += {Event.ADD: 1, Event.REMOVE: -1}.get(event.event, 0)
    area += up * (SEGMENT_S - before_s)
    later = [event.event for event in trace.events if event.t_s > 0]
    return Statistics(area / SEGMENT_S, later.count(Event.ADD), later.count(Event.REMOVE))
