"""Output of `rlctl sim`: progress with time left, tally, violations, lists.

Owns the texts. Pure except for the progress line, which has a stream and a clock.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from gleaner.chaos import faults
from gleaner.chaos.campaign import Minimal
from gleaner.chaos.coverage import PATHS
from gleaner.chaos.fault_base import Fault
from gleaner.chaos.invariants.catalogue import CHECKS, explanation
from gleaner.chaos.plan import load, names
from gleaner.chaos.replay import Replayed
from gleaner.chaos.tally import CampaignReport, RunReport
from gleaner.rlctl.quantity_format import duration

SHOWN = 5
"""Failing seeds printed in full; the others are counted, and are in the JSON."""
EVERY_S = 0.5
"""Between two changes of the progress line."""


class Progress:
    """One line on a terminal, an occasional line elsewhere."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._began_s = self._told_s = time.monotonic()
        self._every_s = EVERY_S if out.isatty() else 20 * EVERY_S
        self._broken = 0
        self._virtual_s = 0.0

    @property
    def passed_s(self) -> float:
        """Wall seconds since the beginning."""
        return time.monotonic() - self._began_s

    def run(self, result: RunReport, done: int, total: int) -> None:
        """See `campaign.OnRun`."""
        self._broken += not result.ok
        self._virtual_s += result.virtual_s
        now_s = time.monotonic()
        if now_s - self._told_s < self._every_s and done < total:
            return
        self._told_s = now_s
        left_s = self.passed_s / done * (total - done)
        speed = self._virtual_s / max(self.passed_s, 1e-9)
        text = (
            f"{done} of {total} runs, {self._broken} broken, {speed:,.0f} simulated seconds a second, "
            f"{duration(left_s)} left"
        )
        self._out.write(f"\r{text:<100}" if self._out.isatty() else f"{text}\n")
        self._out.flush()

    def end(self) -> None:
        """End the line."""
        if self._out.isatty():
            self._out.write("\r" + " " * 100 + "\r")
            self._out.flush()


def report_lines(report: CampaignReport, source: str) -> Iterator[str]:
    """Report of a campaign. source: the value of `--campaign`, and the other options that a replay needs."""
    yield (
        f"{report.campaign}: {report.runs} runs of seeds {report.seeds}, {report.virtual_s / 3600:.1f} "
        "simulated "
        f"hours in "
        f"{duration(report.wall_s)}; trace {report.trace_hash}"
    )
    yield from _faults(report)
    taken = ", ".join(f"{name} {count}" for name, count in report.paths.items() if count) or "none"
    yield f"  recovery paths   {taken}"
    if report.never_fired:
        yield f"  INVALID          never fired: {', '.join(report.never_fired)}"
    if report.never_taken:
        yield f"  INVALID          never taken: {', '.join(report.never_taken)}"
    yield f"  violations       {'none' if not report.violations else f'in {report.violations} runs'}"
    broken = [run for run in report.results if run.broken]
    explained: set[str] = set()
    for run in broken[:SHOWN]:
        yield from _violation(run, explained)
        yield f"      again: rlctl sim replay {run.seed} --campaign {source}"
    if len(broken) > SHOWN:
        others = ", ".join(str(run.seed) for run in broken[SHOWN:][:20])
        yield f"  and {len(broken) - SHOWN} more: seeds {others}"


def replay_lines(replayed: Replayed, trace: Path | None) -> Iterator[str]:
    """Report of a replay."""
    yield from replayed.tail
    if trace is not None:
        yield f"{replayed.lines} lines of trace in {trace}"
    run = replayed.run
    yield f"seed {run.seed}: {run.ended} after {run.virtual_s:.2f} simulated seconds, trace {run.trace_hash}"
    yield from _faults(run)
    if run.broken:
        yield from _violation(run, set())
    else:
        yield "  every check held"


def list_lines() -> Iterator[str]:
    """The lists of campaigns, faults, checks and paths."""
    yield "campaigns (rlctl sim run --campaign NAME)"
    for name in names():
        campaign = load(name).campaign
        yield f"  {name:<16} {campaign.about} Seeds {campaign.seeds}."
    yield "faults"
    for kind, cls in faults.KINDS.items():
        yield f"  {kind:<16} {_first_line(cls)}"
    yield "checks"
    for check in CHECKS:
        yield f"  {check.name:<16} {check.promise}"
    yield "recovery paths"
    for path in PATHS:
        yield f"  {path.name:<16} {path.meaning}"


def _faults(report: CampaignReport | RunReport) -> Iterator[str]:
    fired = ", ".join(f"{kind} {count}" for kind, count in report.fired.items()) or "none"
    yield f"  faults fired     {fired}"
    if report.shapes:
        yield f"  of these         {', '.join(f'{shape} {count}' for shape, count in report.shapes.items())}"
    if report.missed:
        missed = ", ".join(f"{kind} {count}" for kind, count in report.missed.items())
        yield f"  missed           {missed} (their target was not there)"


def _violation(run: RunReport, explained: set[str]) -> Iterator[str]:
    first = run.broken[0]
    yield f"  seed {run.seed}: {first.check} at {first.at_s:.3f} s: {first.text}"
    if len(run.broken) > 1:
        more, second = len(run.broken) - 1, run.broken[1]
        yield f"      and {more} more in this run, next {second.check}: {second.text}"
    if first.check not in explained:
        explained.add(first.check)
        yield f"      {explanation(first.check)}"


def minimal_lines(found: Minimal, source: str, folder: Path) -> Iterator[str]:
    """The fewest faults of a failing seed."""
    what = "no fault of these can be dropped" if found.minimal else "the search ran out of runs"
    count = len(found.schedule.faults)
    head = f"  seed {found.seed}, fewest faults that still break {found.check}"
    yield f"{head}: {count} ({what}; {found.runs} runs)"
    for fault in found.schedule.faults:
        yield f"      {faults.description(fault)}"
    file = folder / f"seed-{found.seed}.toml"
    yield f"      again: rlctl sim replay {found.seed} --campaign {source} --schedule {file}"


def _first_line(cls: type[Fault]) -> str:
    text = " ".join((cls.__doc__ or "").split())
    return text.split(". ")[0].split(": ")[0].rstrip(".")
