"""Submission of batches: problems with too long prompts are replaced by others, once for all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gleaner.actors.names import CONTROLLER
from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.cluster import Plan
from gleaner.actors.protocol.reward import GetProblems, Problems
from gleaner.actors.protocol.rollout import GroupFates, GroupFatesAre, SubmitBatch
from gleaner.actors.protocol.step_times import RoundKinds
from gleaner.actors.protocol.training import TrainerIs
from gleaner.actors.training.draw_order import draw_order_of
from gleaner.actors.training.job_journal import JobSnapshot, standing_of
from gleaner.actors.training.retrying_ask import RetryingAsk
from gleaner.actors.training.submission import NothingFits, Submission
from gleaner.configs.load import from_tree
from gleaner.configs.schema import Config
from gleaner.supervisor import Actor, Done, Refused, handles
from gleaner.supervisor.journal.file import StreamContent, read_streams
from gleaner.supervisor.testing import TestSystem

MOST = 8
TRAINER = TrainerIs(step=0, root=b"root", source="r/transfer")


class Wordy(Actor):
    """Every third problem is too long, or all of them."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.asked = 0

    @handles(GetProblems)
    async def problems(self, message: GetProblems) -> Problems:
        self.asked += 1
        return Problems(prompts=[[5] * (MOST + (index % self.every == 0)) for index in message.indices])


class Manager(Actor):
    """A manager that keeps submitted batches. fates: of every batch."""

    def __init__(self) -> None:
        self.batches: dict[str, tuple[Prompt, ...]] = {}
        self.kinds: list[str] = []
        self.submitted: list[BatchSubmitted] = []
        self.fates = GroupFatesAre(kept=[], dropped=[], aborted=[])

    @handles(SubmitBatch)
    async def submit(self, message: SubmitBatch) -> Done:
        self.batches[message.batch.batch] = message.batch.prompts
        self.kinds.append(message.batch.kind)
        self.submitted.append(message.batch)
        return Done()

    @handles(GroupFates)
    async def outcomes(self, message: GroupFates) -> GroupFatesAre:
        return self.fates


class Submitter(Actor):
    """The submitting part of a controller."""

    def __init__(self, config: Config) -> None:
        self._config = config

    async def on_start(self) -> None:
        standing = await standing_of(self.ctx.journal.replay(), draw_order_of(self._config))
        self.submission = Submission(
            self.ctx, RetryingAsk(self.ctx, self._config.liveness.successor_s), self._config, standing
        )


class World:
    """A submitter that can be killed, and the manager that it submits to."""

    def __init__(
        self,
        system: TestSystem,
        problems: int,
        every: int,
        rollout: dict[str, object],
        rounds: dict[str, object],
        job_events: int,
    ) -> None:
        self.system, self.manager, self.words = system, Manager(), Wordy(every)
        self.config = from_tree(
            {
                "rollout": {"prompts": 4, "samples": 2, **rollout},
                "rounds": rounds,
                "limits": {"job_events": job_events},
                "engine": {"max_prompt_tokens": MOST},
                "task": {"train_problems": problems},
            },
            "test",
        )
        system.spawn("rollout/manager", lambda: self.manager)

    async def start(self) -> Submission:
        actor = Submitter(self.config)
        self.system.spawn("training/controller", lambda: actor)
        cell = self.system.system.cell("training/controller")
        assert cell is not None
        await cell.started
        return actor.submission

    async def restart(self) -> Submission:
        self.system.kill("training/controller")
        return await self.start()

    def journal(self) -> StreamContent:
        """The controller's."""
        return read_streams(self.system.directory / "test.sqlite", [CONTROLLER])[CONTROLLER]


@asynccontextmanager
async def world(
    directory: Path,
    every: int,
    problems: int = 100,
    rollout: dict[str, object] | None = None,
    rounds: dict[str, object] | None = None,
    job_events: int = 1000,
) -> AsyncIterator[World]:
    async with TestSystem(directory) as system:
        there = World(system, problems, every, rollout or {}, rounds or {}, job_events)
        system.spawn("reward/proxy", lambda: there.words)
        yield there


def indices(prompts: tuple[Prompt, ...]) -> list[int]:
    return [prompt.index for prompt in prompts]


async def test_unfit_problems_are_replaced_and_a_restart_repeats_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, every=3) as there:
        submission = await there.start()
        await submission.step(1, TRAINER)
        begun = there.manager.batches["step-1"]
        assert indices(begun) == [4, 1, 2, 5], "0 and 3 are too long"
        more = await submission.more("step-1", 4, 3)
        assert indices(more) == [10, 7, 8], "6 and 9 are too long"
        assert all(len(prompt.tokens) <= MOST for prompt in (*begun, *more))
        there.system.kill("training/controller")
        submission = await there.start()
        await submission.step(1, TRAINER)
        assert there.manager.batches["step-1"] == begun
        assert await submission.more("step-1", 4, 3) == more
    lines = [record.getMessage() for record in caplog.records if "engine.max_prompt_tokens" in record.msg]
    assert len(lines) == 2, "a line for the batch and one for its refill, none when they are repeated"


async def test_step_without_fitting_problems_is_refused_with_the_setting(tmp_path: Path) -> None:
    async with world(tmp_path, every=1, problems=10) as there:
        submission = await there.start()
        with pytest.raises(NothingFits, match=f"engine.max_prompt_tokens is {MOST}"):
            await submission.step(1, TRAINER)
        assert there.manager.batches == {}


async def test_few_fitting_problems_are_enough_for_a_large_batch(tmp_path: Path) -> None:
    async with world(tmp_path, every=2, problems=3) as there:
        submission = await there.start()
        await submission.step(1, TRAINER)
        assert set(indices(there.manager.batches["step-1"])) == {1}


async def test_prepared_step_is_submitted_without_another_ask(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, every=1000) as there:
        submission = await there.start()
        await submission.step(1, TRAINER)
        await submission.prepare(2)
        asked = there.words.asked
        await submission.step(2, TRAINER)
        assert there.words.asked == asked
        prepared = there.manager.batches["step-2"]
        assert indices(prepared) == [5, 6, 7, 8], "0 is too long"
        await submission.prepare(3)
        there.system.kill("training/controller")
        submission = await there.start()
        await submission.step(2, TRAINER)
        assert there.manager.batches["step-2"] == prepared
        await submission.step(3, TRAINER)
        assert indices(there.manager.batches["step-3"]) == [9, 10, 11, 12], "drawn before the kill, and once"


async def test_step_without_fitting_problems_fails_after_its_preparation(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, every=1, problems=10) as there:
        submission = await there.start()
        await submission.prepare(1)
        with pytest.raises(NothingFits):
            await submission.step(1, TRAINER)


async def test_batch_with_refills_is_not_prepared_ahead(tmp_path: Path) -> None:
    async with world(tmp_path, every=1000, rollout={"over_sampling": 1.5}) as there:
        submission = await there.start()
        await submission.step(1, TRAINER)
        await submission.prepare(2)
        refill = await submission.more("step-1", 6, 2)
        await submission.step(2, TRAINER)
        assert indices(there.manager.batches["step-2"])[0] == indices(refill)[-1] + 1


async def test_problems_of_a_refill_that_came_too_late_are_drawn_again(tmp_path: Path) -> None:
    async with world(tmp_path, every=1000, rollout={"over_sampling": 1.5, "drop_uniform": True}) as there:
        submission = await there.start()
        await submission.step(1, TRAINER)
        late = await submission.more("step-1", 6, 2)  # the manager was restarted, and needs them no longer
        there.manager.fates = GroupFatesAre(kept=[0, 1, 2, 4], dropped=[3], aborted=[5])
        await submission.settle(1)
        await submission.step(2, TRAINER)
        assert indices(there.manager.batches["step-2"])[:4] == [5, *indices(late), indices(late)[-1] + 1]


async def test_late_refill_of_a_trained_round_is_refused_and_draws_nothing(tmp_path: Path) -> None:
    rollout: dict[str, object] = {"drop_uniform": True, "max_refills": 2}
    async with world(tmp_path, every=100, rollout=rollout, rounds={"mode": "tail", "race": "time"}) as there:
        submission = await there.start()
        await submission.step(1, TRAINER)
        more = await submission.more("step-1", 5, 1)
        there.manager.fates = GroupFatesAre(kept=[0, 1, 2, 4], dropped=[3], aborted=[])
        await submission.settle(1)
        with pytest.raises(Refused, match="step-1 has 6 groups and takes no more"):
            await submission.more("step-1", 6, 1)
        assert await submission.more("step-1", 5, 1) == more
        await submission.step(2, TRAINER)
        launched = indices(there.manager.batches["step-2"])
        assert launched == [7, 8, 9, 10, 11, 12, 13], "0 is too long; two more, as 1 of 5 was uniform"


async def test_spare_groups_are_submitted_alike_by_every_life_of_the_controller(tmp_path: Path) -> None:
    rollout: dict[str, object] = {"drop_uniform": True, "max_refills": 2}
    rounds: dict[str, object] = {"mode": "tail", "prompts_factor": 1.5}
    async with world(tmp_path, every=100, rollout=rollout, rounds=rounds) as there:
        submission = await there.start()
        await submission.step(1, TRAINER)
        there.manager.fates = GroupFatesAre(kept=[0, 1, 2, 4], dropped=[3], aborted=[5])
        await submission.settle(1)
        assert submission.rounds(1) == RoundKinds(done="short", ahead="short", shorts=2.0, surplus=2, spare=2)
        await (await there.restart()).step(2, TRAINER)
        await (await there.restart()).step(2, TRAINER)
        first, begun, again = there.manager.submitted
        assert (len(first.prompts), len(begun.prompts)) == (6, 8), "1 of 5 is uniform: 6 / 0.8 = 7.5"
        assert (begun.most, begun.over_sampling) == (first.most, first.over_sampling), "they are refills"
        assert again == begun


async def test_look_at_the_next_round_changes_nothing_of_the_draws(tmp_path: Path) -> None:
    rollout: dict[str, object] = {"drop_uniform": True, "max_refills": 2}
    rounds: dict[str, object] = {"mode": "tail", "prompts_factor": 1.5}
    async with world(tmp_path, every=100, rollout=rollout, rounds=rounds) as there:
        submission = await there.start()
        await submission.step(1, TRAINER)
        there.manager.fates = GroupFatesAre(kept=[0, 1, 2, 4], dropped=[], aborted=[3, 5])
        await submission.settle(1)
        await submission.step(2, TRAINER)
        there.manager.fates = GroupFatesAre(kept=[0, 1, 2, 4], dropped=[3], aborted=[5])
        seen = [await submission.rounds_ahead(2) for _ in range(3)]
        await submission.settle(2)
        assert seen == [submission.rounds(2)] * 3
        assert submission.rounds(2) == (await there.restart()).rounds(2), "it follows from the journal"


async def test_surplus_of_a_plan_is_launched_from_the_next_period_on(tmp_path: Path) -> None:
    rounds: dict[str, object] = {"mode": "tail", "prompts_plan": "model", "prompts_factor": 2}
    async with world(tmp_path, every=100, rounds=rounds) as there:
        submission = await there.start()
        await submission.step(1, TRAINER)
        there.manager.fates = GroupFatesAre(kept=[1, 2, 3, 4], dropped=[], aborted=[])
        await submission.settle(1)
        assert submission.rounds(1) == RoundKinds(done="short", ahead="long", shorts=1.0, surplus=4)
        submission.planned(Plan(t_seed_s=1.0, n_prem=0, tail_surplus=3))
        await submission.step(2, TRAINER)
        there.manager.fates = GroupFatesAre(kept=[0, 1, 2, 3], dropped=[], aborted=[])
        await submission.settle(2)
        assert submission.rounds(2) == RoundKinds(
            done="long", ahead="short", shorts=1.0, surplus=4, surpluses=[3, 4]
        )
        submission.planned(Plan(t_seed_s=1.0, n_prem=0, tail_surplus=3))
        await submission.step(3, TRAINER)
        begun = there.manager.batches["step-3"]
        assert len(begun) == 7
        there.system.kill("training/controller")
        submission = await there.start()
        await submission.step(3, TRAINER)
        assert there.manager.batches["step-3"] == begun, "a restart launches the same groups"


@pytest.mark.parametrize(("gain", "kind"), [(None, ""), (0.02, ""), (0.03, "short")])
async def test_rounds_begin_with_the_step_whose_plan_finds_that_they_gain_enough(
    tmp_path: Path, gain: float | None, kind: str
) -> None:
    rounds: dict[str, object] = {"mode": "auto", "prompts_factor": 2}
    async with world(tmp_path, every=100, rounds=rounds) as there:
        submission = await there.start()
        await submission.step(1, TRAINER)
        there.manager.fates = GroupFatesAre(kept=[0, 1, 2, 3], dropped=[], aborted=[])
        whole = RoundKinds(done="plain", ahead="plain", shorts=1.0, surplus=4, begins=0.03)
        assert await submission.rounds_ahead(1) == whole
        await submission.settle(1)
        assert submission.rounds(1) == whole
        submission.planned(Plan(t_seed_s=1.0, n_prem=0, tail_gain=gain))
        await submission.step(2, TRAINER)
        assert there.manager.kinds == ["", kind]
        there.manager.fates = GroupFatesAre(kept=[0, 1, 2, 3], dropped=[], aborted=[])
        await submission.settle(2)
        done = submission.rounds(2)
        assert done is not None
        assert (done.done, done.begins) == ((kind, None) if kind else ("plain", 0.03))


@pytest.mark.parametrize(("mode", "kinds"), [("off", ["", ""]), ("tail", ["short", "long"])])
async def test_batch_of_a_step_has_the_kind_of_its_round(tmp_path: Path, mode: str, kinds: list[str]) -> None:
    async with world(tmp_path, every=100, rounds={"mode": mode, "prompts_factor": 2}) as there:
        submission = await there.start()
        await submission.step(1, TRAINER)
        there.manager.fates = GroupFatesAre(kept=[1, 2, 3, 4], dropped=[], aborted=[])
        await submission.settle(1)
        await submission.step(2, TRAINER)
    assert there.manager.kinds == kinds


JOBS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "plain": ({"over_sampling": 1.5}, {}),
    "rounds": ({}, {"mode": "tail", "prompts_factor": 1.5}),
}
"""Settings of sections `rollout` and `rounds`. Of the six groups of a step four count; a long round has four
of them."""


async def begun(
    directory: Path, kind: str, steps: int, job_events: int
) -> tuple[dict[str, tuple[Prompt, ...]], StreamContent]:
    """The batches of a job whose controller is restarted behind every step, and its journal."""
    rollout, rounds = JOBS[kind]
    async with world(directory, 100, rollout=rollout, rounds=rounds, job_events=job_events) as there:
        submission = await there.start()
        for step in range(1, steps + 1):
            await submission.step(step, TRAINER)
            launched = len(there.manager.batches[f"step-{step}"])
            kept = list(range(launched))[-4:]
            there.manager.fates = GroupFatesAre(kept=kept, dropped=[], aborted=[])
            await submission.settle(step)
            await submission.finished(step)
            submission = await there.restart()
        return there.manager.batches, there.journal()


@pytest.mark.parametrize("kind", JOBS)
async def test_journal_with_snapshots_is_short_and_gives_the_same_batches(tmp_path: Path, kind: str) -> None:
    for name in ("whole", "short"):
        (tmp_path / name).mkdir()
    whole, all_events = await begun(tmp_path / "whole", kind, 16, 1000)
    batches, journal = await begun(tmp_path / "short", kind, 16, 4)
    assert batches == whole
    assert all_events.snapshot is None
    assert len(all_events.events) >= 2 * 16
    assert isinstance(journal.snapshot, JobSnapshot)
    assert len(journal.events) < 4
    assert max(journal.snapshot.steps()) >= 15


async def test_snapshot_is_taken_after_so_many_events(tmp_path: Path) -> None:
    async with world(tmp_path, 100, job_events=4) as there:
        submission = await there.start()
        taken = []
        for step in range(1, 7):
            await submission.step(step, TRAINER)
            await submission.finished(step)
            journal = there.journal()
            taken.append((journal.snapshot is not None, len(journal.events)))
    assert taken == [(False, 3), (True, 0), (True, 2), (True, 0), (True, 2), (True, 0)]


async def test_draw_that_is_committed_while_a_step_ends_outlives_a_snapshot(tmp_path: Path) -> None:
    async with world(tmp_path, 100, rollout={"over_sampling": 1.5}, job_events=1) as there:
        submission = await there.start()
        await submission.step(1, TRAINER)
        await submission.step(2, TRAINER)
        _, more = await asyncio.gather(submission.finished(1), submission.more("step-2", 6, 2))
        submission = await there.restart()
        await submission.step(3, TRAINER)
        assert isinstance(there.journal().snapshot, JobSnapshot)
        assert indices(more) == [13, 14], "the next problems in turn"
        assert indices(there.manager.batches["step-3"])[0] == 15, "they are drawn once"
        assert await submission.more("step-2", 6, 2) == more
