"""Invariants of a stopped run: I1 to I5, and agreement of its history and report.

Owns the comparison of the run's own account with its journals. The invariants are
`gleaner.rlctl.audit.invariants`'s.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from gleaner.actors.training.history import AnyRecord, End, Step, read_history
from gleaner.rlctl.audit.invariants import Evidence, audit
from gleaner.rlctl.audit.run_files import gather
from gleaner.rlctl.report.model import Report
from gleaner.rlctl.runs import RunDir


def broken(run: RunDir, *, complete: bool = True) -> list[str]:
    """All violations of a stopped run, as texts. complete: it ended; every step is due."""
    evidence = gather(run.path, run.config(), complete=complete)
    records = read_history(run.history)
    faults = [str(violation) for violation in audit(evidence)]
    faults += history_faults(records, evidence, complete=complete)
    if complete:
        report = msgspec.json.decode((run.path / "report.json").read_bytes(), type=Report)
        faults += report_faults(report, evidence)
    return faults


def history_faults(records: Sequence[AnyRecord], evidence: Evidence, *, complete: bool) -> Iterator[str]:
    """Steps of the history against those of the journal, and its end."""
    steps = [record.step for record in records if isinstance(record, Step)]
    for step, count in Counter(steps).items():
        if count > 1:
            yield f"history: step {step} is recorded {count} times"
    if steps != sorted(steps):
        yield f"history: steps out of order: {steps}"
    if complete and sorted(set(steps)) != list(range(1, evidence.steps + 1)):
        yield f"history: it has the steps {steps}, the run has {evidence.steps}"
    unknown = set(evidence.finished) - set(steps)
    if unknown:
        yield f"history: steps {sorted(unknown)} are journaled as finished and are not recorded"
    if complete and sum(isinstance(record, End) for record in records) != 1:
        yield "history: it has not exactly one end"
    elif complete and not isinstance(records[-1], End):
        yield f"history: {type(records[-1]).__name__} is recorded after its end"


def report_faults(report: Report, evidence: Evidence) -> Iterator[str]:
    """report.json against the journals."""
    collected = evidence.counters.tokens_collected if evidence.counters is not None else None
    wanted = (True, True, evidence.steps, collected, evidence.tokens_lost)
    reported = (report.finished, report.ok, report.steps, report.tokens.collected, report.tokens.lost)
    if reported != wanted:
        yield f"report: finished, ok, steps, tokens collected and lost are {reported}, should be {wanted}"
    if report.violations:
        yield f"report: {report.violations}"
