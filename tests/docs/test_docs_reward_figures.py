"""docs/metrics.md has each figure of the reward tier, by the name under which it is shown."""

import re
from pathlib import Path

from gleaner.actors.protocol.reward import JobState
from gleaner.actors.reward_service.client_jobs import metrics

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text()


def literals(file: str) -> set[str]:
    """Names of figures in a module: keys of its summary, and of its counts."""
    source = (ROOT / "actors" / "reward" / file).read_text()
    summary = source.partition("def summary(self)")[2] or source.partition("def counts(self)")[2]
    return set(re.findall(r'"([a-z_]+)": ', summary)) | set(
        re.findall(r'\.counts\["([a-z_]+)"\] \+= ', source)
    )


def test_figures_of_proxy_and_planner_are_in_the_page() -> None:
    names = {
        name
        for file in ("proxy.py", "planner.py", "learnt_limits.py", "item_dispatch.py", "settlement.py")
        for name in literals(file)
    }
    assert {"workers_lost", "foreign_results", "plans_at_the_most", "anchors"} <= names
    assert sorted(name for name in names if f"`{name}`" not in PAGE) == []


def test_gauges_of_the_jobs_of_a_service_are_in_the_page() -> None:
    job = JobState(
        name="code", weight=1.0, queued=1, running=1, scored=1, worker_s={"run": 1.0}, lost=0, refused=0,
        sick_for_s=0.0,
    )  # fmt: skip
    shown = set(re.findall(r"^# TYPE (gleaner_reward_job_\w+) gauge", metrics([job]).decode(), re.M))
    assert len(shown) == 7
    assert sorted(name for name in shown if f"`{name}`" not in PAGE) == []
