"""`rlctl simulate`: what a job would cost elsewhere, told before anything is rented."""

import json
from pathlib import Path

import pytest

from configs.load import load
from rlctl.__main__ import main
from rlctl.errors import CommandError
from rlctl.modelled import Words, rig_of, scaled_down, setting_of
from rlctl.simulate import Progress, Stop, baseline_of, simulate
from rlctl.what_if import figures_of
from sim.setting import Setting

TINY = [
    "job.steps=2",
    "task.heldout_problems=4",
    "rollout.prompts=8",
    "rollout.samples=2",
    "engine.slots=4",
    "fleet.trace=",
]


def tiny(*more: str) -> Setting:
    return Setting(load("quickstart", [*TINY, *more]), seed=3)


def test_a_job_is_held_against_the_same_one_without_preemptible_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [word for text in TINY for word in ("--set", text)]
    assert main(["simulate", "quickstart", *sets, "--json", "--out", str(tmp_path / "out")]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    job, alone = result["runs"]["job"], result["runs"]["co-located"]
    assert (job["ended"], alone["ended"]) == ("done", "done")
    assert job["figures"]["tokens"] == alone["figures"]["tokens"] > 0
    assert job["figures"]["instances"] > alone["figures"]["instances"] == 0
    assert job["figures"]["tokens_per_s"] > alone["figures"]["tokens_per_s"]
    page = (tmp_path / "out" / "simulate.html").read_text()
    assert "T_seed at the end" in page
    assert page.count("<svg") == 6


def test_a_user_who_stops_it_keeps_what_was_computed() -> None:
    stop = Stop()

    def tell(at: Progress) -> None:
        stop.asked = at.step >= 1

    done = simulate("job", tiny("job.steps=1000"), stop, tell)
    assert done.outcome.ended == "stopped"
    assert 1 <= done.figures.steps < 1000
    assert done.figures.tokens > 0


def test_a_longer_machine_list_costs_more_by_the_hour_and_counts_in_the_figures() -> None:
    setting = tiny()
    done = simulate("job", setting, Stop(), lambda _: None)
    figures, scaled = done.figures, figures_of(done.outcome.history, setting.config, token_scale=10)
    assert figures.parts is not None
    parts = figures.parts
    assert parts.step_s == pytest.approx(
        parts.seeding_s + parts.waiting_s + parts.training_s + parts.weights_s + parts.other_s
    )
    prices = setting.config.prices
    hour = prices.reserved_per_hour + figures.instances * prices.preemptible_per_hour
    assert figures.cost == pytest.approx(hour * figures.training_s / 3600)
    assert scaled.tokens == 10 * figures.tokens


def test_the_baseline_differs_in_its_hosts_alone() -> None:
    setting = tiny()
    alone = baseline_of(setting)
    assert alone.preemptible_hosts() == []
    assert (alone.seed, alone.config.job, alone.plant) == (setting.seed, setting.config.job, setting.plant)


def test_machines_are_named_by_device_count_and_group() -> None:
    rig = rig_of("--reserved", "h100x8:tp2")
    assert (rig.name, rig.devices, rig.tp) == ("h100", 8, 2)
    for wrong in ("h100x3:tp2", "h1000", "x8", ""):
        with pytest.raises(CommandError, match="--reserved"):
            rig_of("--reserved", wrong)


def test_a_model_that_does_not_fit_is_refused_before_anything_runs() -> None:
    words = Words(model="qwen3-32b", reserved="t4", preemptible="t4")
    with pytest.raises(CommandError, match="raise tp or take a larger device"):
        setting_of(load("rlboost-14b"), words)


def test_a_token_scale_divides_lengths() -> None:
    config = load("rlboost-14b")
    scaled = scaled_down(config, 64)
    assert scaled.rollout.max_new_tokens * 64 == config.rollout.max_new_tokens
    with pytest.raises(ValueError, match="token scale of 20000"):
        scaled_down(config, 20_000)
