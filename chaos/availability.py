"""Availability traces as faults: one `Stay` for each offer of a host, and back.

Owns the two translations. Pure. The format of traces is `gleaner.configs.trace`. Real traces are cut and sped
up here, because a simulated job of minutes should meet the events of hours in a cloud. They are also thinned,
because a few hosts should meet the events of dozens.
"""

import heapq
import math
from collections.abc import Iterable

from gleaner.chaos.faults import AnyFault, Stay
from gleaner.configs.trace import Event, Trace, TraceEvent

LAST_S = 86_400.0
"""A stay that the trace does not end lasts this long: beyond any run."""
SHORTEST_S = 0.001  # of a stay, and of a notice


def stays(trace: Trace, *, from_s: float, for_s: float, speed: float, hosts: int) -> tuple[Stay, ...]:
    """The stays of `for_s` seconds of a trace from `from_s` on, `speed` times as fast.

    hosts: maximum of simultaneous offers. Of a larger fleet the earliest are taken, and of those with the
    same start the ones that end first: a few hosts meet many of the events of a large fleet.
    """
    if speed <= 0 or for_s <= 0:
        raise ValueError(f"speed {speed:g} and for_s {for_s:g} must be above 0")
    return _thinned(_all_stays(trace, from_s, for_s, speed), hosts)


def _all_stays(trace: Trace, from_s: float, for_s: float, speed: float) -> list[Stay]:
    begun: dict[str, float] = {}
    noticed: dict[str, float] = {}
    found: list[Stay] = []

    def stay(name: str, end_s: float) -> None:
        start_s = max(begun.pop(name), from_s)
        notice_s = noticed.pop(name, math.inf)
        if end_s > start_s < from_s + for_s:
            length_s = max((end_s - start_s) / speed, SHORTEST_S)
            told_s = min(max((end_s - notice_s) / speed, 0.0), length_s)
            found.append(Stay(host=name, at_s=(start_s - from_s) / speed, for_s=length_s, notice_s=told_s))

    for event in trace.events:
        if event.event is Event.ADD:
            begun[event.instance] = event.t_s
        elif event.event is Event.NOTICE:
            noticed[event.instance] = event.t_s
        else:
            stay(event.instance, event.t_s)
    for name in sorted(begun):
        stay(name, from_s + LAST_S * speed)
    return found


def _thinned(found: Iterable[Stay], hosts: int) -> tuple[Stay, ...]:
    """Stays in order, never more than `hosts` at a time."""
    taken: list[Stay] = []
    ends_s: list[float] = []
    for stay in sorted(found, key=lambda it: (it.at_s, it.over_s, it.host)):
        while ends_s and ends_s[0] <= stay.at_s:
            heapq.heappop(ends_s)
        if len(ends_s) < hosts:
            heapq.heappush(ends_s, stay.over_s)
            taken.append(stay)
    return tuple(sorted(taken, key=lambda it: (it.at_s, it.host)))


def as_trace(faults: Iterable[AnyFault], name: str) -> Trace | None:
    """The trace of the stays among `faults`; None without any. Overlapping stays of one host are joined,
    because an offer cannot be made twice."""
    events: list[TraceEvent] = []
    for host, spans in _joined(fault for fault in faults if isinstance(fault, Stay)).items():
        for stay in spans:
            end_s = stay.at_s + stay.for_s
            events.append(TraceEvent(stay.at_s, Event.ADD, host))
            if stay.notice_s >= SHORTEST_S:
                events.append(TraceEvent(max(end_s - stay.notice_s, stay.at_s), Event.NOTICE, host))
            events.append(TraceEvent(end_s, Event.REMOVE, host))
    if not events:
        return None
    order = {Event.REMOVE: 0, Event.ADD: 1, Event.NOTICE: 2}  # a host may go and return in one moment
    return Trace(name, tuple(sorted(events, key=lambda it: (it.t_s, order[it.event], it.instance))))


def _joined(found: Iterable[Stay]) -> dict[str, list[Stay]]:
    """Stays by host, in order, no two adjacent or overlapping."""
    joined: dict[str, list[Stay]] = {}
    for stay in sorted(found, key=lambda it: (it.host, it.at_s, it.for_s)):
        spans = joined.setdefault(stay.host, [])
        if spans and stay.at_s <= spans[-1].at_s + spans[-1].for_s:
            before = spans.pop()
            end_s = max(before.at_s + before.for_s, stay.at_s + stay.for_s)
            stay = Stay(host=stay.host, at_s=before.at_s, for_s=end_s - before.at_s, notice_s=stay.notice_s)
        spans.append(stay)
    return dict(sorted(joined.items()))
