"""The paper's scenarios: instances that leave and join at chosen moments.

Owns their traces. Seconds count from the first step's start. Where the moment is within a step, the step's
start is known from the same run without the change, which is the same up to then.
"""

from bench.evaluation.cells import Cell
from gleaner.configs.trace import Event, Trace, TraceEvent

HOSTS = 6
WAVE_GONE, WAVE_S, WAVE_EVERY_S = 5, 2000.0, 1000.0
"""R8, R9: so many of six leave at once, so long after the start (several steps, so that the seeding window
has settled), and return one by one at this interval: two steps of 14B, as in the paper's figure."""
KILLED = 3
"""R11: of six, at once."""
FIRST, JOINS_S = 2, (60.0, 120.0, 180.0)
"""R10: number of instances when the step starts, with one more at each of these moments within it; in the
paper's appendix D, of six, one is preempted at each and another one joins at once."""


def trace_of(cell: Cell) -> Trace | None:
    """Joins and removals of a scenario's hosts; None: always there."""
    match cell.kind:
        case "wave":
            events = _there(HOSTS) + [_gone(number, WAVE_S) for number in range(1, WAVE_GONE + 1)]
            events += [_new(number, WAVE_S + WAVE_EVERY_S * number) for number in range(1, WAVE_GONE + 1)]
        case "kill":
            events = _there(HOSTS)
            events += [_gone(number, cell.at_s) for number in range(1, KILLED + 1) if cell.at_s]
        case "join":
            events = _there(FIRST)
            events += [_new(n, cell.at_s + join_s) for n, join_s in enumerate(JOINS_S, 1) if cell.at_s]
        case "restart":
            events = _there(HOSTS)
            for number, at_s in enumerate(JOINS_S, 1):
                events += [_gone(number, cell.at_s + at_s), _new(number, cell.at_s + at_s)] * bool(cell.at_s)
        case _:
            return None
    return Trace(cell.kind, tuple(sorted(events, key=lambda event: event.t_s)))


def _there(count: int) -> list[TraceEvent]:
    return [TraceEvent(0.0, Event.ADD, f"spot-{number}") for number in range(1, count + 1)]


def _gone(number: int, at_s: float) -> TraceEvent:
    return TraceEvent(at_s, Event.REMOVE, f"spot-{number}")


def _new(number: int, at_s: float) -> TraceEvent:
    return TraceEvent(at_s, Event.ADD, f"new-{number}")
