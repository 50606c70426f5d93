"""Trials of weights: which instance tries them first."""

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gleaner.actors.protocol.rollout import Weights
from gleaner.actors.rollout.fleet.weight_trials import WeightTrials

WEIGHTS = Weights(version=3, root=b"r", sources=("agent",))


def tried(instances: dict[str, SimpleNamespace], held: dict[tuple[str, int], int]) -> str:
    """The instance that is to try. held: requests of each (instance, incarnation)."""

    def background(work: Coroutine[object, object, None], _what: str) -> None:
        work.close()

    def alive(name: str, incarnation: int) -> SimpleNamespace | None:
        count = held.get((name, incarnation))
        return None if count is None else SimpleNamespace(held=count)

    for name, one in instances.items():
        one.name, one.worker = name, None
    ctx = SimpleNamespace(turn_time=lambda: 0.0, background=background)
    journaled = SimpleNamespace(state=SimpleNamespace(streams=SimpleNamespace(alive=alive)))
    table = SimpleNamespace(preemptible=lambda: list(instances.values()))
    trials = WeightTrials(
        cast(Any, ctx), cast(Any, journaled), cast(Any, table), publish=cast(Any, None), tell=lambda: None
    )
    assert not trials.begin(WEIGHTS).answered
    assert trials._trial is not None
    return trials._trial.instance


def instance(version: int | None = 2, *, incarnation: int = 1, idle: bool = False) -> SimpleNamespace:
    return SimpleNamespace(version=version, incarnation=incarnation, idle=idle)


@pytest.mark.parametrize(
    ("instances", "held", "first"),
    [
        ({"a": instance(), "b": instance()}, {("a", 1): 5, ("b", 1): 2}, "b"),
        ({"a": instance(), "b": instance()}, {("a", 1): 2, ("b", 1): 2}, "a"),
        ({"a": instance(None), "b": instance()}, {("b", 1): 9}, "b"),  # `a` has no weights yet
        ({"a": instance(incarnation=2), "b": instance()}, {("a", 1): 9, ("b", 1): 2}, "a"),
        ({"a": instance(idle=True), "b": instance()}, {("b", 1): 9}, "b"),
    ],
)
def test_weights_are_tried_by_the_instance_with_the_fewest_requests(
    instances: dict[str, SimpleNamespace], held: dict[tuple[str, int], int], first: str
) -> None:
    assert tried(instances, held) == first
