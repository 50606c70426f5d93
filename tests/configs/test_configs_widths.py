"""Settings of widths: what is refused, and with which words."""

import pytest

from gleaner.configs.load import ConfigError, load

WIDTHS = ["engine.kind=sglang", "engine.widths=[1, 2, 4]"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["engine.widths=[1, 3]"], r"widths: expected powers of 2, got 3"),
        (["engine.widths=[0, 1]"], r"widths.*≥ 1"),
        (["engine.widths=[2, 2]"], r"widths: expected each one once, got \[2, 2\]"),
        (["engine.kind=builtin"], r"widths: expected \[\] where kind is builtin"),
        (["engine.kind=vllm"], r"only servers of sglang are started with a width"),
        (["engine.url=http://127.0.0.1:1"], r"widths: expected \[\] where url is set"),
        (['engine.args=["--tp-size=2"]'], "args: --tp-size=2 has no effect where widths is set"),
        (["engine.widths=[2]", "engine.width_plan=paper"], "width_plan: expected off where widths has fewer"),
        (["engine.width_plan=model", "seeding.controller=feedback"], "seeding.controller: expected model"),
        (["engine.width_plan=paper", "rollout.staleness=1"], "rollout.staleness: expected 0"),
        (["engine.width_plan=paper", "training.backend=own"], "engine.width_plan: expected off"),
    ],
)
def test_widths_are_refused_with_the_setting_when_they_cannot_be_kept(
    settings: list[str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        load("quickstart", [*WIDTHS, *settings])


@pytest.mark.parametrize("plan", ["off", "paper", "model"])
def test_widths_are_taken_when_servers_of_sglang_are_started(plan: str) -> None:
    engine = load("quickstart", [*WIDTHS, f"engine.width_plan={plan}"]).engine
    assert (engine.widths, engine.width_plan) == ([1, 2, 4], plan)
