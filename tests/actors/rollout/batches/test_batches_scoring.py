"""Scoring: concurrent requests for verdicts, full proxies, failed verifications."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import msgspec
import pytest
from rollout_world import frame, submission

from gleaner.actors.names import REWARD
from gleaner.actors.protocol.reward import RewardHint, Score, Verdict
from gleaner.actors.protocol.rollout import GroupOut, Groups, TakeGroups
from gleaner.actors.reward.health import LEAST
from gleaner.actors.rollout.batches import scoring
from gleaner.actors.rollout.batches.cache_outlook import CacheOutlook
from gleaner.actors.rollout.batches.group_delivery import GroupReaders
from gleaner.actors.rollout.batches.scoring import Scoring
from gleaner.actors.rollout.dispatch.remaining_length import RemainingLengths
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.events import Dispatched, GroupsTaken, InstanceJoined, SampleAgain, Scored
from gleaner.actors.rollout.state.group_events import decision_of
from gleaner.actors.rollout.state.group_policy import made_again
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.rollout.state.tickets import FINISHED, FIRST
from gleaner.configs.load import from_tree
from gleaner.configs.schema import Config
from gleaner.supervisor import Actor, Deferred, Overloaded, handles
from gleaner.supervisor.testing import TestSystem

MANAGER = "rollout/manager"


class Proxy(Actor):
    """Holds its requests until `let` is called; accepts at most `most` at a time."""

    def __init__(self, most: int = 10_000) -> None:
        self.most = most
        self.held: list[tuple[Score, Deferred]] = []
        self.asked: Counter[str] = Counter()
        self.refused = 0
        self.answer: Callable[[Score], Verdict] | None = None
        self.announced: list[RewardHint] = []

    @handles(RewardHint)
    async def hint(self, message: RewardHint) -> None:
        self.announced.append(message)

    @handles(Score)
    async def score(self, message: Score) -> Deferred | Verdict:
        self.asked[message.request] += 1
        if self.answer is not None:
            return self.answer(message)
        deferred = Deferred()
        if len(self.held) >= self.most:
            self.refused += 1
            deferred.answer(Overloaded("no room"))
            return deferred
        self.held.append((message, deferred))
        return deferred

    def let(self) -> None:
        for message, deferred in self.held:
            deferred.answer(ok(message))
        self.held.clear()


def ok(message: Score) -> Verdict:
    return Verdict(request=message.request, score=0.5, status="ok")


def failed(message: Score) -> Verdict:
    return Verdict(request=message.request, score=None, status="verifier_failed", detail="ValueError: no")


class Manager(Actor):
    """The part of the manager that scores, over a state in which every request has finished."""

    def __init__(self, state: RolloutState, config: Config) -> None:
        self.state, self._config = state, config
        self.scored: dict[str, Scored] = {}
        self.changes: list[bool] = []

    async def on_start(self) -> None:
        journaled = cast("JournaledState", SimpleNamespace(state=self.state))
        self.scoring = Scoring(self.ctx, journaled, self._config.reward, self.on_scored, self.on_health)
        self.scoring.start()

    async def on_scored(self, event: Scored) -> None:
        log = self.state.log.requests[event.request]
        if made_again(event.status, log.again, self.state.log.batches[log.batch].submitted.again):
            self.state.apply(SampleAgain(request=event.request, why=event.status, detail=event.detail))
            return
        assert self.state.apply(event).refused == []
        self.scored[event.request] = event

    def on_health(self) -> None:
        self.changes.append(self.scoring.health.sick)


def finished(requests: int) -> RolloutState:
    state = RolloutState()
    state.apply(submission(groups=requests // 2))
    state.apply(InstanceJoined(instance="spot", incarnation=4))
    names = tuple(state.log.requests)
    tickets = tuple(range(1, len(names) + 1))
    state.apply(Dispatched(instance="spot", incarnation=4, version=1, tickets=tickets, requests=names))
    state.apply(frame("spot", 4, 1, [(ticket, 70, -0.5, FIRST | FINISHED) for ticket in tickets]))
    assert len(state.log.unscored()) == requests
    return state


def config(**reward: Any) -> Config:
    return from_tree({"reward": reward}, "test")


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.005)


async def test_finished_requests_are_scored_at_once(tmp_path: Path) -> None:
    proxy, manager = Proxy(), Manager(finished(200), config(workers=64))
    async with TestSystem(tmp_path) as system:
        system.spawn(REWARD, lambda: proxy)
        system.spawn(MANAGER, lambda: manager)
        await until(lambda: len(proxy.held) == 200)
        proxy.let()
        await until(lambda: len(manager.scored) == 200)
    assert set(proxy.asked.values()) == {1}


@pytest.mark.parametrize("kind", ["", "short", "long"])
async def test_batch_is_announced_with_the_kind_of_its_round(
    tmp_path: Path, kind: Literal["", "short", "long"]
) -> None:
    proxy, manager = Proxy(), Manager(finished(4), config())
    batch = manager.state.log.batches["step-1"]
    batch.submitted = msgspec.structs.replace(batch.submitted, kind=kind)
    async with TestSystem(tmp_path) as system:
        system.spawn(REWARD, lambda: proxy)
        system.spawn(MANAGER, lambda: manager)
        await until(lambda: len(proxy.held) == 4)
        manager.scoring.opened(batch)
        await until(lambda: bool(proxy.announced))
        proxy.let()
    assert proxy.announced == [RewardHint(batch="step-1", items=4, kind=kind)]


async def test_requests_for_scores_are_limited_by_the_proxy(tmp_path: Path) -> None:
    proxy, manager = Proxy(), Manager(finished(200), config(max_queue=48))
    async with TestSystem(tmp_path) as system:
        system.spawn(REWARD, lambda: proxy)
        system.spawn(MANAGER, lambda: manager)
        for asked in (48, 96, 144, 192, 200):
            await until(lambda asked=asked: len(proxy.asked) == asked)  # type: ignore[misc]
            proxy.let()
        await until(lambda: len(manager.scored) == 200)
    assert proxy.refused == 0


async def test_overloaded_proxy_is_asked_again_after_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "RETRY_S", 0.01)
    monkeypatch.setattr(scoring, "MAX_RETRY_S", 0.04)
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def paused(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(scoring.asyncio, "sleep", paused)
    proxy, manager = Proxy(most=40), Manager(finished(200), config())
    async with TestSystem(tmp_path) as system:
        system.spawn(REWARD, lambda: proxy)
        system.spawn(MANAGER, lambda: manager)
        await until(lambda: proxy.refused >= 160)
        while len(manager.scored) < 200:
            proxy.let()
            await sleep(0.005)
    assert len(manager.scored) == 200
    assert min(pauses) > 0.0, "no request is repeated at once"


async def test_failures_of_a_sick_verifier_are_no_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "MAX_RETRY_S", 0.05)
    proxy, manager = Proxy(), Manager(finished(2 * LEAST), config())
    proxy.answer = failed
    async with TestSystem(tmp_path) as system:
        system.spawn(REWARD, lambda: proxy)
        system.spawn(MANAGER, lambda: manager)
        await until(lambda: len(proxy.asked) == 2 * LEAST and min(proxy.asked.values()) >= 3)
        assert manager.scored == {}, "no sample is given up while the verifier is sick"
        (wait,) = manager.scoring.waits(0.0)
        assert "verifier_failed" in wait.what
        assert "ValueError: no" in wait.what
        assert wait.on == REWARD
        proxy.answer = ok
        await until(lambda: len(manager.scored) == 2 * LEAST)
        await until(lambda: not manager.scoring.health.sick)
    assert {event.score for event in manager.scored.values()} == {0.5}
    assert manager.changes[0] is True
    assert manager.changes[-1] is False
    assert list(manager.scoring.waits(0.0)) == []


async def test_timeouts_are_no_scores_until_another_result_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "MAX_RETRY_S", 0.05)

    def late(message: Score) -> Verdict:
        return Verdict(request=message.request, score=0.0, status="timeout", detail="more than 2 s")

    proxy, manager = Proxy(), Manager(finished(6), config())
    proxy.answer = late
    async with TestSystem(tmp_path) as system:
        system.spawn(REWARD, lambda: proxy)
        system.spawn(MANAGER, lambda: manager)
        await until(lambda: len(proxy.asked) == 6 and min(proxy.asked.values()) >= 3)
        assert manager.scored == {}, "the verifier itself may hang"
        proxy.answer = lambda message: ok(message) if message.request == "step-1/0/0" else late(message)
        await until(lambda: len(manager.scored) == 6)
    statuses = Counter(event.status for event in manager.scored.values())
    assert statuses == {"ok": 1, "timeout": 5}


async def test_sample_is_unscored_when_only_its_verification_fails(tmp_path: Path) -> None:
    def answer(message: Score) -> Verdict:
        return failed(message) if message.request == "step-1/3/1" else ok(message)

    proxy, manager = Proxy(), Manager(finished(2 * LEAST), config(sick_share=0.5))
    proxy.answer = answer
    async with TestSystem(tmp_path) as system:
        system.spawn(REWARD, lambda: proxy)
        system.spawn(MANAGER, lambda: manager)
        await until(lambda: len(manager.scored) == 2 * LEAST)
    unscored = [event for event in manager.scored.values() if event.score is None]
    assert unscored == [
        Scored(request="step-1/3/1", score=None, status="verifier_failed", detail="ValueError: no")
    ]
    log = manager.state.log.requests["step-1/3/1"]
    assert log.judged
    assert log.score is None
    assert manager.state.log.batches["step-1"].complete(3)
    assert manager.state.counters.verdicts == {"ok": 2 * LEAST - 1, "verifier_failed": 1}
    assert manager.state.counters.failure == "ValueError: no"


class Handing(Actor):
    """The part of the manager that hands out, over a state in which every request has its verdict."""

    def __init__(self, state: RolloutState) -> None:
        self._state = state
        self.held = False

    async def on_start(self) -> None:
        async def hand_out(event: GroupsTaken, groups: list[GroupOut]) -> None:
            self.taken += [group.group for group in groups]
            self._state.apply(event)

        async def get(batch: str, groups: list[int]) -> dict[int, GroupOut]:
            return {group: GroupOut(group=group, prompt=b"", samples=()) for group in groups}

        self.taken: list[int] = []
        journaled = SimpleNamespace(state=self._state, hand_out=hand_out, shelves=SimpleNamespace(get=get))
        self.group_readers = GroupReaders(
            self.ctx,
            cast("JournaledState", journaled),
            Instances(),
            lambda: self.held,
            CacheOutlook(cast("JournaledState", journaled), Instances(), RemainingLengths()),
        )

    @handles(TakeGroups)
    async def take(self, message: TakeGroups) -> Deferred:
        deferred = self.group_readers.add(message)
        self.group_readers.look()
        return deferred


async def test_sick_verifier_allows_only_groups_handed_out_before(
    tmp_path: Path,
) -> None:
    state = finished(6)
    for request in list(state.log.requests):
        state.apply(Scored(request=request, score=0.5))
    handing = Handing(state)
    async with TestSystem(tmp_path) as system:
        system.spawn(MANAGER, lambda: handing)

        async def take(*have: int, taker: int = 1, least: int = 3, wait_s: float = 0.0) -> list[int]:
            ask = TakeGroups(batch="step-1", taker=taker, have=list(have), min_groups=least, wait_s=wait_s)
            groups = await system.ask(MANAGER, ask, Groups, deadline_s=60)
            return [group.group for group in groups.groups]

        state.apply(GroupsTaken(batch="step-1", taker=1, groups=(1,)))
        handing.held = True
        assert await take(1) == []
        assert await take(taker=2) == [1], "a restarted trainer continues with its groups"
        waiting = asyncio.create_task(take(1, taker=2, least=2, wait_s=60.0))
        await until(lambda: len(handing.group_readers._waiting) == 1)
        handing.group_readers.look()
        assert handing.taken == []
        handing.held = False
        handing.group_readers.look()
        assert await waiting == [0, 2]


def test_unscored_samples_do_not_count_for_uniform_groups() -> None:
    state = RolloutState()
    state.apply(msgspec.structs.replace(submission(groups=3, samples=3), wanted=1, most=3, drop_uniform=True))
    state.apply(InstanceJoined(instance="spot", incarnation=4))
    names = tuple(state.log.requests)
    tickets = tuple(range(1, len(names) + 1))
    state.apply(Dispatched(instance="spot", incarnation=4, version=1, tickets=tickets, requests=names))
    state.apply(frame("spot", 4, 1, [(ticket, 70, -0.5, FIRST | FINISHED) for ticket in tickets]))
    scores: list[float | None] = [1.0, None, None, 0.5, 0.5, None, 0.5, None, 1.0]
    for name, score in zip(names, scores, strict=True):
        state.apply(Scored(request=name, score=score, status="lost" if score is None else "ok"))
    decision = decision_of(state.log.batches["step-1"])
    assert (decision.keep, decision.drop) == ((2,), (0, 1))
    assert state.check() == []
    again = RolloutState()
    again.apply(state.snapshot())
    assert again.snapshot() == state.snapshot()
    assert again.log.unscored() == [], "an unscored sample already has its verdict"
