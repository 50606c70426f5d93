"""Migration with real engines and data sockets, also when a component dies."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from gleaner.actors.protocol.balancer import (
    Holding,
    InstanceServes,
    InstanceUp,
    Moves,
    Place,
    Placed,
    Rebalance,
)
from gleaner.actors.rollout.dispatch import load_balancer
from gleaner.actors.rollout.dispatch import migration as moving
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.dispatch.rebalancer import Load, Move
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.supervisor.testing import TestSystem
from tests.actors.rollout.test_actors_rollout_plane import Plane, plane, undisturbed

ROUNDS = 8


class Ordered:
    """Replaces the policy: in a few rounds half of the requests of one instance go to another one."""

    def __init__(self, executing: bool = True) -> None:
        self.executing = executing
        self.moves: list[Move] = []

    def __call__(self, loads: Sequence[Load]) -> list[Move]:
        if len(self.moves) >= ROUNDS:
            return []
        for source, target in itertools.permutations(loads, 2):
            held = source.executing if self.executing else source.pending
            tickets = held.tickets[held.movable][::2]
            if target.gates and len(tickets):
                self.moves.append(Move(source.id, target.id, tuple(tickets.tolist()), self.executing))
                return self.moves[-1:]
        return []


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The responses of one undisturbed instance."""
    return asyncio.run(undisturbed(tmp_path_factory.mktemp("calm")))


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> Ordered:
    made = Ordered()
    monkeypatch.setattr(load_balancer, "decide", made)
    monkeypatch.setattr(moving, "ROUND_S", 0.02)
    monkeypatch.setattr(moving, "AGAIN_S", 0.02)
    return made


async def until_ordered(ordered: Ordered) -> None:
    async with asyncio.timeout(60):
        while not ordered.moves:
            await asyncio.sleep(0.002)


async def until_moved(rollout: Plane) -> None:
    """The engines are held meanwhile: without that, a batch may end before its first abort arrives."""
    async with asyncio.timeout(60):
        while not (await rollout.figures()).requests_moved:
            await asyncio.sleep(0.002)


async def settled(rollout: Plane, expected: dict[str, bytes]) -> None:
    """The responses equal those of a calm run, and each token was generated once."""
    assert await rollout.responses() == expected
    figures = await rollout.figures()
    assert figures.tokens_generated_twice == 0
    assert figures.tokens_lost == 0
    assert figures.tokens_collected == sum(len(tokens) // 4 for tokens in expected.values())


@pytest.mark.parametrize("executing", [True, False])
async def test_moved_requests_continue_from_their_last_token(
    tmp_path: Path, calm: dict[str, bytes], ordered: Ordered, executing: bool
) -> None:
    ordered.executing = executing
    async with plane(tmp_path, held=True) as rollout:
        hosts = [await rollout.host(name) for name in ("spot-1", "spot-2")]
        await rollout.submit()
        await until_moved(rollout)
        await settled(rollout, calm)
        ordered_moves = sum(len(move.tickets) for move in ordered.moves)
        assert 1 <= (await rollout.figures()).requests_moved <= ordered_moves
        for host in hosts:
            await host.system.close()


@pytest.mark.parametrize("dies", ["source", "target", "manager"])
async def test_death_during_a_move_loses_nothing(
    tmp_path: Path, calm: dict[str, bytes], ordered: Ordered, dies: str
) -> None:
    async with plane(tmp_path, held=True) as rollout:
        hosts = {name: await rollout.host(name) for name in ("spot-1", "spot-2")}
        await rollout.submit()
        await until_ordered(ordered)
        if dies == "manager":
            rollout.head.kill("rollout/manager")
            rollout.head.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(rollout.config)))
        else:
            move = ordered.moves[0]
            engine = move.source if dies == "source" else move.target
            hosts[engine.partition("/")[0]].kill(engine)
        await settled(rollout, calm)
        for host in hosts.values():
            await host.system.close()


async def test_policy_runs_only_while_requests_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def count(loads: Sequence[Load]) -> list[Move]:
        asked.append(len(loads))
        return []

    monkeypatch.setattr(load_balancer, "decide", count)
    monkeypatch.setattr(moving, "ROUND_S", 0.02)
    async with plane(tmp_path / "on", held=True) as rollout:
        hosts = [await rollout.host(name) for name in ("spot-1", "spot-2")]
        await asyncio.sleep(0.3)
        assert asked == []
        await rollout.submit()
        async with asyncio.timeout(60):
            while 2 not in asked:
                await asyncio.sleep(0.01)
        await rollout.responses()
        for host in hosts:
            await host.system.close()
    asked.clear()
    async with plane(tmp_path / "off", continuous_lb=False) as rollout:
        hosts = [await rollout.host(name) for name in ("spot-1", "spot-2")]
        await rollout.submit()
        await rollout.responses()
        assert asked == []
        for host in hosts:
            await host.system.close()


def holding(instance: str, executing: int = 0, pending: int = 0) -> Holding:
    count = executing + pending
    return Holding(
        instance=instance,
        incarnation=1,
        tickets=np.arange(1, count + 1).tobytes(),
        context=np.full(count, 100.0).tobytes(),
        expected=np.full(count, 100.0).tobytes(),
        gate=np.zeros(count, np.int64).tobytes(),
        movable=np.ones(count, np.bool_).tobytes(),
        executing=(np.arange(count) < executing).tobytes(),
        busy=False,
    )


async def test_balancer_offers_only_instances_with_the_version(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        system.spawn("rollout/balancer", lambda: LoadBalancer(4))
        for name, version in (("old", 6), ("new", 7), ("other", 7)):
            up = InstanceUp(instance=name, incarnation=1, kind="preemptible", slots=8, pending=0, executing=0)
            await system.tell("rollout/balancer", up)
            serves = InstanceServes(instance=name, incarnation=1, version=version, root=b"root")
            await system.tell("rollout/balancer", serves)
        place = Place(roots={7: b"root"}, count=3, moved=("old", "new", "gone"))
        placed = await system.ask("rollout/balancer", place, Placed)
        assert placed.instances[1] == "new", "a longer queue does not matter"
        assert sorted({placed.instances[0], placed.instances[2]} | {"new"}) == ["new", "other"]
        crowded = holding("new", executing=8, pending=4)
        ask = Rebalance(gates=[{7: b"root"}], holdings=[crowded, holding("old"), holding("gone")])
        assert (await system.ask("rollout/balancer", ask, Moves)).moves == []
        ask = Rebalance(gates=[{7: b"root"}], holdings=[crowded, holding("old"), holding("other")])
        [move] = (await system.ask("rollout/balancer", ask, Moves)).moves
        assert (move.source, move.target, move.executing) == ("new", "other", False)


def stubbed(requests: dict[str, object], now: Callable[[], float]) -> moving.Migration:
    """A migration alone, with these requests."""
    journaled = SimpleNamespace(state=SimpleNamespace(log=SimpleNamespace(requests=requests)))
    return moving.Migration(cast(Any, SimpleNamespace(now=now)), cast(Any, journaled), cast(Any, {}))


def test_move_and_rest_are_forgotten_when_they_are_over_and_not_before() -> None:
    now_s = 0.0
    requests: dict[str, object] = dict.fromkeys(("late", "gone", "kept"))
    migration = stubbed(requests, lambda: now_s)
    for name, until_s in (("late", 5.0), ("gone", 9.0), ("kept", 9.0)):
        migration._orders[name] = moving._Order("a", "b", until_s, taken=True)
        migration._moved_s[name] = until_s - moving.REST_S
    migration._prune()
    assert list(migration._orders) == list(migration._moved_s) == ["late", "gone", "kept"]
    del requests["gone"]
    now_s = 6.0
    migration._prune()
    assert list(migration._orders) == list(migration._moved_s) == ["kept"]


def test_only_what_was_moved_rests_when_requests_are_sent() -> None:
    migration = stubbed({}, lambda: 3.0)
    migration._orders["moved"] = moving._Order("a", "b", 9.0, taken=True)
    migration.sent([cast(Any, SimpleNamespace(id=name)) for name in ("moved", "other")])
    assert (migration._orders, migration._moved_s) == ({}, {"moved": 3.0})
