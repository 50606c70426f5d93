"""Reward hosts: a verdict for each request, counted once, over the death of hosts and of the proxy."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from held_workers import HeldWorkers

from gleaner.actors.protocol.instances import NewWork, Withdraw, Withdrawn
from gleaner.actors.protocol.reward import (
    BatchEnded,
    CancelItems,
    CancelScores,
    ItemResult,
    ItemsScored,
    ItemToScore,
    OfferWorkers,
    RewardHint,
    RewardState,
    RewardStatus,
    Score,
    ScoreItems,
    StillOffered,
    Verdict,
    WorkersTaken,
)
from gleaner.actors.reward import pipe
from gleaner.actors.reward.host import RewardHost
from gleaner.actors.reward.pool import pool_limits
from gleaner.actors.reward.proxy import RewardProxy
from gleaner.actors.reward.scoring import WorkerSpec
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward.stage_pools import StageLimits, StagePools
from gleaner.actors.reward.stages import SCORE
from gleaner.configs.load import from_tree
from gleaner.supervisor import Actor, Address, AskTimeout, Context, Done, Message, Refused, handles
from gleaner.supervisor.testing import TestSystem

CONFIG = from_tree(
    {"reward": {"deadline_s": 5.0, "attempts": 2, "workers": 1, "journal_above_s": 0.0}}, "test"
)
PROXY, HOST = "reward/proxy", "far/reward"


def limits_of(workers: int) -> StageLimits:
    """Of a host with so many workers."""
    return StageLimits(workers={SCORE: workers}, pool=pool_limits(CONFIG.reward), verdict_s=20.0)


class Cluster:
    """A proxy with one worker, whose problem 1 is always held, so that hosts get what comes after it."""

    def __init__(self, near: TestSystem, far: TestSystem) -> None:
        self.near, self.far = near, far
        self.own, self.hosts = HeldWorkers(1), HeldWorkers(2, 3)

    def start_proxy(self) -> None:
        settings = RewardSettings.of(CONFIG)
        self.near.spawn(PROXY, lambda: RewardProxy(settings, "", self.own.start, WorkerSpec()))

    def start_host(self) -> None:
        limits = limits_of(CONFIG.reward.workers)
        self.far.spawn(
            HOST,
            lambda: RewardHost(StagePools(limits, WorkerSpec(), self.hosts.start)),
        )

    @property
    def proxy(self) -> RewardProxy:
        """The proxy that runs."""
        cell = self.near.system.cell(PROXY)
        assert cell is not None
        assert isinstance(cell.actor, RewardProxy)
        return cell.actor

    @property
    def hosts_there(self) -> int:
        """Hosts that have offered their workers to the proxy that runs."""
        cell = self.near.system.cell(PROXY)
        if cell is None or not isinstance(cell.actor, RewardProxy) or not hasattr(cell.actor, "_offers"):
            return 0
        return len(cell.actor._offers)

    def ask(self, index: int, batch: str = "step-1") -> "asyncio.Task[Verdict]":
        message = Score(
            request=f"r{index}", split="train", index=index, tokens=array("I", [1]).tobytes(), batch=batch
        )
        return asyncio.create_task(self.near.ask(PROXY, message, Verdict, deadline_s=30.0))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10.0):
            while not holds():
                await asyncio.sleep(0.01)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with TestSystem(tmp_path) as near, TestSystem(tmp_path, node="far", join=near) as far:
        cluster = Cluster(near, far)
        cluster.start_proxy()
        cluster.start_host()
        await cluster.until(lambda: cluster.hosts_there == 1)
        cluster.proxy._dispatch.hosts.took(SCORE, 10.0)  # long items: one a worker
        yield cluster
        cluster.own.let_go(1)


async def test_host_scores_what_its_own_workers_have_no_room_for(cluster: Cluster) -> None:
    first = cluster.ask(1)
    await cluster.until(lambda: cluster.own.begun[1] == 1)
    assert (await cluster.ask(4)).score == 4.0
    assert (cluster.hosts.scored[4], cluster.own.scored[4]) == (1, 0)
    cluster.own.let_go(1)
    assert (await first).score == 1.0


async def test_items_of_a_killed_host_are_scored_elsewhere(cluster: Cluster) -> None:
    first, second = cluster.ask(1), cluster.ask(2)
    await cluster.until(lambda: cluster.hosts.begun[2] == 1)
    cluster.far.kill(HOST)
    cluster.own.let_go(1)
    assert [(await first).score, (await second).score] == [1.0, 2.0]
    assert cluster.own.scored == {1: 1, 2: 1}
    assert cluster.proxy.summary()["lost_with_host"] == 1


async def test_restarted_proxy_takes_the_result_of_what_runs(cluster: Cluster) -> None:
    """Nothing that runs on a host is scored anew."""
    first, second = cluster.ask(1), cluster.ask(2)
    await cluster.until(lambda: cluster.hosts.begun[2] == 1)
    cluster.near.kill(PROXY)
    for one in (first, second):
        one.cancel()
    cluster.start_proxy()
    await cluster.until(lambda: cluster.hosts_there == 1)
    again = cluster.ask(2)
    await asyncio.sleep(0.05)
    cluster.hosts.let_go(2)
    assert (await again).score == 2.0
    assert (cluster.hosts.begun[2], cluster.own.begun[2]) == (1, 0)


async def test_result_that_no_proxy_received_is_not_lost(cluster: Cluster) -> None:
    first, second = cluster.ask(1), cluster.ask(2)
    await cluster.until(lambda: cluster.hosts.begun[2] == 1)
    cluster.near.kill(PROXY)
    for one in (first, second):
        one.cancel()
    cluster.hosts.let_go(2)
    await cluster.until(lambda: cluster.hosts.scored[2] == 1)
    cluster.start_proxy()
    await cluster.until(lambda: cluster.hosts_there == 1)
    await cluster.until(lambda: len(cluster.proxy._dispatch.verdicts) == 1)
    assert (await cluster.ask(2)).score == 2.0
    assert cluster.hosts.begun[2] + cluster.own.begun[2] == 1


async def test_drained_host_hands_its_items_back(cluster: Cluster) -> None:
    first, second = cluster.ask(1), cluster.ask(2)
    await cluster.until(lambda: cluster.hosts.begun[2] == 1)
    leave = Withdraw(instance=HOST, grace_s=0.2, leaves=True)
    assert (await cluster.near.ask(PROXY, leave, Withdrawn)).handed_over == 1
    cluster.own.let_go(1)
    assert [(await first).score, (await second).score] == [1.0, 2.0]
    assert cluster.hosts.scored[2] == 0  # it was cancelled there
    later = cluster.ask(5)
    await later
    assert cluster.own.scored[5] == 1  # a host that drains gets nothing new


async def test_host_that_stays_gets_items_again(cluster: Cluster) -> None:
    await cluster.near.ask(PROXY, Withdraw(instance=HOST, grace_s=0.0), Withdrawn)
    await cluster.near.ask(PROXY, NewWork(instance=HOST, allowed=True), Done)
    first = cluster.ask(1)
    assert (await cluster.ask(4)).score == 4.0
    assert cluster.hosts.scored[4] == 1
    cluster.own.let_go(1)
    await first


async def test_cancelled_item_is_answered_and_not_scored(cluster: Cluster) -> None:
    first, second, third = cluster.ask(1), cluster.ask(2), cluster.ask(6)
    await cluster.until(lambda: cluster.hosts.begun[2] == 1)
    await cluster.near.tell(PROXY, CancelScores(requests=["r2", "r6"]))
    for cancelled in (second, third):
        with pytest.raises(Refused, match="not needed any more"):
            await cancelled
    assert (await cluster.ask(5)).score == 5.0  # on the host, whose worker the cancelled item had
    assert cluster.hosts.scored == {5: 1}
    cluster.own.let_go(1)
    assert (await first).score == 1.0
    assert cluster.hosts.scored[2] + cluster.own.scored[6] + cluster.hosts.scored[6] == 0
    found = cluster.proxy.summary()
    assert (found["workers_lost"], found.get("late_results", 0), found.get("foreign_results", 0)) == (0, 0, 0)


async def test_repeated_request_is_answered_without_another_score(cluster: Cluster) -> None:
    first = cluster.ask(1)
    assert [(await cluster.ask(4)).score, (await cluster.ask(4)).score] == [4.0, 4.0]
    assert cluster.hosts.scored[4] + cluster.own.scored[4] == 1
    cluster.own.let_go(1)
    await first
    await cluster.near.tell(PROXY, BatchEnded(batch="step-1"))
    await cluster.until(lambda: not len(cluster.proxy._dispatch.verdicts))


async def test_restarted_proxy_repeats_the_verdicts_of_open_batches(cluster: Cluster) -> None:
    first, *others = cluster.ask(1), cluster.ask(4), cluster.ask(5, "step-2")
    assert [(await one).score for one in others] == [4.0, 5.0]
    await cluster.near.tell(PROXY, BatchEnded(batch="step-2"))
    first.cancel()
    await asyncio.sleep(0.1)  # commits
    cluster.near.kill(PROXY)
    cluster.far.kill(HOST)
    cluster.own.let_go(1)
    cluster.start_proxy()
    assert (await cluster.ask(4)).score == 4.0
    assert cluster.own.scored[4] + cluster.hosts.scored[4] == 1
    assert (await cluster.ask(5, "step-2")).score == 5.0
    assert cluster.own.scored[5] + cluster.hosts.scored[5] == 2, "its batch was over"


async def test_restarted_proxy_foresees_batches_from_the_last_one(tmp_path: Path) -> None:
    config = from_tree({"reward": {"planner": {"kind": "distrs"}}}, "test")
    settings, workers = RewardSettings.of(config), HeldWorkers()
    async with TestSystem(tmp_path) as system:
        for life in (1, 2):
            system.spawn(PROXY, lambda: RewardProxy(settings, "", workers.start, WorkerSpec()))
            message = Score(
                request=f"step-{life}/0", split="train", index=life, tokens=b"", batch=f"step-{life}"
            )
            assert (await system.ask(PROXY, message, Verdict, deadline_s=20.0)).score == life
            cell = system.system.cell(PROXY)
            assert cell is not None
            assert isinstance(cell.actor, RewardProxy)
            foreseen = cell.actor._dispatch.batches.complete_s
            assert list(foreseen) == ([] if life == 1 else ["step-2"])
            await system.tell(PROXY, BatchEnded(batch=f"step-{life}"))
            await asyncio.sleep(0.1)  # commits
            system.kill(PROXY)


@pytest.mark.parametrize(("kind", "expected"), [("distrs", [7]), ("static", [])])
async def test_restarted_proxy_knows_the_announced_batches_where_it_plans(
    tmp_path: Path, kind: str, expected: list[int]
) -> None:
    config = from_tree({"reward": {"planner": {"kind": kind}}}, "test")
    settings, workers = RewardSettings.of(config), HeldWorkers()
    async with TestSystem(tmp_path) as system:
        system.spawn(PROXY, lambda: RewardProxy(settings, "", workers.start, WorkerSpec()))
        await system.tell(PROXY, RewardHint(batch="step-1", items=7))
        await asyncio.sleep(0.1)  # commits
        system.kill(PROXY)
        system.spawn(PROXY, lambda: RewardProxy(settings, "", workers.start, WorkerSpec()))
        await system.ask(PROXY, RewardStatus(), RewardState, deadline_s=20.0)
        cell = system.system.cell(PROXY)
        assert cell is not None
        assert isinstance(cell.actor, RewardProxy)
        assert [one.expected for one in cell.actor._dispatch.batches.active()] == expected


async def test_restarted_proxy_foresees_batches_from_several_last_ones_where_that_is_set(
    tmp_path: Path,
) -> None:
    """Each is journaled alone, when it ends."""
    config = from_tree({"reward": {"planner": {"kind": "distrs", "history_batches": 2}}}, "test")
    settings, workers = RewardSettings.of(config), HeldWorkers()
    async with TestSystem(tmp_path) as system:
        for life in range(4):
            system.spawn(PROXY, lambda: RewardProxy(settings, "", workers.start, WorkerSpec()))
            message = Score(request=f"r{life}", split="train", index=4, tokens=b"", batch=f"step-{life}")
            assert (await system.ask(PROXY, message, Verdict, deadline_s=20.0)).score == 4
            await system.tell(PROXY, BatchEnded(batch=f"step-{life}"))
            await system.ask(PROXY, RewardStatus(), RewardState, deadline_s=20.0)
            cell = system.system.cell(PROXY)
            assert cell is not None
            assert isinstance(cell.actor, RewardProxy)
            found = [len(one.arrivals_s) for _, one in cell.actor._dispatch.batches.histories()]
            assert found == [1] * min(life + 1, 2)
            await asyncio.sleep(0.1)  # commits
            system.kill(PROXY)


async def test_restarted_proxy_has_a_history_of_each_kind_of_round(tmp_path: Path) -> None:
    """A short round and its next one, with whole rounds between them: each is foreseen from its own kind."""
    config = from_tree({"reward": {"planner": {"kind": "distrs"}}}, "test")
    settings, workers = RewardSettings.of(config), HeldWorkers()
    async with TestSystem(tmp_path) as system:

        def start() -> None:
            system.spawn(PROXY, lambda: RewardProxy(settings, "", workers.start, WorkerSpec()))

        async def kinds() -> dict[str, tuple[str, bool]]:
            """Kind of each batch, and whether it is foreseen."""
            state = await system.ask(PROXY, RewardStatus(), RewardState, deadline_s=20.0)
            return {one.name: (one.kind, one.complete_in_s is not None) for one in state.batches}

        start()
        await system.tell(PROXY, RewardHint(batch="step-1", items=1, kind="short"))
        message = Score(request="r", split="train", index=4, tokens=b"", batch="step-1")
        assert (await system.ask(PROXY, message, Verdict, deadline_s=20.0)).score == 4
        await system.tell(PROXY, BatchEnded(batch="step-1"))
        await system.tell(PROXY, RewardHint(batch="step-2", items=3))
        await system.tell(PROXY, RewardHint(batch="step-3", items=3, kind="short"))
        expected = {"step-2": ("step", False), "step-3": ("step short", True)}
        assert await kinds() == expected
        await asyncio.sleep(0.1)  # commits
        system.kill(PROXY)
        start()
        assert await kinds() == expected


class Lossy:
    """The context of a link whose first message that cancels items is lost."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.lost: list[CancelItems] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    async def tell(self, to: Address, message: Message) -> None:
        if not self._loses(message):
            await self._ctx.tell(to, message)

    async def ask(self, to: Address, message: Message, **limits: Any) -> Message:
        if self._loses(message):
            raise AskTimeout("no answer")
        return await self._ctx.ask(to, message, **limits)

    def _loses(self, message: Message) -> bool:
        if self.lost or not isinstance(message, CancelItems):
            return False
        self.lost.append(message)
        return True


@pytest.mark.parametrize("offers_again", [False, True])
async def test_cancelled_item_ends_on_its_host_when_the_message_is_lost(
    cluster: Cluster, offers_again: bool
) -> None:
    """Repeated; and where the host offers its workers again meanwhile, under the new epoch."""
    first, second = cluster.ask(1), cluster.ask(2)
    await cluster.until(lambda: cluster.hosts.begun[2] == 1)
    cell = cluster.far.system.cell(HOST)
    assert cell is not None
    assert isinstance(cell.actor, RewardHost)
    host = cell.actor
    link = cluster.proxy._offers._offers[HOST].link
    lossy = link._ctx = Lossy(link._ctx)  # type: ignore[assignment]
    if offers_again:
        link.close()
    await cluster.near.tell(PROXY, CancelScores(requests=["r2"]))
    with pytest.raises(Refused, match="not needed"):
        await second
    if offers_again:
        assert list(host._running) == ["r2"]
        host._proxy_lost.set()
    else:
        await cluster.until(lambda: bool(lossy.lost))
    await cluster.until(lambda: not host._running)
    cluster.own.let_go(1)
    await first


async def test_host_that_offers_again_keeps_what_it_has(cluster: Cluster) -> None:
    """The answer to its offer was lost, for example: no attempt is lost, nothing runs twice."""
    first, second = cluster.ask(1), cluster.ask(2)
    await cluster.until(lambda: cluster.hosts.begun[2] == 1)
    cell = cluster.far.system.cell(HOST)
    assert cell is not None
    for _ in range(4):
        offer = OfferWorkers(host=HOST, actor=cell.address, workers={SCORE: 1}, running={"r2": 0})
        await cluster.near.ask(PROXY, offer, WorkersTaken)
    assert cluster.proxy.summary().get("lost_with_host", 0) == 0
    cluster.own.let_go(1)
    await first
    cluster.hosts.let_go(2)
    assert (await second).score == 2.0
    assert (cluster.hosts.begun[2], cluster.own.begun[2]) == (1, 0)


async def test_item_that_never_reached_its_host_is_scored_elsewhere(cluster: Cluster) -> None:
    first, second = cluster.ask(1), cluster.ask(2)
    await cluster.until(lambda: cluster.hosts.begun[2] == 1)
    cell = cluster.far.system.cell(HOST)
    assert cell is not None
    offer = OfferWorkers(host=HOST, actor=cell.address, workers={SCORE: 1}, running={"r9": 0})
    await cluster.near.ask(PROXY, offer, WorkersTaken)
    cluster.own.let_go(1)
    await first
    cluster.hosts.let_go(2)
    assert (await second).score == 2.0
    assert cluster.proxy.summary().get("lost_with_host", 0) == 0


async def test_drain_that_is_taken_back_leaves_the_items(cluster: Cluster) -> None:
    first, second = cluster.ask(1), cluster.ask(2)
    await cluster.until(lambda: cluster.hosts.begun[2] == 1)
    leave = Withdraw(instance=HOST, grace_s=0.5, leaves=True)
    draining = asyncio.create_task(cluster.near.ask(PROXY, leave, Withdrawn))
    await asyncio.sleep(0.05)
    await cluster.near.ask(PROXY, NewWork(instance=HOST, allowed=True), Done)
    assert (await draining).handed_over == 0
    cluster.hosts.let_go(2)
    cluster.own.let_go(1)
    assert [(await first).score, (await second).score] == [1.0, 2.0]
    assert (cluster.hosts.begun[2], cluster.own.begun[2]) == (1, 0)


class Hasty(Actor):
    """A proxy that gives an item again before it has answered the message with its result."""

    def __init__(self) -> None:
        self.results: list[ItemResult] = []
        self.joined = asyncio.Event()

    @handles(OfferWorkers)
    async def offered(self, message: OfferWorkers) -> WorkersTaken:
        self._host = message.actor
        self.joined.set()
        return WorkersTaken(proxy=self.ctx.address, epoch="1.1")

    @handles(StillOffered)
    async def asked(self, message: StillOffered) -> Done:
        return Done()

    @handles(ItemsScored)
    async def scored(self, message: ItemsScored) -> Done:
        self.results += message.results
        if len(self.results) == 1:
            await self.score(4, attempt=1)
        return Done()

    async def score(self, index: int, attempt: int) -> None:
        work = pipe.pack(pipe.score_item("train", index, array("I", [1]).tobytes()))
        item = ItemToScore(id="r", attempt=attempt, stage=SCORE, work=work)
        message = ScoreItems(epoch="1.1", items=[item])
        await self.ctx.ask(self._host, message, deadline_s=5.0, expect=Done)


async def test_newer_attempt_of_an_item_is_scored_when_the_older_one_is_cancelled_late(
    tmp_path: Path,
) -> None:
    """The two messages leave the proxy at the same time, and may arrive in any order."""
    workers, hasty = HeldWorkers(4), Hasty()
    pools = StagePools(limits_of(1), WorkerSpec(), workers.start)
    async with TestSystem(tmp_path) as near, TestSystem(tmp_path, node="far", join=near) as far:
        near.spawn(PROXY, lambda: hasty)
        far.spawn(HOST, lambda: RewardHost(pools))
        async with asyncio.timeout(20.0):
            await hasty.joined.wait()
            await hasty.score(4, attempt=1)
            await near.tell(HOST, CancelItems(epoch="1.1", items=["r"], attempts={"r": 0}))
            workers.let_go(4)
            while not hasty.results:
                await asyncio.sleep(0.01)
        assert hasty.results[0].attempt == 1


async def test_item_given_again_is_scored_when_its_first_result_was_just_received(tmp_path: Path) -> None:
    """And once for each attempt, however often it is sent."""
    workers, hasty = HeldWorkers(4), Hasty()
    pools = StagePools(limits_of(1), WorkerSpec(), workers.start)
    async with TestSystem(tmp_path) as near, TestSystem(tmp_path, node="far", join=near) as far:
        near.spawn(PROXY, lambda: hasty)
        far.spawn(HOST, lambda: RewardHost(pools))
        async with asyncio.timeout(20.0):
            await hasty.joined.wait()
            await hasty.score(4, attempt=0)
            while not workers.begun[4]:
                await asyncio.sleep(0.01)
            await hasty.score(4, attempt=0)
            workers.let_go(4)
            while len(hasty.results) < 2:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
    assert [(result.id, result.attempt) for result in hasty.results] == [("r", 0), ("r", 1)]
    assert workers.begun == {4: 2}
