"""Settings of stairs: what is refused, and with which words."""

import pytest

from gleaner.configs.load import ConfigError, load

GANG = ["training.backend=fsdp2", "training.processes=2"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([], "half of a trainer of 1 process"),
        (["training.backend=fsdp2"], "half of a trainer of 1 process"),
        (["training.backend=fsdp2", "training.processes=3"], "an even number of training.processes"),
        (["training.backend=own"], "half of a trainer"),
        ([*GANG, "job.exact=true"], "seeding.stairs: expected off where job.exact is set"),
        (
            [*GANG, "seeding.stairs=model", "seeding.controller=feedback"],
            "seeding.controller: expected model",
        ),
        (["seeding.stairs=half"], "seeding.stairs"),
    ],
)
def test_stairs_are_refused_with_the_setting_where_no_half_is_whole(settings: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load("quickstart", ["seeding.stairs=paper", *settings])


@pytest.mark.parametrize("stairs", ["paper", "model"])
def test_stairs_are_accepted_with_a_gang_of_two(stairs: str) -> None:
    assert load("quickstart", [f"seeding.stairs={stairs}", *GANG]).seeding.stairs == stairs
