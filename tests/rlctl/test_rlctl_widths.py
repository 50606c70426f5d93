"""Predicted step of each tensor-parallel width, which `rlctl simulate` shows."""

import json
from dataclasses import replace

import pytest

from gleaner.configs.load import load
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.simulate import Stop, simulate
from gleaner.rlctl.what_if_setup import WhatIfOptions, setting_of
from gleaner.rlctl.width_table import WidthRow, lines_of, width_rows
from gleaner.sim.models.engine_cost import EngineCost
from gleaner.sim.models.job_model import Measured
from gleaner.sim.run_setup import RunSetup

ALONE = WhatIfOptions(
    model="qwen3-14b",
    reserved="h100x8:tp1",
    preemptible="h100x2:tp2",
    lengths="4000,0.8,0.6",
    token_scale=256,
)
SETS = ("fleet.n_prem_max=0", "rollout.prompts=64", "task.heldout_problems=1", "job.steps=2")


def alone(*sets: str, words: WhatIfOptions = ALONE) -> RunSetup:
    return setting_of(load("rlboost-14b", [*SETS, *sets]), words)


def best(rows: list[WidthRow], host: str) -> int:
    (found,) = [row.width for row in rows if row.host == host and row.best]
    return found


def test_width_table_names_shortest_step_of_each_kind_of_host() -> None:
    rows = width_rows(setting_of(load("rlboost-14b", []), ALONE))
    assert [(row.host, row.width) for row in rows] == [
        *(("reserved", width) for width in (1, 2, 4, 8)),
        *(("preemptible", width) for width in (1, 2)),
    ]
    for host in ("reserved", "preemptible"):
        seconds = {row.width: row.step_s for row in rows if row.host == host and row.step_s is not None}
        assert seconds[best(rows, host)] == min(seconds.values())


def test_width_table_has_rounds_when_job_has_them() -> None:
    rows = width_rows(alone("rounds.mode=tail"))
    for row in rows:
        assert row.short_s is not None
        assert row.long_s is not None
        assert row.step_s == pytest.approx((4 * row.short_s + row.long_s) / 5)
        assert row.short_s < row.long_s


def test_width_that_does_not_hold_model_is_never_best() -> None:
    rows = width_rows(alone(words=replace(ALONE, model="qwen3-32b", reserved="l40sx8:tp4")))
    assert (rows[0].step_s, rows[0].best) == (None, False)
    assert any(row.best for row in rows)
    assert "does not fit" in "\n".join(lines_of(rows))


def test_width_table_is_left_out_when_hosts_have_one_device() -> None:
    assert width_rows(setting_of(load("quickstart", []), WhatIfOptions())) == []


def test_width_table_is_left_out_when_times_of_engines_were_measured() -> None:
    setting = alone()
    measured = Measured(engine=EngineCost(step_s=0.01))
    assert width_rows(replace(setting, job_model=replace(setting.job_model, measured=measured))) == []


def test_simulate_shows_width_table(capsys: pytest.CaptureFixture[str]) -> None:
    rig = ["--model", "qwen3-0_6b", "--reserved", "h100x2:tp1", "--no-baseline"]
    sets = ["--set", "job.steps=1", "--set", "rollout.prompts=8", "--set", "fleet.n_prem_max=0"]
    sets += ["--set", "task.heldout_problems=1", "--set", "fleet.trace="]
    assert main(["simulate", "quickstart", *rig, *sets, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["widths"]
    assert [row["width"] for row in rows] == [1, 2]
    assert sum(row["best"] for row in rows) == 1


def test_predicted_order_of_widths_is_that_of_simulated_jobs() -> None:
    sets = ("rollout.prompts=32", "rollout.samples=4", "rollout.max_new_tokens=8192")
    words = replace(ALONE, reserved="h100x2:tp1", token_scale=512)
    predicted = {row.width: row.step_s for row in width_rows(alone(*sets, words=words)) if row.step_s}
    simulated = {}
    for width in (1, 2):
        setting = alone(*sets, "job.steps=1", words=replace(words, reserved=f"h100x2:tp{width}"))
        parts = simulate("job", setting, Stop(), lambda _: None).figures.parts
        assert parts is not None
        simulated[width] = parts.step_s
    assert sorted(predicted, key=predicted.__getitem__) == sorted(simulated, key=simulated.__getitem__)
    for width, step_s in simulated.items():
        assert predicted[width] == pytest.approx(step_s, rel=0.25)
