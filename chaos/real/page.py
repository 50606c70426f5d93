"""Campaign report as one self-contained HTML page. Pure; every text is escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from gleaner.chaos.real import plots
from gleaner.chaos.real.told import CampaignTold, FaultTold
from gleaner.rlctl.wording import duration

RECOVERY = (
    "A dot for each recovery: from the moment when nothing was broken any more until every process was "
    "there, every host counted in, every instance serving, and tokens and a step had come since. Green: "
    "median; amber: 95th percentile."
)
TIME = "Tokens collected a second. Red: something is broken; amber: recovering."
NONE = "–"


def page_of(told: CampaignTold) -> str:
    """The page."""
    title = f"{told.campaign}, seed {told.seed}"
    style = resources.files("gleaner.rlctl").joinpath("templates", "style.css").read_text(encoding="utf-8")
    body = [
        _header(told, title),
        "<h2>Recovery times</h2>",
        _figure(plots.recovery_plot(told), RECOVERY) if told.fired else "",
        _table(
            ("Fault", "Fired", "Missed", "Recovered", "Processes back, p50", "p50", "p95", "Longest"),
            (
                (one.kind, one.fired, one.missed, one.recovered, _s(one.back_p50_s), _s(one.recovered_p50_s),
                 _s(one.recovered_p95_s), _s(one.recovered_max_s))
                for one in told.recovery
            ),
        ),
        "<h2>What happened when</h2>",
        _figure(plots.time_plot(told), TIME),
        _table(("At", "What", "Broken", "Recovered", "Evidence"), map(_fault, told.faults)),
        "<h2>Recovery paths taken</h2>",
        _table(("Path", "Times"), told.paths.items()),
        "<h2>Jobs</h2>",
        _table(
            ("Run", "Exit code", "Steps", "Tokens", "Migrated", "Violations"),
            (
                (job.run_id, NONE if job.exit_code is None else job.exit_code, job.steps, f"{job.tokens:,}",
                 f"{job.migrated:,}", len(job.violations))
                for job in told.jobs
            ),
        ),
    ]  # fmt: skip
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · Gleaner</title><style>\n{style}</style></head>\n"
        f"<body><main>\n{''.join(f'{part}{chr(10)}' for part in body if part)}</main></body></html>\n"
    )


def _header(told: CampaignTold, title: str) -> str:
    state, word = ("good", "Every invariant held.") if told.ok else ("bad", "It failed.")
    if told.invalid and not told.violations:
        word = "It does not count."
    wrong = "".join(f"<li>{escape(text)}</li>" for text in (*told.violations, *told.invalid))
    fired = sum(told.fired.values())
    jobs = f"{len(told.jobs)} job{'s'[: len(told.jobs) != 1]}"
    lead = f"{fired} faults of {len(told.fired)} kinds in {duration(told.seconds)}, {jobs}."
    if told.without:
        lead += f" Left out: {escape(', '.join(told.without))}."
    return (
        f'<header><p class="eyebrow">Gleaner · chaos on real processes</p><h1>{escape(title)}</h1>'
        f'<p class="lead"><span class="outcome {state}">{word}</span> {lead}</p>'
        + (f'<ul class="violations">{wrong}</ul>' if wrong else "")
        + "</header>"
    )


def _figure(picture: str, caption: str) -> str:
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def _fault(one: FaultTold) -> Sequence[object]:
    if one.missed:
        return _s(one.at_s), one.what, NONE, f"missed: {one.missed}", ""
    evidence = ", ".join(f"{key.replace('_', ' ')} {count:,}" for key, count in one.evidence.items() if count)
    recovered = _s(one.recovered_s) if not one.lacking else f"NEVER: {', '.join(one.lacking)}"
    return _s(one.at_s), one.what, _s(one.broken_s), recovered, evidence


def _table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _s(seconds: float | None) -> str:
    return NONE if seconds is None else f"{seconds:.1f}\u00a0s"
