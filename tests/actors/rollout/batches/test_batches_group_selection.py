"""Dropped groups with real engines: freed slots, refills and remade samples."""

import asyncio
from pathlib import Path

import pytest
from test_actors_rollout_plane import NEW_TOKENS, Plane, plane

from gleaner.actors.engine.worker.port import StepCommands
from gleaner.actors.engine.worker.worker import RolloutWorker
from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.instances import Work
from gleaner.actors.protocol.reward import Score, Verdict
from gleaner.actors.protocol.rollout import (
    GroupFates,
    GroupFatesAre,
    Groups,
    MorePrompts,
    PromptsAre,
    SubmitBatch,
    TakeGroups,
)
from gleaner.actors.rollout.batches import group_selection as selecting
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.supervisor import Actor, Deferred, Done, Refused, handles
from gleaner.supervisor.testing import TestSystem


def prompts(first: int, count: int) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(split="train", index=g, tokens=(2 + g, 5, 7), seeds=tuple(100 * g + i for i in range(4)))
        for g in range(first, first + count)
    )


class UniformReward(Actor):
    """Every sample of the first four problems is right; others differ. The verifier fails once, on 5/0."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    @handles(Score)
    async def score(self, message: Score) -> Verdict:
        if message.request == "step-1/5/0":
            self.failed.append(message.request)
            return Verdict(request=message.request, score=0.0, status="lost")
        score = 1.0 if message.index < 4 else len(message.tokens) / 4 / NEW_TOKENS
        return Verdict(request=message.request, score=score, status="ok")


class SlowReward(Actor):
    """Reports the scores of a group only when `report` is called."""

    def __init__(self) -> None:
        self.held: list[tuple[Score, Deferred]] = []

    @handles(Score)
    async def score(self, message: Score) -> Deferred:
        deferred = Deferred()
        self.held.append((message, deferred))
        return deferred

    def report(self, *groups: int, varied: bool = False) -> None:
        for number, (message, deferred) in enumerate(self.held):
            if message.index in groups:
                score = float(number) if varied else 1.0
                deferred.answer(Verdict(request=message.request, score=score, status="ok"))


class Prompts(Actor):
    """A controller that refuses its first request for prompts."""

    asked = 0

    @handles(MorePrompts)
    async def more(self, message: MorePrompts) -> PromptsAre:
        Prompts.asked += 1
        if Prompts.asked == 1:
            raise Refused("not yet")
        return PromptsAre(prompts=prompts(message.first, message.count))


class LatePrompts(Actor):
    """A controller that answers a request for prompts only when `answer` is called."""

    def __init__(self) -> None:
        self.held: list[tuple[MorePrompts, Deferred]] = []

    @handles(MorePrompts)
    async def more(self, message: MorePrompts) -> Deferred:
        deferred = Deferred()
        self.held.append((message, deferred))
        return deferred

    def answer(self) -> None:
        for message, deferred in self.held:
            deferred.answer(PromptsAre(prompts=prompts(message.first, message.count)))


class UnfitPrompts(Actor):
    """A controller whose first answers are unfit: too long, too few, without tokens, without samples."""

    def __init__(self, most: int) -> None:
        long = (Prompt(split="train", index=9, tokens=(2,) * (most + 1), seeds=(1, 2, 3, 4)),)
        bare = (Prompt(split="train", index=9, tokens=(), seeds=(1, 2, 3, 4)),)
        unseeded = (Prompt(split="train", index=9, tokens=(2,), seeds=()),)
        strange = (Prompt(split="train", index=9, tokens=(-1,), seeds=(1, 2, 3, 4)),)
        self.unfit = [long, (), bare, unseeded, strange, long * 100]

    @handles(MorePrompts)
    async def more(self, message: MorePrompts) -> PromptsAre:
        return PromptsAre(prompts=self.unfit.pop(0) if self.unfit else prompts(message.first, message.count))


async def take(rollout: Plane, wanted: int) -> list[int]:
    have: list[int] = []
    async with asyncio.timeout(60):
        while len(have) < wanted:
            ask = TakeGroups(batch="step-1", taker=1, have=have, min_groups=wanted - len(have), wait_s=0.5)
            groups = await rollout.head.ask("rollout/manager", ask, Groups)
            have += [group.group for group in groups.groups]
    assert groups.remaining == 0
    return sorted(have)


def engine_of(host: TestSystem) -> RolloutWorker:
    cell = host.system.cell("spot-0/engine")
    assert cell is not None
    assert isinstance(cell.actor, RolloutWorker)
    return cell.actor


async def test_complete_batch_aborts_surplus_and_frees_slots(
    tmp_path: Path,
) -> None:
    async with plane(tmp_path) as rollout:
        host = await rollout.host("spot-0")
        batch = BatchSubmitted(
            batch="step-1",
            version=3,
            prompts=prompts(0, 6),
            max_new_tokens=NEW_TOKENS,
            wanted=2,
            most=6,
            over_sampling=3.0,
        )
        await rollout.head.ask("rollout/manager", SubmitBatch(batch=batch, weights=rollout.weights), Done)
        kept = await take(rollout, 2)
        fates = await rollout.head.ask("rollout/manager", GroupFates(batch="step-1"), GroupFatesAre)
        assert fates.kept == kept
        assert sorted([*fates.kept, *fates.aborted]) == list(range(6))
        async with asyncio.timeout(60):
            while True:
                rows = engine_of(host).summary()["rows"]
                await asyncio.sleep(0.1)
                if engine_of(host).summary()["rows"] == rows:
                    break  # the engine no longer decodes
        figures = await rollout.figures()
        assert (figures.queued, figures.pending, figures.executing) == (0, 0, 0)
        assert figures.tokens_wasted["aborted"] > 0
        assert figures.tokens_generated_twice == figures.tokens_lost == 0
        await host.system.close()


async def test_verdict_of_a_dropped_group_is_not_recorded(tmp_path: Path) -> None:
    async with plane(tmp_path) as rollout:
        host = await rollout.host("spot-0")
        rollout.head.kill("reward/proxy")
        reward = SlowReward()
        rollout.head.spawn("reward/proxy", lambda: reward)
        batch = BatchSubmitted(
            batch="step-1",
            version=3,
            prompts=prompts(0, 3),
            max_new_tokens=4,
            wanted=2,
            most=3,
            over_sampling=1.5,
        )
        await rollout.head.ask("rollout/manager", SubmitBatch(batch=batch, weights=rollout.weights), Done)
        async with asyncio.timeout(60):
            while len(reward.held) < 12:
                await asyncio.sleep(0.02)
        reward.report(0, 1)
        assert await take(rollout, 2) == [0, 1]
        reward.report(2)
        await asyncio.sleep(0.3)
        assert "scored_dropped" not in (await rollout.figures()).refused
        await host.system.close()


async def test_uniform_groups_are_refilled_after_a_manager_crash(
    tmp_path: Path,
) -> None:
    async with plane(tmp_path) as rollout:
        host = await rollout.host("spot-0")
        rollout.head.kill("reward/proxy")
        reward = UniformReward()
        rollout.head.spawn("reward/proxy", lambda: reward)
        Prompts.asked = 0
        batch = BatchSubmitted(
            batch="step-1",
            version=3,
            prompts=prompts(0, 6),
            max_new_tokens=NEW_TOKENS,
            wanted=6,
            most=12,
            drop_uniform=True,
            again=1,
        )
        await rollout.head.ask("rollout/manager", SubmitBatch(batch=batch, weights=rollout.weights), Done)
        async with asyncio.timeout(60):
            while (await rollout.figures()).groups_dropped < 2:
                await asyncio.sleep(0.02)
        rollout.head.kill("rollout/manager")  # the manager has received no prompts yet
        rollout.head.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(rollout.config)))
        rollout.head.spawn("training/controller", Prompts)
        assert await take(rollout, 6) == [4, 5, 6, 7, 8, 9]
        fates = await rollout.head.ask("rollout/manager", GroupFates(batch="step-1"), GroupFatesAre)
        assert (fates.dropped, fates.aborted, fates.again) == ([0, 1, 2, 3], [], 1)
        assert Prompts.asked > 1
        assert reward.failed == ["step-1/5/0"]
        figures = await rollout.figures()
        assert set(figures.tokens_wasted) == {"dropped", "lost"}
        assert figures.tokens_generated_twice == figures.tokens_lost == 0
        await host.system.close()


async def test_refill_is_aborted_when_the_batch_is_complete(tmp_path: Path) -> None:
    async with plane(tmp_path) as rollout:
        host = await rollout.host("spot-0")
        rollout.head.kill("reward/proxy")
        reward, late = SlowReward(), LatePrompts()
        rollout.head.spawn("reward/proxy", lambda: reward)
        rollout.head.spawn("training/controller", lambda: late)
        batch = BatchSubmitted(
            batch="step-1",
            version=3,
            prompts=prompts(0, 3),
            max_new_tokens=4,
            wanted=2,
            most=6,
            drop_uniform=True,
            over_sampling=1.5,
        )
        await rollout.head.ask("rollout/manager", SubmitBatch(batch=batch, weights=rollout.weights), Done)
        async with asyncio.timeout(60):
            while len(reward.held) < 12:
                await asyncio.sleep(0.02)
            reward.report(0)
            while not late.held:
                await asyncio.sleep(0.02)
            reward.report(1, 2, varied=True)
            assert await take(rollout, 2) == [1, 2]
            late.answer()
            fates = GroupFatesAre(kept=[], dropped=[], aborted=[], again=0)
            while not fates.aborted:
                fates = await rollout.head.ask("rollout/manager", GroupFates(batch="step-1"), GroupFatesAre)
                await asyncio.sleep(0.02)
        assert (fates.kept, fates.dropped, fates.aborted) == ([1, 2], [0], [3])
        await host.system.close()


async def test_unfit_prompts_are_requested_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(selecting, "UNFIT_AGAIN_S", 0.01)
    async with plane(tmp_path) as rollout:
        host = await rollout.host("spot-0")
        rollout.head.kill("reward/proxy")
        rollout.head.spawn("reward/proxy", UniformReward)
        most = rollout.config.engine.max_prompt_tokens
        rollout.head.spawn("training/controller", lambda: UnfitPrompts(most))
        batch = BatchSubmitted(
            batch="step-1",
            version=3,
            prompts=prompts(3, 2),
            max_new_tokens=NEW_TOKENS,
            wanted=2,
            most=3,
            drop_uniform=True,
        )
        await rollout.head.ask("rollout/manager", SubmitBatch(batch=batch, weights=rollout.weights), Done)
        first = rollout.head.system.cell("rollout/manager")
        assert await take(rollout, 2) == [1, 2]
        assert rollout.head.system.cell("rollout/manager") is first, "the manager never ended"
        await host.system.close()
    logged = [one.getMessage() for one in caplog.records if one.name == "rollout/manager"]
    assert any(f"{most + 1} tokens, engine.max_prompt_tokens is {most}" in line for line in logged)


def test_aborted_additions_are_never_added() -> None:
    work = [
        Work(ticket=n, prompt=b"", prefix=b"", seed=0, max_new_tokens=1, temperature=1.0) for n in range(3)
    ]
    orders = StepCommands(adds=[(1, work[:2]), (1, work[2:])])
    orders.abort([2, 0])
    assert [[one.ticket for one in added] for _, added in orders.adds] == [[1]]
    assert sorted(orders.aborts) == [0, 2]
