"""`StairSeeding`: which groups a window takes, trains on half of the devices, and returns."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from gleaner.actors.protocol.rollout import GroupOut, Groups
from gleaner.actors.protocol.training import HalveSeeding
from gleaner.actors.training.stair_seeding import LOOK_S, StairSeeding, Wait, WindowTraining
from gleaner.actors.training.stairs import PlannedStair
from gleaner.supervisor import Context, Done, Refused

TRAIN_S = 0.5  # of a micro-batch on half of the devices
MICRO_BATCH = 2


def reply(groups: Sequence[int], remaining: int, *, serving: int = 1) -> Groups:
    return Groups(
        groups=[GroupOut(group=number, prompt=b"", samples=()) for number in groups],
        remaining=remaining,
        remote_serving=serving,
        half_fits=True,
    )


def numbers(groups: Groups) -> list[int]:
    return [group.group for group in groups.groups]


@dataclass
class Window:
    """A window whose batch completes by a script: each reply with the seconds until it comes."""

    replies: list[tuple[float, Groups]]
    halves: bool = True
    now_s: float = 100.0
    waits: list[tuple[bool, Wait]] = field(default_factory=list)
    done: list[object] = field(default_factory=list)
    """In order: True, False (on half of the devices, on all), and the numbers of each trained micro-batch."""

    def __post_init__(self) -> None:
        context = SimpleNamespace(now=lambda: self.now_s, ask=self.ask, log=logging.getLogger("stairs"))
        training = WindowTraining(self.on_half, self.train, MICRO_BATCH)
        self.seeding = StairSeeding(cast("Context", context), "r/engine", 5.0, self.take, training)

    async def take(self, all_left: bool, wait: Wait) -> Groups:
        self.waits.append((all_left, wait))
        after_s, groups = self.replies.pop(0)
        self.now_s += after_s
        return groups

    async def ask(self, to: str, message: object, *, deadline_s: float, expect: type[Done]) -> Done:
        assert (to, message) == ("r/engine", HalveSeeding())
        if not self.halves:
            raise Refused("one thread has no half")
        return Done()

    async def on_half(self, half: bool) -> None:
        self.done.append(half)

    async def train(self, groups: Groups) -> float:
        self.done.append(numbers(groups))
        self.now_s += TRAIN_S
        return TRAIN_S


async def test_groups_are_trained_on_half_in_micro_batches_until_the_window_ends() -> None:
    window = Window(
        [(0.0, reply([], 8)), (2.0, reply([0, 1, 2], 5)), (0.0, reply([3], 4)), (1.0, reply([4, 5, 6], 1))]
    )
    spent, left = await window.seeding.run(4.0, PlannedStair(2.0))
    assert window.done == [True, [0, 1], [2, 3], False]
    assert (spent.stair_s, spent.half_s) == (2.0, 2 * TRAIN_S)
    assert (numbers(left), left.remaining, left.remote_serving) == ([4, 5, 6], 1, 1)
    assert [all_left for all_left, _ in window.waits] == [True, True, False, False]
    assert window.waits[2][1] == Wait(0.0), "what is there is trained before a wait"
    assert window.waits[3][1].at_most_s == 1.0, "no longer than the window"
    assert not window.seeding.refused


async def test_every_group_is_returned_when_the_engine_cannot_halve(
    caplog: pytest.LogCaptureFixture,
) -> None:
    window = Window([(0.0, reply([0], 7)), (2.0, reply([1, 2], 5)), (2.0, reply([3], 4))], halves=False)
    spent, left = await window.seeding.run(4.0, PlannedStair(2.0))
    assert (numbers(left), left.remaining) == ([0, 1, 2, 3], 4)
    assert (spent.stair_s, spent.half_s, window.done) == (None, 0.0, [])
    assert window.seeding.refused
    assert "one thread has no half" in caplog.text


async def test_batch_that_is_whole_before_the_stair_is_returned_without_one() -> None:
    window = Window([(0.0, reply([0], 2)), (1.0, reply([], 2)), (0.5, reply([1, 2], 0))])
    spent, left = await window.seeding.run(4.0, PlannedStair(2.0))
    assert (numbers(left), left.remaining, spent.stair_s, window.done) == ([0, 1, 2], 0, None, [])
    assert window.waits[2] == (True, Wait(1.0, ended=1.0)), "until the stair is due"


@pytest.mark.parametrize("halves", [True, False])
async def test_window_goes_on_until_an_instance_serves(halves: bool) -> None:
    to_its_end_s = 2.0 - TRAIN_S * halves
    late = [(to_its_end_s, reply([], 6, serving=0)), (3.0, reply([], 6, serving=0)), (3.0, reply([], 6))]
    window = Window([(2.0, reply([0, 1], 6, serving=0)), *late], halves=halves)
    await window.seeding.run(4.0, PlannedStair(2.0))
    assert not window.replies, "it ends with the first instance"
    until_served = [(wait.at_most_s, wait.until_served) for _, wait in window.waits[1:]]
    assert until_served == [(to_its_end_s, False), (LOOK_S, True), (LOOK_S, True)]
