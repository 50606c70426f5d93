"""Report page: one self-contained HTML file.

Owns the texts and the layout. Pure: numbers and pictures go in, HTML comes out. Every text from outside
(names, causes, settings) is escaped.
"""

from collections.abc import Sequence
from html import escape
from importlib import resources

from gleaner.actors.reward.verdicts import OURS
from gleaner.rlctl.report import plots
from gleaner.rlctl.report.cost_page import cost_section
from gleaner.rlctl.report.critical_path import path_plot
from gleaner.rlctl.report.model import Report, Story
from gleaner.rlctl.report.step_times import PARTS, step_times
from gleaner.rlctl.report.tables import Cell, absent, figure, table
from gleaner.rlctl.report.verdict import unchecked_only
from gleaner.rlctl.wording import duration

LATER = "known when the run ends"
UNKNOWN = "–"
MAX_ROWS = 2000
"""Rows of one table; a longer history stays in history.jsonl."""

VERDICTS_OURS = "of the verifier, its sandbox or its worker: no sample is trained on with one"

REWARD = "Mean reward of the samples of each step. Diamonds: held-out problems, never trained on."
FLEET = (
    "A row for each preemptible host while it was up. Vertical lines mark kills and notices in every panel: "
    "throughput falls when a host goes, and migrations step up as its requests go on elsewhere, from their "
    "last collected token. Below the hosts: actors and processes that were restarted, a mark for each time."
)
STEP_TIME = (
    "From the end of the step before to its own; the bars together are the whole time of training. Seeding: "
    "rollout on the training host. Waiting: the trainer idle until enough responses arrived. Training: "
    "forward, backward, optimizer. Weights: publishing the new version. Recovery: the trainer or the manager "
    "was away, and work that came to nothing with it. Evaluation: on held-out problems, between two steps. A "
    "mark: something was restarted in this step."
)


CRITICAL_PATH = (
    "The mean step, from the end of the one before: the way of the response that the trainer got last, and "
    "what the trainer did after it. A thin line goes to what a stage took at most. What is on no row took no "
    "time from the step; rlctl profile shows the numbers."
)


def page_of(report: Report, story: Story, settings: str) -> str:
    """The page. settings: the resolved settings as TOML, "" if they are not at hand."""
    title = report.run_id or "run without a name"
    rewards = bool(story.steps or story.evals)
    fleet = bool(story.lives or story.samples)
    steps = bool(story.steps)
    body = [
        _header(report, title),
        _figures(report),
        "<h2>Reward</h2>",
        figure(plots.reward_plot(story), REWARD)
        if rewards
        else absent("No step ended, nothing was evaluated."),
        "<h2>Hosts, throughput and migrations</h2>",
        figure(plots.fleet_plot(story), FLEET) if fleet else absent("No host joined, no sample was taken."),
        "<h2>Where the time of a step went</h2>",
        figure(plots.step_time_plot(story), STEP_TIME) if steps else absent("No step has ended."),
        *_critical_path(story),
        "<h2>Account</h2>",
        _account(report),
        _restarts(report),
        cost_section(report, story),
        _steps(story),
        _events(story),
        f"<details><summary>Settings</summary><pre>{escape(settings)}</pre></details>" if settings else "",
    ]
    style = resources.files("gleaner.rlctl.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · Gleaner</title><style>\n{style}</style></head>\n"
        f"<body><main>\n{''.join(f'{part}{chr(10)}' for part in body if part)}</main></body></html>\n"
    )


def _critical_path(story: Story) -> list[str]:
    if not story.paths:
        return []
    return ["<h2>What the end of a step waited for</h2>", figure(path_plot(story.paths), CRITICAL_PATH)]


def _header(report: Report, title: str) -> str:
    state, word = _outcome(report)
    broken = "".join(f"<li>{escape(violation)}</li>" for violation in report.violations)
    return (
        f'<header><p class="eyebrow">Gleaner · training run</p><h1>{escape(title)}</h1>'
        f'<p class="lead"><span class="outcome {state}">{escape(word)}</span> {_summary(report)}</p>'
        + (f'<ul class="violations">{broken}</ul>' if broken else "")
        + "</header>"
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


def _figures(report: Report) -> str:
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
    cells = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="figures">{"".join(cells)}</dl>'


def _account(report: Report) -> str:
    rows: list[Sequence[Cell]] = [
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
        ("Preemptions without notice", report.preemptions.killed, "the host was killed in its work"),
        ("Preemptions with notice", report.preemptions.noticed, "the host drained and left"),
        ("Resumes", report.resumes, "the whole run was stopped and went on"),
    ]
    return table(("What", "Count", "Meaning"), rows, numbers={1})


def _verdicts(report: Report) -> list[Sequence[Cell]]:
    found = report.verdicts
    if found is None:
        return []
    rows: list[Sequence[Cell]] = [
        (f"Verdicts: {status}", count, VERDICTS_OURS if status in OURS else "of the response")
        for status, count in sorted(found.counts.items())
    ]
    if found.failure:
        rows.append(("Last failure of the verifier", "", found.failure))
    return rows


def _restarts(report: Report) -> str:
    title = "<h2>Restarts by actor and cause</h2>"
    if not report.restarts:
        return f"{title}{absent('No actor or process was restarted.')}"
    rows = [(one.actor, one.cause, one.count) for one in report.restarts[:MAX_ROWS]]
    return title + table(("Actor", "Cause", "Restarts"), rows, numbers={2})


def _steps(story: Story) -> str:
    rows: list[Sequence[Cell]] = [
        (
            step.step,
            "none" if step.reward is None else f"{step.reward:.3f}",
            step.samples,
            step.tokens,
            f"{step.step_s:.2f}",
            "-" if step.predicted_s is None else f"{step.predicted_s:.2f}",
            *(f"{time.part_s(part):.2f}" for part in PARTS),
            time.restarts,
            f"{step.t_seed_s:.2f}",
            step.n_prem,
            "not finite" if step.grad_norm is None else f"{step.grad_norm:.3f}",
            f"{step.staleness_mean:.2f}",
            "" if step.drift is None else f"{step.drift:.1e}",
            "" if step.truncated is None else f"{step.truncated:.1%}",
        )
        for step, time in zip(story.steps, step_times(story.steps, story.restarts), strict=True)
    ]
    names = ("Step", "Reward", "Samples", "Tokens", "Seconds", "Predicted", *map(str.capitalize, PARTS),
             "Restarts", "Next T_seed", "Next N_prem", "Gradient", "Staleness", "Drift",
             "Truncated")  # fmt: skip
    return _folded("Every step", names, rows, numbers=set(range(len(names))))


def _events(story: Story) -> str:
    rows = [(f"{node.t_s:.1f}", node.node, node.role, node.event) for node in story.nodes]
    return _folded("Every host event", ("Second", "Host", "Role", "Event"), rows, numbers={0})


def _folded(title: str, names: Sequence[str], rows: Sequence[Sequence[Cell]], numbers: set[int]) -> str:
    if not rows:
        return ""
    more = f'<p class="muted">The first {MAX_ROWS} of {len(rows)}.</p>' if len(rows) > MAX_ROWS else ""
    return f"<details><summary>{title}</summary>{table(names, rows[:MAX_ROWS], numbers)}{more}</details>"


def _rate(report: Report) -> str:
    return f"{report.tokens.collected / report.wall_s:,.0f} a second on average" if report.wall_s else ""


def _known(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def _decimal(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"
