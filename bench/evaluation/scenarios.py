"""The paper's constructed scenarios: instances that go and come at chosen moments.

Owns the traces of them. Seconds count from the first step's begin. Where the moment is one within a step, the
step's begin is known from the same run without the change, which is the same up to then.
"""

from bench.evaluation.cells import Cell
from configs.trace import Event, Trace, TraceEvent

HOSTS = 6
WAVE_GONE, WAVE_S, WAVE_EVERY_S = 5, 2000.0, 1000.0
"""R8, R9: so many of six go at once, so long after the begin (several steps, that the seeding window has
settled), and come back one every so often: two steps of 14B, which the paper's figure shows."""
KILLED = 3
"""R11: of six, at once."""
FIRST, JOINS_S = 2, (60.0, 120.0, 180.0)
"""R10: so many instances when the step begins, and one more at each of these moments within it; in the
paper's appendix D, of six, one is preempted at each and another one comes at once."""


def trace_of(cell: Cell) -> Trace | None:
    """When the hosts of a scenario come and go; None: always there."""
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
