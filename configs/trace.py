"""Availability trace of preemptible hosts: CSV of `t_seconds,event,instance_id`.

Owns the format and its refusals. Pure apart from `read`. Does not act on the events; the provider does. An
instance is `add`ed, may get a `notice`, and is `remove`d (without notice: killed); then its id may be added
again. Rows are sorted by time; after the last row its state holds.
"""

import bisect
import csv
import io
import math
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

HEADER = ("t_seconds", "event", "instance_id")
INSTANCE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Ids name state directories and routes: hence the narrow alphabet. "." and ".." are refused too."""
MAX_BYTES = 64 << 20
"""About two million events; the longest public trace has a thousand."""


class TraceError(ValueError):
    """A trace that cannot be replayed; `str` has the file, the line, the problem and the remedy."""


class Event(StrEnum):
    """Kind of event of an instance."""

    ADD = "add"
    NOTICE = "notice"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One row. t_s: seconds since the run began."""

    t_s: float
    event: Event
    instance: str


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole, checked trace, sorted by time."""

    name: str
    events: tuple[TraceEvent, ...]

    @property
    def end_s(self) -> float:
        """Time of the last event."""
        return self.events[-1].t_s


class Availability:
    """Queries of a trace by time."""

    def __init__(self, trace: Trace) -> None:
        self._events = trace.events
        self._times = [event.t_s for event in trace.events]

    def events_between(self, from_s: float, to_s: float) -> tuple[TraceEvent, ...]:
        """Events with from_s <= t < to_s: calls that meet end to begin see each event once."""
        return self._events[bisect.bisect_left(self._times, from_s) : bisect.bisect_left(self._times, to_s)]

    def available_at(self, t_s: float) -> frozenset[str]:
        """Instances up once the events at t_s took effect; one with a notice is up until it is removed."""
        up: set[str] = set()
        for event in self._events[: bisect.bisect_right(self._times, t_s)]:
            if event.event is Event.ADD:
                up.add(event.instance)
            elif event.event is Event.REMOVE:
                up.discard(event.instance)
        return frozenset(up)

    def next_after(self, t_s: float) -> float | None:
        """Time of the first event later than t_s; None when nothing more happens."""
        index = bisect.bisect_right(self._times, t_s)
        return self._times[index] if index < len(self._times) else None


def read(path: str | Path) -> Trace:
    """The trace in a file. Raises TraceError, also for a file that cannot be read."""
    file = Path(path)
    try:
        seen = file.stat()
        if not (stat.S_ISREG(seen.st_mode) or stat.S_ISDIR(seen.st_mode)):  # it may never end, or never begin
            raise TraceError(f"{file}: is a device, pipe or socket; give a CSV file of {','.join(HEADER)}")
        if seen.st_size > MAX_BYTES:
            raise TraceError(f"{file}: larger than {MAX_BYTES} bytes; cut it to the hours that you replay")
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TraceError(
            f"{file}: cannot be read: {error.strerror}; give a CSV of {','.join(HEADER)}"
        ) from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{file}: expected UTF-8 text, got other bytes at offset {error.start}") from error
    return parse(text, str(file))


def parse(text: str, name: str) -> Trace:
    """A checked trace from CSV text; `name` is the first part of every TraceError."""
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    events: list[TraceEvent] = []
    try:
        header = next(rows, [])
        if tuple(cell.strip() for cell in header) != HEADER:
            raise TraceError(
                f"{name}:1: expected the header {','.join(HEADER)}, got {_short(','.join(header))}; "
                "put it in the first line"
            )
        checker = _Checker()
        for row in rows:
            if row:
                try:
                    events.append(checker.event(row, rows.line_num))
                except TraceError as error:
                    raise TraceError(f"{name}:{rows.line_num}: {error}") from None
    except csv.Error as error:
        raise TraceError(f"{name}:{rows.line_num}: not CSV: {error}; quotes are not needed here") from error
    if not events:
        raise TraceError(f"{name}: no events; add rows such as 0,add,spot-1, or leave the trace out")
    return Trace(name, tuple(events))


def with_notice(trace: Trace, notice_s: float) -> Trace:
    """The same trace, but each instance gets notice so long before its removal (as soon as it is added, if it
    does not stay that long). notice_s: 0 gives none at all; notices of the trace itself are left out."""
    added: dict[str, tuple[float, float]] = {}
    placed: list[tuple[float, float, TraceEvent]] = []  # time, place among those of one moment, event
    for number, event in enumerate(trace.events):
        if event.event is Event.NOTICE:
            continue
        placed.append((event.t_s, number, event))
        if event.event is Event.ADD:
            added[event.instance] = event.t_s, number
        elif notice_s > 0:
            add_s, after = added[event.instance]
            told_s = max(event.t_s - notice_s, add_s)
            place = after + 0.5 if told_s == add_s else number - 0.5
            placed.append((told_s, place, TraceEvent(told_s, Event.NOTICE, event.instance)))
    return Trace(trace.name, tuple(event for _, _, event in sorted(placed, key=lambda it: it[:2])))


class _Checker:
    """Takes rows in order and remembers what each instance went through."""

    def __init__(self) -> None:
        self._last_s = 0.0
        self._up: dict[str, int] = {}  # instance -> line of its add
        self._noticed: dict[str, int] = {}
        self._gone: dict[str, int] = {}

    def event(self, row: Iterable[str], line: int) -> TraceEvent:
        cells = [cell.strip() for cell in row]
        if len(cells) != len(HEADER):
            raise TraceError(
                f"expected 3 values ({','.join(HEADER)}), got {len(cells)}; remove or complete the row"
            )
        t_s = self._time(cells[0])
        if cells[1] not in list(Event):
            raise TraceError(f"unknown event {_short(cells[1])}; use add, notice or remove")
        instance = cells[2]
        if not INSTANCE.fullmatch(instance) or set(instance) == {"."}:
            raise TraceError(f"instance_id {_short(instance)}: use 1 to 64 letters, digits, '_', '.' or '-'")
        event = Event(cells[1])
        self._follow(event, instance, line)
        return TraceEvent(t_s, event, instance)

    def _time(self, cell: str) -> float:
        try:
            t_s = float(cell)
        except ValueError:
            t_s = math.nan
        if not math.isfinite(t_s) or t_s < 0:
            raise TraceError(f"t_seconds {_short(cell)}: expected a number of seconds ≥ 0")
        if t_s < self._last_s:
            raise TraceError(f"t_seconds {t_s:g} comes after {self._last_s:g}; sort the rows by time")
        self._last_s = t_s
        return t_s

    def _follow(self, event: Event, instance: str, line: int) -> None:
        if event is Event.ADD:
            if instance in self._up:
                raise TraceError(
                    f"{instance} is added again, it is up since line {self._up[instance]}; "
                    "remove it first or give another id"
                )
            self._up[instance] = line
            return
        if instance not in self._up:
            past = (
                f"is gone since line {self._gone[instance]}" if instance in self._gone else "was never added"
            )
            raise TraceError(f"{event} of {instance}, which {past}; add it first or drop this row")
        if event is Event.NOTICE:
            if instance in self._noticed:
                raise TraceError(
                    f"{instance} has its notice since line {self._noticed[instance]}; drop this row"
                )
            self._noticed[instance] = line
            return
        del self._up[instance]
        self._noticed.pop(instance, None)
        self._gone[instance] = line


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
