"""Settings of rounds: what is refused, and with which words."""

import pytest

from gleaner.configs.load import ConfigError, load


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["rounds.prompts_factor=nan"], "rounds.prompts_factor: expected a number ≥ 1 and ≤ 2"),
        (["rounds.prompts_factor=0.99"], "expected a number ≥ 1 and ≤ 2"),
        (["rounds.samples_factor=2.01"], "expected a number ≥ 1 and ≤ 2"),
        (["rounds.prompts_factor=1"], "launches nothing more than counts"),
        (["rollout.over_sampling=1.5"], "rollout.over_sampling: expected 1"),
        (["training.backend=own"], "rounds.mode: expected off where training.backend is own"),
        (["job.exact=true", "rounds.race=time"], "rounds.race: expected tokens where job.exact is set"),
        (["job.exact=true", "rollout.request_deadline_s=5"], "rollout.request_deadline_s: expected 0"),
        (["job.exact=true", "rounds.preset=rollpacker"], "rounds.race: expected tokens"),
        (["job.exact=true", "rounds.mode=auto"], "rounds.mode: expected tail or off"),
        (["rounds.mode=auto", "seeding.controller=feedback"], "seeding.controller: expected model"),
        (["rounds.history=true", "rounds.seeds=new"], "rounds.history: expected false where rounds.seeds"),
        (
            ["rounds.prompts_plan=model", "seeding.controller=artifact"],
            r"expected model where rounds.prompts_plan is model, got artifact",
        ),
        (["job.exact=true", "rounds.prompts_plan=model"], "rounds.prompts_plan: expected fixed where job"),
    ],
)
def test_rounds_are_refused_with_the_setting_when_they_cannot_be_kept(
    settings: list[str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        load("quickstart", ["rounds.mode=tail", *settings])


def test_preset_sets_every_setting_of_the_paper() -> None:
    rounds = load("quickstart", ["rounds.preset=rollpacker"]).rounds
    assert (rounds.mode, rounds.prompts_factor, rounds.samples_factor) == ("tail", 1.25, 1.25)
    assert (rounds.seeds, rounds.race) == ("new", "time")


@pytest.mark.parametrize(
    ("prompts", "factor", "launched"), [(1, 1.25, 2), (10, 1.1, 11), (32, 1.01, 33), (128, 1.25, 160)]
)
def test_short_round_launches_the_factor_rounded_up(prompts: int, factor: float, launched: int) -> None:
    settings = [
        "rounds.mode=tail",
        f"rounds.prompts_factor={factor}",
        f"rollout.prompts={prompts}",
        "training.micro_batch_groups=1",
    ]
    assert load("quickstart", settings).rounds.launched(prompts, 8) == (launched, 8)
