"""Trace of a reward service: its items as CSV.

Owns the form: the columns job, batch, arrival_s and one of running seconds for each stage, in the order of
the pipeline; an empty field or 0 is a stage that the item skipped.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gleaner.actors.reward.planning.items import Stage
from gleaner.sim.rewards.workload import Batch, Workload

COLUMNS = ("job", "batch", "arrival_s")
MAX_ITEMS = 5_000_000
"""Items of a trace that are read: some hundred MB."""
SHORTEST_TIMEOUT_S = 1e-3

Rows = dict[tuple[str, str], list[tuple[float, list[float]]]]
"""(arrival_s, times_s) of each item, by job and batch."""


class TraceError(ValueError):
    """A trace that cannot be read: file, line and what is wrong."""


def read_trace(path: Path, stages: Mapping[str, Stage] | None = None) -> Workload:
    """The workload of a trace. stages: costs and timeouts by name; others cost 1, and their timeout is the
    longest time in the trace. Batches of a job follow one another in the order of their first arrivals, from
    which they begin. Raises TraceError, OSError."""
    try:
        names, rows = _read(path)
    except (csv.Error, UnicodeDecodeError) as problem:
        raise TraceError(f"{path}: it is no CSV: {problem}") from problem
    known = stages or {}
    if missing := sorted(known.keys() - set(names)):
        raise TraceError(f"{path}: no column for stage {missing[0]}: it has {', '.join(names)}")
    jobs = _jobs(rows)
    longest = np.max([batch.times_s.max(axis=0) for batches in jobs.values() for batch in batches], axis=0)
    made = [
        known.get(name) or Stage(name, 1.0, max(float(longest[at]), SHORTEST_TIMEOUT_S))
        for at, name in enumerate(names)
    ]
    return Workload(made, jobs)


def write_trace(workload: Workload, path: Path) -> None:
    """The workload as a trace, at the times that it has if nothing ever queues. Raises OSError."""
    with path.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines)
        writer.writerow([*COLUMNS, *(stage.name for stage in workload.stages)])
        for job, batches in workload.jobs.items():
            at_s = 0.0
            for number, batch in enumerate(batches):
                at_s += batch.gap_s
                for arrival_s, times_s in zip(batch.arrivals_s.tolist(), batch.times_s.tolist(), strict=True):
                    fields = [f"{time_s:.3f}" if time_s else "" for time_s in times_s]
                    writer.writerow([job, number, f"{at_s + arrival_s:.3f}", *fields])
                at_s += batch.earliest_s()


def _read(path: Path) -> tuple[list[str], Rows]:
    """Names of the stages, and the rows."""
    with path.open(newline="", encoding="utf-8") as lines:
        reader = csv.reader(lines)
        header = next(reader, [])
        if tuple(header[: len(COLUMNS)]) != COLUMNS or len(header) == len(COLUMNS):
            raise TraceError(
                f"{path}:1: expected {','.join(COLUMNS)} and one column a stage, got {','.join(header)!r}"
            )
        names = header[len(COLUMNS) :]
        if doubled := [name for name in names if names.count(name) > 1 or not name.strip()]:
            raise TraceError(f"{path}:1: stage {doubled[0]!r}: a stage has a name, and one column")
        rows: Rows = {}
        for count, row in enumerate(reader):
            if count >= MAX_ITEMS:
                raise TraceError(f"{path}: more than {MAX_ITEMS} items: split it by time")
            if row:
                rows.setdefault((row[0], row[1] if len(row) > 1 else ""), []).append(
                    _item(f"{path}:{reader.line_num}", header, row)
                )
    if not rows:
        raise TraceError(f"{path}: it has no item")
    return names, rows


def _item(place: str, header: Sequence[str], row: Sequence[str]) -> tuple[float, list[float]]:
    if len(row) != len(header):
        raise TraceError(f"{place}: {len(row)} fields, expected {len(header)}")
    found = []
    for name, field in zip(header[2:], row[2:], strict=True):
        try:
            number = float(field) if field.strip() else 0.0
        except ValueError:
            raise TraceError(f"{place}: {name}: expected seconds, got {field!r}") from None
        if not math.isfinite(number) or number < 0:
            raise TraceError(f"{place}: {name}: expected seconds from 0, got {field!r}")
        found.append(number)
    return found[0], found[1:]


def _jobs(rows: Rows) -> dict[str, list[Batch]]:
    jobs: dict[str, list[Batch]] = {}
    ended_s: dict[str, float] = {}
    begun_s = {key: min(arrival_s for arrival_s, _ in items) for key, items in rows.items()}
    start_s = min(begun_s.values())
    for job, number in sorted(rows, key=lambda key: (begun_s[key], key)):
        items = sorted(rows[job, number])
        arrivals_s = np.array([arrival_s for arrival_s, _ in items]) - begun_s[job, number]
        origin_s = begun_s[job, number] - start_s
        gap_s = max(origin_s - ended_s.get(job, 0.0), 0.0)
        batch = Batch(gap_s, arrivals_s, np.array([times_s for _, times_s in items], np.float64))
        ended_s[job] = origin_s + batch.earliest_s()
        jobs.setdefault(job, []).append(batch)
    return jobs
