"""Jobs with rounds whose settings are at the edge of what makes sense: each ends, and keeps every promise."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
import tomli_w

from gleaner.chaos.faults import KillProcess
from gleaner.chaos.plan import load
from gleaner.chaos.schedule import Schedule
from gleaner.chaos.sim_run import run

TINY = Path(__file__).with_name("tiny.toml")
STEPS = 6
CALM = Schedule(seed=0, faults=())
KILLS = Schedule(
    seed=0,
    faults=(
        KillProcess(at_s=7.0, host="head", process="rollout"),
        KillProcess(at_s=8.0, host="@preemptible/1", process="engine"),
        KillProcess(at_s=9.0, host="reserved-1", process="trainer"),
    ),
)
INPUTS: dict[str, Mapping[str, Mapping[str, object]]] = {
    "more prompts than problems": {"task": {"train_problems": 3}, "rollout": {"prompts": 4}},
    "one problem": {"task": {"train_problems": 1}},
    "one prompt": {"rollout": {"prompts": 1}},
    "uniform groups without refills": {"rollout": {"drop_uniform": True, "max_refills": 0}},
}


@pytest.mark.parametrize("schedule", [CALM, KILLS], ids=["calm", "kills"])
@pytest.mark.parametrize("inputs", INPUTS.values(), ids=list(INPUTS))
def test_job_with_rounds_ends_and_keeps_every_promise_when_settings_are_extreme(
    inputs: Mapping[str, Mapping[str, object]], schedule: Schedule, tmp_path: Path
) -> None:
    campaign = tomllib.loads(TINY.read_text())
    settings = campaign["settings"]
    settings["job"]["steps"] = STEPS
    settings["rounds"] = {"mode": "tail", "prompts_factor": 1.5}
    for section, values in inputs.items():
        settings[section].update(values)
    file = tmp_path / "extreme.toml"
    file.write_text(tomli_w.dumps(campaign))
    outcome = run(load(str(file)), 0, schedule)
    assert outcome.broken == ()
    assert (outcome.ended, outcome.steps) == ("done", STEPS)
    assert sum(outcome.fired.values()) == len(schedule.faults), "a fault did not happen"
