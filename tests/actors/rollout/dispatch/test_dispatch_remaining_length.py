"""Remaining lengths by kind of round: estimates alone, and in what the balancer gets."""

from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import pytest
from msgspec import structs
from rollout_world import submission

from gleaner.actors.protocol.balancer import Holding, Moves, Rebalance
from gleaner.actors.protocol.instances import RegisterInstance
from gleaner.actors.rollout.batches.cache_outlook import CacheOutlook
from gleaner.actors.rollout.dispatch.migration import Migration
from gleaner.actors.rollout.dispatch.remaining_length import (
    EDGES,
    FEW,
    RemainingLengths,
    codes_of,
)
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.state.effects import Effects
from gleaner.actors.rollout.state.events import Dispatched, GroupsKept, InstanceJoined
from gleaner.actors.rollout.state.request_log import RequestState
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.supervisor import Address

Kind = Literal["", "short", "long"]
LIMIT = 1000


def fed(*, short: int = FEW, long: int = FEW) -> RemainingLengths:
    """Short rounds have responses of 100 tokens, long ones of 900."""
    lengths = RemainingLengths()
    for _ in range(short):
        lengths.finished(100, LIMIT, "short")
    for _ in range(long):
        lengths.finished(900, LIMIT, "long")
    return lengths


def expected(lengths: RemainingLengths, made: float, kind: Kind) -> float:
    return float(lengths.expected(np.array([made]), np.array([float(LIMIT)]), codes_of([kind]))[0])


def test_rest_is_estimated_from_responses_of_the_same_kind() -> None:
    lengths = fed()
    assert [expected(lengths, 50.0, kind) for kind in ("short", "long")] == [50.0, 850.0]
    mixed = lengths.expected(
        np.array([50.0, 60.0, 70.0]), np.full(3, float(LIMIT)), codes_of(["long", "short", "long"])
    )
    assert mixed.tolist() == [850.0, 40.0, 830.0]


def test_kind_without_history_has_the_lengths_of_all_kinds() -> None:
    assert expected(fed(), 0.0, "") == pytest.approx(500.0)
    assert expected(fed(long=FEW - 1), 0.0, "long") == pytest.approx(500.0, abs=10)
    assert expected(RemainingLengths(), 0.0, "long") == LIMIT / 2
    plain = RemainingLengths()
    plain.finished(40, LIMIT)
    assert [expected(plain, 10.0, kind) for kind in ("", "short", "long")] == [30.0] * 3


def test_rest_in_a_short_round_ends_at_the_edge_of_recent_ones() -> None:
    lengths = fed(short=0)
    assert expected(lengths, 150.0, "short") == 750.0, "no edge is known"
    lengths.round_over(200)
    lengths.round_over(120)
    assert [expected(lengths, made, "short") for made in (150.0, 200.0, 500.0)] == [50.0, 1.0, 1.0]
    assert expected(lengths, 150.0, "long") == 750.0
    kinds, made = codes_of(["short", "short", "long", ""]), np.array([199.0, 200.0, 300.0, 300.0])
    assert lengths.beyond_edge(made, kinds).tolist() == [False, True, False, False]
    for _ in range(EDGES - 1):
        lengths.round_over(120)
    assert expected(lengths, 119.0, "short") == 1.0, "the first edge is forgotten"
    assert not RemainingLengths().beyond_edge(made, kinds).any()


class World:
    """Two instances, each with the two requests of a group of the batch "step-2" of this kind; "step-1" was a
    round of the kind `first` in which one group counts."""

    def __init__(self, kind: Kind, made: tuple[int, ...], first: Kind = "short") -> None:
        self.state, self.instances = RolloutState(), Instances()
        short = {"wanted": 1, "most": 2, "race": "tokens"}
        self.state.apply(structs.replace(submission(), max_new_tokens=LIMIT, kind=first, **short))
        more = short if kind == "short" else {}
        self.state.apply(structs.replace(submission("step-2", 1), max_new_tokens=LIMIT, kind=kind, **more))
        for number, name in enumerate(("one", "two")):
            self.state.apply(InstanceJoined(instance=name, incarnation=number + 1))
            self.instances.register(registration(name, number + 1), name, 0.0)
            self.instances[name].version = 1
            requests = tuple(f"step-2/{number}/{sample}" for sample in range(2))
            self.state.apply(
                Dispatched(
                    instance=name, incarnation=number + 1, version=1, tickets=(1, 2), requests=requests
                )
            )
            for request, tokens in zip(requests, made[2 * number :], strict=False):
                self.grow(request, tokens)
        self.asked: list[Rebalance] = []
        journaled = SimpleNamespace(state=self.state, roots=lambda _: {})
        ctx = SimpleNamespace(now=lambda: 100.0, ask=self.ask)
        self.migration = Migration(cast("Any", ctx), cast("Any", journaled), self.instances)
        self.outlook = CacheOutlook(cast("Any", journaled), self.instances, self.migration.lengths)

    async def ask(self, _: str, message: Rebalance, **__: object) -> Moves:
        self.asked.append(message)
        return Moves(moves=[])

    def grow(self, request: str, tokens: int) -> None:
        log = self.state.log.requests[request]
        log.attempts = max(1, log.attempts)
        for _ in range(tokens):
            log.append(7, -1.0, "one", 1, 1)

    def end(self, request: str) -> None:
        self.state.log.move(self.state.log.requests[request], RequestState.FINISHED)
        self.migration.note(Effects(finished=[request]))

    async def holding(self, instance: str) -> Holding:
        """As the balancer gets it."""
        for pending in [f"step-2/{group}/{sample}" for group in range(2) for sample in range(2)]:
            self.migration._pending_s[pending] = 0.0  # for so long that they may move
        await self.migration._round()
        (found,) = (one for one in self.asked[-1].holdings if one.instance == instance)
        return found


def registration(name: str, incarnation: int) -> RegisterInstance:
    return RegisterInstance(
        instance=name,
        worker=Address(name=name, incarnation=incarnation, endpoint="tcp://127.0.0.1:1"),
        kind="preemptible",
        slots=8,
        received=0,
    )


def columns(found: Holding) -> tuple[list[float], list[bool]]:
    """Expected tokens, and whether each request may move."""
    movable = np.frombuffer(found.movable, np.bool_).tolist()
    return np.frombuffer(found.expected, np.float64).tolist(), movable


MADE = (5, 30, 1, 2)


@pytest.mark.parametrize(
    ("kind", "first", "counted", "rests", "movable"),
    [
        ("short", "short", True, [15.0, 1.0], [True, False]),
        ("short", "short", False, [35.0, 10.0], [True, True]),
        ("short", "long", True, [35.0, 10.0], [True, True]),
        ("long", "short", True, [35.0, 10.0], [True, True]),
        ("", "short", True, [35.0, 10.0], [True, True]),
    ],
)
async def test_request_beyond_the_edge_of_recent_short_rounds_is_not_moved_in_one(
    kind: Kind, first: Kind, counted: bool, rests: list[float], movable: list[bool]
) -> None:
    """A group of 20 tokens counts; one of 40 is the only one whose end is seen."""
    world = World(kind, MADE, first)
    for sample, tokens in enumerate((20, 10)):
        world.grow(request := f"step-1/0/{sample}", tokens)
        world.state.log.move(world.state.log.requests[request], RequestState.FINISHED)
    world.grow("step-1/1/0", 40)
    world.end("step-1/1/0")
    if counted:
        world.state.apply(GroupsKept(batch="step-1", groups=(0,)))
    assert columns(await world.holding("one")) == (rests, movable)
    assert columns(await world.holding("one")) == (rests, movable)
    assert len(world.migration.lengths._edges) == (counted and first == "short"), "an edge is noted once"


async def test_balancer_gets_the_rest_by_kind_of_the_batches_that_ended() -> None:
    short, long = World("short", MADE), World("long", MADE)
    for world in (short, long):
        world.grow("step-1/0/0", 50)
        world.grow("step-2/1/0", 899)
        for _ in range(FEW):
            world.migration.note(Effects(finished=["step-1/0/0"]))
            world.migration.note(Effects(finished=["step-2/1/0"]))
    assert columns(await short.holding("one"))[0][0] == pytest.approx(475 - 5)
    assert columns(await long.holding("one"))[0][0] == pytest.approx(900 - 5)


def test_projected_caches_are_of_the_kind_of_the_batch() -> None:
    world = World("long", MADE)
    for log in world.state.log.requests.values():
        log.state = RequestState.QUEUED
    lengths = world.migration.lengths
    for _ in range(FEW):
        lengths.finished(20, LIMIT, "short")
        lengths.finished(900, LIMIT, "long")
    peaks = [
        world.outlook._peak([world.state.log.requests["step-2/0/0"]], kind) for kind in ("short", "long")
    ]
    assert peaks == [3 + 20, 3 + 900]
