"""Report page: one self-contained HTML file.

Owns the figures, their wording and their order; `templates/run.html.jinja` has the layout and the captions.
Pure: numbers and pictures go in, HTML comes out.
"""

from gleaner.actors.reward.verdicts import OURS
from gleaner.rlctl.page_templates import Row, render
from gleaner.rlctl.quantity_format import duration
from gleaner.rlctl.report import plots
from gleaner.rlctl.report.cost_page import cost_section
from gleaner.rlctl.report.critical_path import path_plot
from gleaner.rlctl.report.model import Report, Story
from gleaner.rlctl.report.step_times import PARTS, step_times
from gleaner.rlctl.report.verdict import unchecked_only

LATER = "known when the run ends"
UNKNOWN = "–"
MAX_ROWS = 2000
"""Rows of one table; a longer history stays in history.jsonl."""

STEP_NAMES = (
    "Step", "Reward", "Samples", "Tokens", "Seconds", "Predicted", *map(str.capitalize, PARTS), "Restarts",
    "Stair", "On half", "Next T_seed", "Next N_prem", "Next width", "Gradient", "Staleness", "Drift",
    "Truncated",
)  # fmt: skip
VERDICTS_OURS = "of the verifier, its sandbox or its worker: no sample is trained on with one"


def page_of(report: Report, story: Story, settings: str) -> str:
    """The page. settings: the resolved settings as TOML, "" if they are not at hand."""
    state, outcome = _outcome(report)
    return render(
        "run",
        title=report.run_id or "run without a name",
        state=state,
        outcome=outcome,
        summary=_summary(report),
        violations=report.violations,
        tiles=_figures(report),
        reward_plot=plots.reward_plot(story) if story.steps or story.evals else None,
        fleet_plot=plots.fleet_plot(story) if story.lives or story.samples else None,
        step_time_plot=plots.step_time_plot(story) if story.steps else None,
        seeding_plot=plots.seeding_plot(story) if any(step.t_seed_s for step in story.steps) else None,
        path_plot=path_plot(story.paths) if story.paths else None,
        account=_account(report),
        restarts=[(one.actor, one.cause, one.count) for one in report.restarts],
        cost=cost_section(report, story),
        step_names=STEP_NAMES,
        steps=_steps(story),
        events=[(f"{node.t_s:.1f}", node.node, node.role, node.event) for node in story.nodes],
        settings=settings,
        most=MAX_ROWS,
    )


def _outcome(report: Report) -> tuple[str, str]:
    sentence = _sentence(report)
    if not report.finished:
        return "open", f"This run has not ended{sentence}."
    if not report.ok:
        if unchecked_only(len(report.violations), report.unchecked):
            return "open", f"Ended, but not every invariant could be checked{sentence}."
        return "bad", f"Ended, but not every invariant held{sentence}."
    reached = report.outcome is not None and report.outcome.reached
    return "good" if reached else "open", f"Ended, every invariant held{sentence}."


def _sentence(report: Report) -> str:
    return f": {report.outcome.sentence}" if report.outcome is not None else ""


def _summary(report: Report) -> str:
    steps = (
        f"{report.steps} of {report.steps_planned} steps in {duration(report.wall_s)}, seed {report.seed}."
    )
    gone = report.preemptions.killed + report.preemptions.noticed
    if not gone:
        return f"{steps} No preemptible host was taken away."
    return (
        f"{steps} Preemptible hosts taken away: {report.preemptions.killed} without notice, "
        f"{report.preemptions.noticed} with; requests that went on elsewhere: {report.requests.migrated:,}."
    )


def _weights(report: Report) -> list[tuple[str, str, str]]:
    pulled = report.weights
    if pulled is None:
        return []
    counts = f"{pulled.delta_versions:,} + {pulled.whole_versions:,}"
    sizes = f"{pulled.delta_bytes + pulled.whole_bytes:,} bytes of {pulled.image_bytes:,}"
    return [("Weights pulled", counts, f"as what changed + whole: {sizes}")]


def _instances(report: Report) -> list[tuple[str, str, str]]:
    found = report.instances
    if found is None:
        return []
    if not found.served:
        return [("Preemptible instances", "none served", found.why or "the reserved host was alone")]
    first = UNKNOWN if found.first_s is None else f"{found.first_s:.1f} s"
    return [("First preemptible instance", first, f"at work in {found.busy_steps} of {report.steps} steps")]


def _figures(report: Report) -> list[tuple[str, str, str]]:
    first, last = report.reward.first, report.reward.last
    rise = (
        f"{last - first:+.2f} on held-out problems" if first is not None and last is not None else "held-out"
    )
    tiles: list[tuple[str, str, str]] = [
        ("Reward, first → last", f"{_decimal(first)} → {_decimal(last)}", rise),
        *(
            (f"Reward, {name}", f"{_decimal(one)} → {_decimal(other)}", "its held-out problems")
            for name, (one, other) in report.reward.tasks.items()
        ),
        ("Tokens collected", f"{report.tokens.collected:,}", _rate(report)),
        ("Tokens lost", _known(report.tokens.lost), "collected, then missing" if report.finished else LATER),
        (
            "Tokens generated twice",
            _known(report.tokens.generated_twice),
            "dropped: made elsewhere too" if report.finished else LATER,
        ),
        (
            "Requests migrated",
            f"{report.requests.migrated:,}",
            f"to another instance, {report.requests.moved:,} of them to balance load",
        ),
        (
            "Preemptions",
            f"{report.preemptions.killed} + {report.preemptions.noticed}",
            "killed + with notice",
        ),
        *_weights(report),
        *_instances(report),
        ("Restarts", f"{sum(one.count for one in report.restarts)}", "by supervisors"),
    ]
    if report.cost:
        tiles.append(
            ("Cost", f"{report.cost.total:.4f} {report.cost.currency}", "at the prices of the settings")
        )
    return tiles


def _account(report: Report) -> list[Row]:
    return [
        ("Tokens collected", report.tokens.collected, "journaled by the manager, each once"),
        ("Tokens lost", _known(report.tokens.lost), "collected, but in no request's log"),
        (
            "Tokens generated twice",
            _known(report.tokens.generated_twice),
            "dropped: they came after their request had gone elsewhere",
        ),
        (
            "Requests migrated",
            report.requests.migrated,
            "dispatched again: handed over, drained or left behind by an instance",
        ),
        *_verdicts(report),
        *_scoring(report),
        ("Preemptions without notice", report.preemptions.killed, "the host was killed in its work"),
        ("Preemptions with notice", report.preemptions.noticed, "the host drained and left"),
        ("Resumes", report.resumes, "the whole run was stopped and went on"),
    ]


def _verdicts(report: Report) -> list[Row]:
    found = report.verdicts
    if found is None:
        return []
    rows: list[Row] = [
        (f"Verdicts: {status}", count, VERDICTS_OURS if status in OURS else "of the response")
        for status, count in sorted(found.counts.items())
    ]
    if found.failure:
        rows.append(("Last failure of the verifier", "", found.failure))
    return rows


def _scoring(report: Report) -> list[Row]:
    found = report.scoring
    if found is None:
        return []
    return [
        (
            "Scoring, hidden",
            f"{found.hidden_s:.3f} s",
            "of a step: responses waited for verdicts, others were decoded",
        ),
        ("Scoring, exposed", f"{found.exposed_s:.3f} s", "of a step: its end waited for the last verdict"),
    ]


def _steps(story: Story) -> list[Row]:
    return [
        (
            step.step,
            "none" if step.reward is None else f"{step.reward:.3f}",
            step.samples,
            step.tokens,
            f"{step.step_s:.2f}",
            "-" if step.predicted_s is None else f"{step.predicted_s:.2f}",
            *(f"{time.part_s(part):.2f}" for part in PARTS),
            time.restarts,
            "" if step.stair_s is None else f"{step.stair_s:.2f}",
            "" if step.stair_s is None else f"{step.half_s:.2f}",
            f"{step.t_seed_s:.2f}",
            step.n_prem,
            step.width or "",
            "not finite" if step.grad_norm is None else f"{step.grad_norm:.3f}",
            f"{step.staleness_mean:.2f}",
            "" if step.drift is None else f"{step.drift:.1e}",
            "" if step.truncated is None else f"{step.truncated:.1%}",
        )
        for step, time in zip(story.steps, step_times(story.steps, story.restarts), strict=True)
    ]


def _rate(report: Report) -> str:
    return f"{report.tokens.collected / report.wall_s:,.0f} a second on average" if report.wall_s else ""


def _known(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def _decimal(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"
