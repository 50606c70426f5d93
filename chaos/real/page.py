"""Campaign report as one self-contained HTML page.

Owns the figures and their wording; `rlctl/templates/chaos.html.jinja` has the layout and the captions. Pure.
"""

from gleaner.chaos.real import plots
from gleaner.chaos.real.told import CampaignTold, FaultTold, JobTold
from gleaner.rlctl.page_templates import Row, render
from gleaner.rlctl.wording import duration

NONE = "–"


def page_of(told: CampaignTold) -> str:
    """The page."""
    state, outcome = ("good", "Every invariant held.") if told.ok else ("bad", "It failed.")
    if told.invalid and not told.violations:
        outcome = "It does not count."
    return render(
        "chaos",
        title=f"{told.campaign}, seed {told.seed}",
        state=state,
        outcome=outcome,
        summary=_summary(told),
        violations=(*told.violations, *told.invalid),
        recovery_plot=plots.recovery_plot(told) if told.fired else None,
        recovery=[
            (
                one.kind,
                str(one.fired),
                str(one.missed),
                str(one.recovered),
                *map(_s, (one.back_p50_s, one.recovered_p50_s, one.recovered_p95_s, one.recovered_max_s)),
            )
            for one in told.recovery
        ],
        time_plot=plots.time_plot(told),
        faults=[_fault(one) for one in told.faults],
        paths=[(path, str(times)) for path, times in told.paths.items()],
        jobs=[_job(job) for job in told.jobs],
    )


def _summary(told: CampaignTold) -> str:
    fired = sum(told.fired.values())
    jobs = f"{len(told.jobs)} job{'s'[: len(told.jobs) != 1]}"
    text = f"{fired} faults of {len(told.fired)} kinds in {duration(told.seconds)}, {jobs}."
    return f"{text} Left out: {', '.join(told.without)}." if told.without else text


def _fault(one: FaultTold) -> Row:
    if one.missed:
        return _s(one.at_s), one.what, NONE, f"missed: {one.missed}", ""
    evidence = ", ".join(f"{key.replace('_', ' ')} {count:,}" for key, count in one.evidence.items() if count)
    recovered = _s(one.recovered_s) if not one.lacking else f"NEVER: {', '.join(one.lacking)}"
    return _s(one.at_s), one.what, _s(one.broken_s), recovered, evidence


def _job(job: JobTold) -> Row:
    code = NONE if job.exit_code is None else str(job.exit_code)
    counts = str(job.steps), f"{job.tokens:,}", f"{job.migrated:,}", str(len(job.violations))
    return job.run_id, code, *counts


def _s(seconds: float | None) -> str:
    return NONE if seconds is None else f"{seconds:.1f}\u00a0s"
