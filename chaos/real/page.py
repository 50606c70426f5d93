"""Campaign report as one self-contained HTML page.

Owns the figures and their wording; `rlctl/templates/chaos.html.jinja` has the layout and the captions. Pure.
"""

from gleaner.chaos.real import plots
from gleaner.chaos.real.report_schema import CampaignReport, FaultReport, JobReport
from gleaner.rlctl.page_templates import Row, render
from gleaner.rlctl.quantity_format import duration

NONE = "–"


def page_of(report: CampaignReport) -> str:
    """The page."""
    state, outcome = ("good", "Every invariant held.") if report.ok else ("bad", "It failed.")
    if report.invalid and not report.violations:
        outcome = "It does not count."
    return render(
        "chaos",
        title=f"{report.campaign}, seed {report.seed}",
        state=state,
        outcome=outcome,
        summary=_summary(report),
        violations=(*report.violations, *report.invalid),
        recovery_plot=plots.recovery_plot(report) if report.fired else None,
        recovery=[
            (
                one.kind,
                str(one.fired),
                str(one.missed),
                str(one.recovered),
                *map(_s, (one.back_p50_s, one.recovered_p50_s, one.recovered_p95_s, one.recovered_max_s)),
            )
            for one in report.recovery
        ],
        time_plot=plots.time_plot(report),
        faults=[_fault(one) for one in report.faults],
        paths=[(path, str(times)) for path, times in report.paths.items()],
        jobs=[_job(job) for job in report.jobs],
    )


def _summary(report: CampaignReport) -> str:
    fired = sum(report.fired.values())
    jobs = f"{len(report.jobs)} job{'s'[: len(report.jobs) != 1]}"
    text = f"{fired} faults of {len(report.fired)} kinds in {duration(report.seconds)}, {jobs}."
    return f"{text} Left out: {', '.join(report.without)}." if report.without else text


def _fault(one: FaultReport) -> Row:
    if one.missed:
        return _s(one.at_s), one.what, NONE, f"missed: {one.missed}", ""
    evidence = ", ".join(f"{key.replace('_', ' ')} {count:,}" for key, count in one.evidence.items() if count)
    recovered = _s(one.recovered_s) if not one.lacking else f"NEVER: {', '.join(one.lacking)}"
    return _s(one.at_s), one.what, _s(one.broken_s), recovered, evidence


def _job(job: JobReport) -> Row:
    code = NONE if job.exit_code is None else str(job.exit_code)
    counts = str(job.steps), f"{job.tokens:,}", f"{job.migrated:,}", str(len(job.violations))
    return job.run_id, code, *counts


def _s(seconds: float | None) -> str:
    return NONE if seconds is None else f"{seconds:.1f}\u00a0s"
