"""Section of docs/benchmarks.md on recoveries, written from a run's results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import page_sections
from bench.recovery.engine_deaths import Death, Deaths
from bench.recovery.goals import goals
from bench.recovery.manager_deaths import Return
from bench.runtime.table import VERDICTS, figure
from bench.runtime.task import percentile

NAME = "recovery"
HOW = Path(__file__).with_name("how.md")
BUSY = 1.0  # load of the machine before the run from which its figures count as those of a busy one


def write(results: Mapping[str, Any], directory: Path) -> None:
    """Put the section into benchmarks.md of `directory`."""
    page_sections.put(directory / "benchmarks.md", NAME, text(results))


def read(results: Mapping[str, Any]) -> tuple[Deaths | None, list[Return]]:
    """Contents of a results file."""
    deaths, returns = results["deaths"], [Return(**one) for one in results["returns"]]
    if deaths is None:
        return None, returns
    killed, stopped = ([Death(**one) for one in deaths[how]] for how in ("killed", "stopped"))
    return Deaths(**{**deaths, "killed": killed, "stopped": stopped}), returns


def text(results: Mapping[str, Any]) -> str:
    """The section."""
    deaths, returns = read(results)
    machine = results["machine"]
    busy = float(machine["load before the run"]) >= BUSY
    return "\n".join(
        [
            "# Recovery",
            "",
            "Written by `python -m bench.recovery --write-docs` from `recovery.json`, which one run of",
            f"`python -m bench.recovery --json docs/recovery.json` wrote: begun at {results['began']},",
            f"{results['took_s']} s.",
            *(["**The machine was busy with other work meanwhile.**"] if busy else []),
            "",
            "Machine: " + "; ".join(f"{key} {value}" for key, value in machine.items()) + ".",
            "",
            HOW.read_text().strip(),
            "",
            *lines(deaths, returns),
            "",
            "| goal | measured | at most | verdict |",
            "|---|---:|---:|---|",
            *(
                f"| {goal.what} | {figure(goal.value)} {goal.unit} | {goal.bound:g} {goal.unit} | "
                f"{VERDICTS[goal.met]} |"
                for goal in goals(deaths, returns)
            ),
        ]
    )


def lines(deaths: Deaths | None, returns: Sequence[Return]) -> list[str]:
    """The table: a line for each kind of death."""
    heads = ("death", "times", "given up after", "sent elsewhere after", "first token after, p50", "p99")
    found = [f"| {' | '.join((*heads, 'longest', 'all after'))} |", "|---|---:" + "|---:" * 6 + "|"]
    for how, some in (
        ("engine, SIGKILL", deaths.killed if deaths else []),
        ("engine, SIGSTOP", deaths.stopped if deaths else []),
    ):
        if some:
            first = [death.first_s for death in some]
            cells = (
                percentile([death.gone_s for death in some], 0.5),
                percentile([death.dispatched_s for death in some], 0.5),
                percentile(first, 0.5),
                percentile(first, 0.99),
                max(first),
                percentile([death.last_s for death in some], 0.5),
            )
            found.append(f"| {how} | {len(some)} | {' | '.join(f'{figure(cell)} s' for cell in cells)} |")
    if returns:
        first = [one.first_s for one in returns]
        every = percentile([one.all_s for one in returns], 0.5)
        times = (percentile(first, 0.5), percentile(first, 0.99), max(first), every)
        what = f"manager, SIGKILL, {returns[0].requests:,} requests in flight"
        shown = " | ".join(f"{figure(time_s)} s" for time_s in times)
        found.append(f"| {what} | {len(returns)} | - | - | {shown} |")
        cost = max(one.cpu_s for one in returns)
        found += ["", f"The new manager had used at most {figure(cost)} s of processor time by then."]
    return found
