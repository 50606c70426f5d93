"""Final output of a run: its figures, and the places of its files.

Owns the texts of the end. Computes nothing.
"""

from rich.console import Console
from rich.text import Text

from gleaner.rlctl.preflight import size
from gleaner.rlctl.quantity_format import duration
from gleaner.rlctl.report.model import Report
from gleaner.rlctl.report.verdict import Instances, findings, unchecked_only
from gleaner.rlctl.runs import RunDir


def rows(report: Report, run: RunDir) -> list[tuple[str, str]]:
    """Names and values, in the order of interest."""
    tokens, cost = report.tokens, report.cost
    restarts = sum(restart.count for restart in report.restarts)
    found = [
        ("held-out reward", f"{_number(report.reward.first)} → {_number(report.reward.last)}"),
        *(
            (f"  {name}", f"{_number(first)} → {_number(last)}")
            for name, (first, last) in report.reward.tasks.items()
        ),
        ("steps", f"{report.steps} of {report.steps_planned} in {duration(report.wall_s)}"),
        (
            "tokens",
            f"{tokens.collected:,} collected, {_count(tokens.lost)} lost, "
            f"{_count(tokens.generated_twice)} generated twice",
        ),
        ("requests migrated", f"{report.requests.migrated}"),
        (
            "hosts taken away",
            f"{report.preemptions.killed} killed, {report.preemptions.noticed} with notice",
        ),
        ("restarts", f"{restarts}{_recovery(report)}"),
    ]
    if (instances := report.instances) is not None:
        before = 4 + len(report.reward.tasks)
        found.insert(before, ("preemptible instances", _instances(instances, report.steps)))
    if (pulled := report.weights) is not None:
        spared = 1 - (pulled.delta_bytes + pulled.whole_bytes) / max(1, pulled.image_bytes)
        found.append(
            (
                "weights pulled",
                f"{pulled.delta_versions} versions as what changed ({size(pulled.delta_bytes)}), "
                f"{pulled.whole_versions} whole ({size(pulled.whole_bytes)}); "
                f"{spared:.0%} of the bytes spared",
            )
        )
    if (verdicts := report.verdicts) is not None:
        found.append(("verdicts", ", ".join(f"{one} {n:,}" for one, n in sorted(verdicts.counts.items()))))
        if verdicts.failure:
            found.append(("last failed verdict", verdicts.failure))
    if report.resumes:
        found.append(("resumed", "once" if report.resumes == 1 else f"{report.resumes} times"))
    if cost is not None:
        found.append(
            (
                "cost",
                f"{cost.total:.4f} {cost.currency} (all on reserved hosts: {cost.at_reserved_price:.4f})",
            )
        )
    account = report.account
    if account is not None and account.per_million_tokens is not None:
        found.append(("", f"{account.per_million_tokens:.4g} {account.currency} a million trained tokens"))
    if account is not None and account.wasted:
        causes = ", ".join(f"{count:,} {cause.replace('_', ' ')}" for cause, count in account.wasted.items())
        found.append(("tokens wasted", f"{causes} ({account.wasted_share or 0.0:.1%} of all)"))
    if report.ok is not None:
        words = findings(len(report.violations), report.unchecked).removeprefix("invariants: ")
        found.append(("invariants", "all held" if report.ok else words))
    found += [(f"  {index}.", text) for index, text in enumerate(report.violations, start=1)]
    for name, path in (
        ("report", run.path / "report.html"),
        ("checkpoints", run.checkpoints),
        ("logs", run.nodes),
    ):
        if path.exists():
            found.append((name, str(path)))
    return found


def print_closing(report: Report, run: RunDir, console: Console) -> None:
    """The lines that end `rlctl run`."""
    console.print()
    console.print(Text(f"run {report.run_id or run.id}", style="bold"))
    if report.outcome is not None:
        console.print(Text(f"  {report.outcome.sentence}", style=style(report)), soft_wrap=True)
    lines = rows(report, run)
    width = max(len(name) for name, _value in lines)
    for name, value in lines:
        console.print(Text.assemble((f"  {name:{width}}  ", "dim"), value), soft_wrap=True)


def style(report: Report) -> str:
    """Style of the sentence about the result: green where all goals were reached, red where an invariant was
    broken."""
    if report.outcome is not None and report.outcome.reached:
        return "bold green"
    broken = report.ok is False and not unchecked_only(len(report.violations), report.unchecked)
    return "bold red" if broken else "bold yellow"


def _instances(instances: Instances, steps: int) -> str:
    if not instances.served:
        return f"none served: {instances.why}" if instances.why else "none served"
    first = f"the first served after {instances.first_s:.1f} s, " if instances.first_s is not None else ""
    return f"{first}at work in {instances.busy_steps} of {steps} steps"


def _recovery(report: Report) -> str:
    """Time of deaths and resumes as a part of all steps, "" where there was none."""
    lost_s = sum(time.recovery_s for time in report.step_times)
    whole_s = sum(time.step_s for time in report.step_times)
    return f"; recovery took {duration(lost_s)} ({lost_s / whole_s:.0%} of the steps' time)" if lost_s else ""


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.3f}"


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"
