"""Held-out rewards by task."""

from gleaner.actors.reward.mixture import Mixture
from gleaner.actors.training.evaluation import rewards_by_task
from gleaner.configs.schema import Config, Task


def test_held_out_rewards_are_grouped_by_task() -> None:
    config = Config(task=(Task(name="a", heldout_problems=3), Task(name="b", heldout_problems=1)))
    mixture = Mixture(config.shares(heldout=True))
    scores = {index: float(mixture.place(index)[0]) for index in range(4)}
    assert rewards_by_task(config, scores) == {"a": 0.0, "b": 1.0}


def test_task_without_a_score_has_no_reward() -> None:
    config = Config(task=(Task(name="a", heldout_problems=1), Task(name="b", heldout_problems=1)))
    place = Mixture([1.0, 1.0]).place
    scores = {index: (0.5 if place(index)[0] == 0 else None) for index in range(2)}
    assert rewards_by_task(config, scores) == {"a": 0.5, "b": None}


def test_single_task_has_no_row_of_its_own() -> None:
    assert rewards_by_task(Config(), {0: 1.0}) == {}
