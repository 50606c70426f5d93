"""Harness: runs the programs in rounds that alternate between the systems.

Owns their processes. A program measures the rows of one group of one system once and ends with all its
processes, so that no idle daemon burdens the next one.
"""

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from bench.runtime.rows import OURS, ROWS, RowSpec
from bench.runtime.task import MARK, Sizes, orders, pids_with

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".bench"
"""Where `make bench-peers` puts the peers' environments."""

PROGRAM_S = 180.0
"""One program may take this long: the longest row is ten seconds, the slowest start half a minute, and a
frozen process is waited for three quarters of one."""
SETTLE_S = 0.3  # between two programs: killed processes are gone

_ENVIRONMENT = {"ray": "peers", "xoscar": "peers", "dask": "peers", "monarch": "monarch"}


@dataclass(frozen=True, slots=True)
class Turn:
    """One program run: these rows of one group, by one system, in one round."""

    round: int
    system: str
    group: str
    rows: tuple[str, ...]


@dataclass(slots=True)
class Results:
    """All results, in the form of the results file."""

    samples: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    notes: dict[str, dict[str, str]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def add(self, system: str, reply: dict[str, dict[str, dict[str, float]]]) -> None:
        """The reply of one program."""
        self.versions[system] = str(reply["version"])
        for row, figures in reply["found"].items():
            by_metric = self.samples.setdefault(row, {}).setdefault(system, {})
            for metric, value in figures.items():
                by_metric.setdefault(metric, []).append(value)
        for row, note in reply["notes"].items():
            self.notes.setdefault(row, {})[system] = str(note)

    def hopeless(self, row: str, system: str) -> bool:
        """Whether another round would only repeat a measurement without a result, or one that is
        impossible."""
        figures = self.samples.get(row, {}).get(system)
        if figures is None:
            return system in self.notes.get(row, {})
        return any(math.isnan(value) for values in figures.values() for value in values)


def interpreter(system: str) -> Path | None:
    """The Python of the system's own environment; None when it was not made."""
    name = _ENVIRONMENT.get(system)
    if name is None:
        return Path(sys.executable)
    found = ENVIRONMENTS / name / "bin" / "python"
    return found if found.exists() else None


def turns(specs: Sequence[RowSpec], systems: Sequence[str], rounds: int) -> Iterator[Turn]:
    """The order of the programs: group by group, round by round, the systems in turn; every other round runs
    in reverse, so that no system always follows the same neighbour."""
    groups = list(dict.fromkeys(spec.group for spec in ROWS))  # in the order of the table
    ordered = sorted(specs, key=lambda spec: groups.index(spec.group))
    for group, members in groupby(ordered, key=lambda spec: spec.group):
        in_group = list(members)
        for number in range(rounds):
            for system in systems if number % 2 == 0 else reversed(systems):
                rows = tuple(spec.name for spec in in_group if system in spec.systems)
                if rows:
                    yield Turn(number, system, group, rows)


def measure(
    specs: Sequence[RowSpec],
    systems: Sequence[str],
    rounds: int,
    sizes: Sizes,
    say: Callable[[str], None],
    results: Results | None = None,
) -> Results:
    """Run every turn. A failed program is reported on the terminal and recorded; the others continue."""
    results = results if results is not None else Results()
    for turn in turns(specs, systems, rounds):
        rows = [row for row in turn.rows if not results.hopeless(row, turn.system)]
        if not rows:
            continue
        began = time.monotonic()
        problem = run_program(turn, rows, sizes, results)
        took = time.monotonic() - began
        line = f"round {turn.round + 1}: {turn.system} {', '.join(rows)} ({took:.1f} s)"
        say(f"{line}: {problem}" if problem else line)
        for row in rows if problem else ():
            results.notes.setdefault(row, {})[turn.system] = problem
    return results


def run_program(turn: Turn, rows: list[str], sizes: Sizes, results: Results) -> str:
    """Run one program, to its end or its deadline; return the failure, "" if none."""
    python = interpreter(turn.system)
    if python is None:
        return "not run: its environment is missing (make bench-peers)"
    mark = uuid.uuid4().hex
    scratch = Path(tempfile.mkdtemp(prefix="gleaner-bench-"))
    out, log = scratch / "found.json", scratch / "log.txt"
    environment = {**os.environ, MARK: mark, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    argv = [str(python), "-m", f"bench.runtime.on_{turn.system}"]
    argv.append(orders(turn.group, rows, sizes, scratch, out))
    try:
        with log.open("wb") as output:
            program = subprocess.Popen(
                argv, cwd=scratch, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
            try:
                code = program.wait(PROGRAM_S)
            except subprocess.TimeoutExpired:
                return f"still running after {PROGRAM_S:.0f} s"
            finally:
                end(mark)
                program.wait()
        if code != 0 or not out.exists():
            return f"{_ending(code)}: {_last_line(log)}"
        results.add(turn.system, json.loads(out.read_text()))
        return ""
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        time.sleep(SETTLE_S)


def end(mark: str) -> None:
    """Kill the remaining processes of a program, by its mark, until none is left."""
    for _ in range(20):
        pids = pids_with(mark)
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _ending(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit {code}"


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


def available(systems: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """The systems with an environment; the others are reported on the terminal."""
    for system in systems:
        if interpreter(system) is None:
            say(f"SKIPPED: {system} has no environment here; `make bench-peers` makes it")
    return [system for system in systems if system == OURS or interpreter(system) is not None]
