"""When a race is looked at: bounds of running responses ten times a second, and at once what can decide."""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.rollout.batches import group_selection
from gleaner.actors.rollout.batches.group_selection import RACE_S, GroupSelection
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.effects import Effects
from gleaner.actors.rollout.state.events import Scored
from gleaner.actors.rollout.state.request_log import RequestState
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.supervisor import Context, Message

SAMPLES = 3


class Clock:
    """A context whose time is set; what it gets to run is not run."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def turn_time(self) -> float:
        return self.now_s

    def background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        work.close()


class Applied:
    """Events change the state at once."""

    def __init__(self) -> None:
        self.state = RolloutState()

    def enter(self, *events: Message, flush: bool = False) -> tuple[list[Effects], asyncio.Future[int]]:
        return [self.state.apply(event) for event in events], cast("asyncio.Future[int]", None)


class Race:
    """A race of three groups, of which the first to be certain counts."""

    def __init__(self, *, drop_uniform: bool = False) -> None:
        self.clock, self.applied = Clock(), Applied()
        prompts = tuple(
            Prompt(split="train", index=group, tokens=(1,), seeds=tuple(range(SAMPLES))) for group in range(3)
        )
        self.applied.state.apply(
            BatchSubmitted(
                batch="step-1", version=0, prompts=prompts, max_new_tokens=50, wanted=1, most=3,
                race="tokens", drop_uniform=drop_uniform, over_sampling=3.0,
            )
        )  # fmt: skip
        self.batch = self.applied.state.log.batches["step-1"]
        self.selection = GroupSelection(
            cast("Context", self.clock),
            cast("JournaledState", self.applied),
            cast("Instances", {}),
            10,
            lambda changes: None,
        )

    def grow(self, group: int, tokens: int, *, ended: bool = False) -> None:
        for log in self.batch.groups[group]:
            log.attempts = 1
            for _ in range(tokens):
                log.append(7, -1.0, "spot-0", 1, 0)
            if ended:
                self.applied.state.log.move(log, RequestState.FINISHED)


def test_running_responses_are_read_while_other_responses_end_all_the_time() -> None:
    race = Race()
    race.grow(0, 5, ended=True)
    race.selection.look(race.batch, {0})
    assert not race.batch.fates.kept
    race.grow(1, 9)
    race.grow(2, 9)
    for _ in range(4):  # responses of another group end, faster than races are looked at
        race.clock.now_s += RACE_S / 2
        race.selection.look(race.batch, {2})
        race.selection.frame_arrived()
    assert list(race.batch.fates.kept) == [0]
    assert race.batch.fates.dropped == {1: "surplus", 2: "surplus"}


def test_response_whose_group_is_not_closed_costs_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    race, decided = Race(), list[object]()
    decide = group_selection.decision_of
    monkeypatch.setattr(
        group_selection, "decision_of", lambda batch, touched: (decided.append(touched), decide(batch))[1]
    )
    race.grow(1, 2)
    race.grow(2, 2)
    race.selection.look(race.batch)
    assert decided.pop() is None
    race.applied.state.log.move(race.batch.groups[1][0], RequestState.FINISHED)
    race.selection.look(race.batch, {1})
    race.selection.look(race.batch, ())  # a verdict changes nothing where uniform groups count
    assert decided == []
    race.grow(0, 1, ended=True)
    race.selection.look(race.batch, {0})
    assert decided == [{0}]
    assert list(race.batch.fates.kept) == [0]


def test_verdicts_decide_where_uniform_groups_are_dropped() -> None:
    race = Race(drop_uniform=True)
    race.grow(0, 1, ended=True)
    race.grow(1, 3)
    race.grow(2, 3)
    race.selection.look(race.batch)
    assert not race.batch.fates.kept
    for sample in range(SAMPLES):
        race.applied.state.apply(Scored(request=f"step-1/0/{sample}", score=float(sample)))
    race.selection.look(race.batch, ())
    assert list(race.batch.fates.kept) == [0]
