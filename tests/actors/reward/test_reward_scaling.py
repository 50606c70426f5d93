"""Scaling of reward workers: what is planned, by a real planner, is what the hosts get."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
from held_workers import HeldWorker, HeldWorkers
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.names import PLANNER
from gleaner.actors.protocol.planning import (
    BatchPlanned,
    HistoryPlanned,
    PlanWorkers,
    StagePlanned,
    WorkersPlanned,
)
from gleaner.actors.protocol.reward import BatchEnded, RewardHint, RewardState, RewardStatus, Score, Verdict
from gleaner.actors.reward import planner
from gleaner.actors.reward.assignment.shares import shares
from gleaner.actors.reward.host import RewardHost
from gleaner.actors.reward.planner import RewardPlanner, view_of
from gleaner.actors.reward.planning.items import Stage
from gleaner.actors.reward.planning.policies import ServiceView
from gleaner.actors.reward.pool import PoolLimits, WorkerPool, pool_limits
from gleaner.actors.reward.proxy import RewardProxy
from gleaner.actors.reward.scoring import WorkerSpec
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward.stage_pools import StageLimits, StagePools
from gleaner.actors.reward.stages import SCORE, Pipelines
from gleaner.configs.load import ConfigError, from_tree
from gleaner.configs.schema import Task
from gleaner.supervisor import Refused
from gleaner.supervisor.testing import TestSystem

PROXY, HOST = "reward/proxy", "far/reward"


@given(
    st.integers(0, 100),
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 20), min_size=1),
    st.booleans(),
)
def test_shares_add_up_to_the_plan_within_what_hosts_have(
    planned: int, most: dict[str, int], keeps: bool
) -> None:
    least = {next(iter(most)): 1} if keeps else {}
    found = shares(planned, most, least)
    kept = min(sum(least.values()), most[next(iter(most))])
    assert sum(found.values()) == max(min(planned, sum(most.values())), kept)
    assert all(0 <= found[host] <= most[host] for host in most)


async def test_pool_starts_and_ends_workers_with_its_size() -> None:
    workers = HeldWorkers(1, 2)
    pool = WorkerPool(WorkerSpec(), workers.start, PoolLimits(workers=1, deadline_s=30.0))
    pool.start()

    async def until(count: int) -> None:
        async with asyncio.timeout(5.0):
            while pool.alive != count:
                await asyncio.sleep(0.01)

    await until(1)
    pool.resize(4)
    await until(4)
    held = []
    for index in (1, 2):  # one after the other: what waits together is scored together
        held.append(asyncio.create_task(pool.score("train", index, [1])))
        async with asyncio.timeout(5.0):
            while index not in workers.begun:
                await asyncio.sleep(0.01)
    pool.resize(1)
    await until(2)  # the idle ones are gone, what runs is not harmed
    workers.let_go(1, 2)
    assert [(await one).score for one in held] == [1.0, 2.0]
    await until(1)
    assert (await pool.score("train", 7, [1])).score == 7.0
    assert not pool.deaths
    await pool.close()


async def test_workers_that_were_idle_first_end_first() -> None:
    """A simulated run is a function of its seed."""
    held, started = HeldWorkers(), []

    async def start(spec: WorkerSpec) -> HeldWorker:
        started.append(await held.start(spec))
        return started[-1]

    pool = WorkerPool(WorkerSpec(), start, PoolLimits(workers=8, deadline_s=30.0))
    pool.start()
    while pool.alive != 8:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    pool.resize(3)
    while pool.alive != 3:
        await asyncio.sleep(0)
    assert [worker.dead for worker in started] == [True] * 5 + [False] * 3
    await pool.close()


def asked(history: HistoryPlanned | None, expected: int, timeout_s: float = 60.0) -> PlanWorkers:
    return PlanWorkers(
        stages=[
            StagePlanned(name="run", cost=1.0, timeout_s=timeout_s, most=64, workers=1, busy=0, queued=0),
        ],
        batches=[
            BatchPlanned(
                name="step-2",
                origin_s=0.0,
                expected=expected,
                arrived=0,
                queued=[0],
                running_s=[[]],
                history="step" if history else "",
            )
        ],
        histories=[history] if history else [],
    )


def history(arrivals_s: list[float], times_s: list[float]) -> HistoryPlanned:
    return HistoryPlanned(
        name="step",
        arrivals_s=np.array(arrivals_s, "<f8").tobytes(),
        times_s=np.array(times_s, "<f8").tobytes(),
    )


async def test_planner_needs_one_worker_where_items_never_meet(tmp_path: Path) -> None:
    """And as many as items for a first batch, of which nothing is known."""
    async with TestSystem(tmp_path) as system:
        system.spawn(PLANNER, lambda: RewardPlanner("distrs", 5.0))
        apart = history([0.0, 100.0, 200.0, 1000.0], [10.0, 10.0, 10.0, 10.0])
        plan = await system.ask(PLANNER, asked(apart, 4), WorkersPlanned, deadline_s=30.0)
        assert plan.workers == [1]
        first = await system.ask(PLANNER, asked(None, 4), WorkersPlanned, deadline_s=30.0)
        assert first.workers == [4]
        broken = history([0.0, float("nan")], [1.0, 1.0])
        with pytest.raises(Refused, match="finite"):
            await system.ask(PLANNER, asked(broken, 2), WorkersPlanned, deadline_s=30.0)


@pytest.mark.parametrize(("kind", "calibrated"), [("static-peak", 3), ("static-mean", 1)])
async def test_planner_of_a_fixed_number_keeps_that_of_the_first_batch(
    tmp_path: Path, kind: str, calibrated: int
) -> None:
    """Three of its items met, in 20 of its 1,000 s. A later batch of which all items meet changes nothing."""
    async with TestSystem(tmp_path) as system:
        system.spawn(PLANNER, lambda: RewardPlanner(kind, 5.0))

        async def planned(one: HistoryPlanned | None) -> list[int]:
            return (await system.ask(PLANNER, asked(one, 8), WorkersPlanned, deadline_s=30.0)).workers

        assert await planned(None) == [8], "nothing is known of a first batch: all items at once"
        assert await planned(history([0.0, 5.0, 10.0, 980.0], [20.0] * 4)) == [calibrated]
        assert await planned(history([0.0] * 8, [20.0] * 8)) == [calibrated]


@pytest.mark.parametrize("kind", ["static-peak", "static-mean"])
def test_several_batches_of_history_are_refused_where_one_is_the_calibration(kind: str) -> None:
    tree = {"reward": {"planner": {"kind": kind, "history_batches": 2}}}
    with pytest.raises(ConfigError, match=f"history_batches: expected 1 with {kind}"):
        from_tree(tree, "test")


@pytest.mark.parametrize(("longest_s", "planned"), [(10.0, 2), (9.0, 4)])
async def test_planner_lets_items_queue_that_the_limit_of_their_stage_ends_in_time(
    tmp_path: Path, longest_s: float, planned: int
) -> None:
    """One item is the longest, three others are short. With 10 s for each they may queue behind each other
    where the longest takes 10 s. The limit of a hung worker, four times as long, would let none queue."""
    reward = from_tree({"reward": {"deadline_s": 10.0}}, "test").reward
    (stage,) = Pipelines([Task()], reward).stages
    async with TestSystem(tmp_path) as system:
        system.spawn(PLANNER, lambda: RewardPlanner("distrs", 5.0))
        last = history([0.0] * 4, [longest_s, 1.0, 1.0, 1.0])
        plan = await system.ask(PLANNER, asked(last, 4, stage.timeout_s), WorkersPlanned, deadline_s=30.0)
        assert plan.workers == [planned]
        hung_s = reward.worker_s
        plan = await system.ask(PLANNER, asked(last, 4, hung_s), WorkersPlanned, deadline_s=30.0)
        assert plan.workers == [4]


def figures(system: TestSystem, name: str) -> dict[str, str | int | float]:
    """The figures that an actor reports of itself; none while it does not live."""
    cell = system.system.cell(name)
    return {} if cell is None or cell.actor is None else cell.actor.summary()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until that holds. Raises TimeoutError after 20 seconds."""
    async with asyncio.timeout(20.0):
        while not holds():
            await asyncio.sleep(0.02)


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[tuple[TestSystem, TestSystem]]:
    async with TestSystem(tmp_path) as near, TestSystem(tmp_path, node="far", join=near) as far:
        yield near, far


async def test_hosts_get_the_planned_workers_before_the_first_item(
    hosts: tuple[TestSystem, TestSystem], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = hosts
    requests: list[PlanWorkers] = []

    def recorded(message: PlanWorkers, now_s: float) -> tuple[ServiceView, list[Stage], list[int]]:
        requests.append(message)
        return view_of(message, now_s)

    monkeypatch.setattr(planner, "view_of", recorded)
    config = from_tree({"reward": {"workers": 4, "planner": {"kind": "distrs"}}}, "test")
    own, other = HeldWorkers(), HeldWorkers()
    settings = RewardSettings.of(config)
    limits = StageLimits(workers={SCORE: 4}, pool=pool_limits(config.reward), verdict_s=20.0)
    near.spawn(PLANNER, lambda: RewardPlanner("distrs", 5.0))
    near.spawn(PROXY, lambda: RewardProxy(settings, "", own.start, WorkerSpec()))
    far.spawn(HOST, lambda: RewardHost(StagePools(limits, WorkerSpec(), other.start)))

    await until(lambda: figures(far, HOST).get("workers") == 4)
    await near.tell(PROXY, RewardHint(batch="step-1", items=2))
    await until(lambda: figures(near, PROXY).get("planned_score") == 2)
    await until(lambda: figures(near, PROXY)["workers"] == 1 and figures(far, HOST)["workers"] == 1)
    for number in range(2):
        message = Score(
            request=f"r{number}",
            split="train",
            index=number,
            tokens=array("I", [1]).tobytes(),
            batch="step-1",
        )
        assert (await near.ask(PROXY, message, Verdict, deadline_s=20.0)).score == number
    await near.tell(PROXY, BatchEnded(batch="step-1"))
    await near.tell(PROXY, RewardHint(batch="step-2", items=6))
    await until(lambda: figures(near, PROXY)["planned_score"] in (3, 6))  # 6 if its arrivals are late by now
    (batch,), (known,) = requests[-1].batches, requests[-1].histories
    assert (batch.name, batch.expected, batch.history) == ("step-2", 6, known.name)
    assert len(np.frombuffer(known.times_s, "<f8")) == 2, "the items of step 1"
    assert [stage.timeout_s for stage in requests[-1].stages] == [config.reward.deadline_s]


async def test_workers_of_an_announced_batch_end_when_nothing_of_it_comes_in_time(tmp_path: Path) -> None:
    """Also in the next life of the proxy. Its first response, however late, lets it count again."""
    tree = {"reward": {"workers": 4, "planner": {"kind": "distrs", "min_workers": 0, "hint_expires_s": 0.7}}}
    settings, workers = RewardSettings.of(from_tree(tree, "test")), HeldWorkers()
    async with TestSystem(tmp_path) as system:

        def start() -> None:
            system.spawn(PROXY, lambda: RewardProxy(settings, "", workers.start, WorkerSpec()))

        async def active() -> dict[str, int]:
            """Items expected of each batch."""
            state = await system.ask(PROXY, RewardStatus(), RewardState, deadline_s=20.0)
            return {one.name: one.expected for one in state.batches}

        async def restart() -> None:
            await asyncio.sleep(0.1)  # commits
            system.kill(PROXY)
            start()

        system.spawn(PLANNER, lambda: RewardPlanner("distrs", 5.0))
        start()
        await system.tell(PROXY, RewardHint(batch="step-1", items=4, kind="short"))
        await until(lambda: figures(system, PROXY).get("planned_score") == 4)
        await until(lambda: figures(system, PROXY).get("hints_expired") == 1)
        await until(
            lambda: (figures(system, PROXY)["planned_score"], figures(system, PROXY)["workers"]) == (0, 1)
        )
        message = Score(request="r", split="train", index=1, tokens=b"", batch="step-1")
        assert (await system.ask(PROXY, message, Verdict, deadline_s=20.0)).score == 1
        await until(lambda: figures(system, PROXY)["planned_score"] == 3)
        await restart()
        assert await active() == {"step-1": 4}
        await until(lambda: figures(system, PROXY).get("hints_expired") == 1)
        await restart()
        assert await active() == {}
