"""Evaluations: once for each version, and held-out rewards by task."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gleaner.actors.protocol.training import TrainerIs
from gleaner.actors.reward.mixture import Mixture
from gleaner.actors.training.evaluation import Evaluation, rewards_by_task
from gleaner.actors.training.job_journal import JobProgress
from gleaner.actors.training.problem_order import ProblemOrder
from gleaner.configs.schema import Config, Task
from gleaner.supervisor import Done


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


@pytest.mark.parametrize(("scores", "whole"), [({0: 1.0, 1: None}, True), (None, False)])
async def test_evaluation_is_whole_unless_the_trainer_went_back(
    scores: dict[int, float | None] | None, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[object] = []

    async def note(*arguments: object) -> Done:
        noted.append(arguments[0])
        return Done()

    async def scored(*_: object) -> dict[int, float | None] | None:
        return scores

    ctx = SimpleNamespace(now=lambda: 1.0, journal=SimpleNamespace(append=note))
    standing = JobProgress(ProblemOrder(1, 1))
    recorder = SimpleNamespace(evaluation=lambda when, *_: noted.append(when))
    parts = SimpleNamespace(ask=note), Config(), SimpleNamespace(evaluation=note), standing, recorder
    evaluation = Evaluation(cast(Any, ctx), *cast(Any, parts))
    monkeypatch.setattr(evaluation, "_scores", scored)
    trainer = cast(TrainerIs, SimpleNamespace(step=3))
    assert await evaluation.run("during", trainer) is whole
    assert standing.evals == ({"step-3"} if whole else set())
    assert ("during" in noted) is whole
    noted.clear()
    if whole:
        assert await evaluation.run("during", trainer) is True
        assert noted == [], "it is on record already"
