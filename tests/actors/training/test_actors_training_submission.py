"""What is submitted: problems whose prompts no engine takes give their place to others, once for all."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from actors.reward.messages import GetProblems, Problems
from actors.rollout.events import Prompt
from actors.rollout.messages import SubmitBatch
from actors.training.asking import Asking
from actors.training.drawing import Draws
from actors.training.job_journal import standing_of
from actors.training.messages import TrainerIs
from actors.training.submission import NothingFits, Submission
from configs.load import from_tree
from configs.schema import Config
from supervisor import Actor, Done, handles
from supervisor.testing import TestSystem

MOST = 8
TRAINER = TrainerIs(step=0, root=b"root", source="r/transfer")


class Wordy(Actor):
    """Every third problem is too long, or all of them."""

    def __init__(self, every: int) -> None:
        self.every = every

    @handles(GetProblems)
    async def problems(self, message: GetProblems) -> Problems:
        return Problems(prompts=[[5] * (MOST + (index % self.every == 0)) for index in message.indices])


class Manager(Actor):
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.batches: dict[str, tuple[Prompt, ...]] = {}

    @handles(SubmitBatch)
    async def submit(self, message: SubmitBatch) -> Done:
        self.batches[message.batch.batch] = message.batch.prompts
        return Done()


class Submitter(Actor):
    """As much of a controller as submits."""

    def __init__(self, config: Config) -> None:
        self._config = config

    async def on_start(self) -> None:
        draws = Draws(self._config.train_problems, self._config.rollout.prompts)
        standing = await standing_of(self.ctx.journal.replay(), draws)
        self.submission = Submission(
            self.ctx, Asking(self.ctx, self._config.liveness.successor_s), self._config, standing
        )


class World:
    """A submitter that can be killed, and the manager that it submits to."""

    def __init__(self, system: TestSystem, problems: int) -> None:
        self.system, self.manager = system, Manager()
        self.config = from_tree(
            {
                "rollout": {"prompts": 4, "samples": 2},
                "engine": {"max_prompt_tokens": MOST},
                "task": {"train_problems": problems},
            },
            "test",
        )
        system.spawn("rollout/manager", lambda: self.manager)

    async def begin(self) -> Submission:
        actor = Submitter(self.config)
        self.system.spawn("training/controller", lambda: actor)
        cell = self.system.system.cell("training/controller")
        assert cell is not None
        await cell.started
        return actor.submission


@asynccontextmanager
async def world(directory: Path, every: int, problems: int = 100) -> AsyncIterator[World]:
    async with TestSystem(directory) as system:
        system.spawn("reward/proxy", lambda: Wordy(every))
        yield World(system, problems)


def indices(prompts: tuple[Prompt, ...]) -> list[int]:
    return [prompt.index for prompt in prompts]


async def test_others_take_the_place_of_problems_that_no_engine_takes_and_a_restart_repeats_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, every=3) as there:
        submission = await there.begin()
        await submission.step(1, TRAINER)
        begun = there.manager.batches["step-1"]
        assert indices(begun) == [4, 1, 2, 5], "0 and 3 are too long"
        more = await submission.more("step-1", 4, 3)
        assert indices(more) == [10, 7, 8], "6 and 9 are too long"
        assert all(len(prompt.tokens) <= MOST for prompt in (*begun, *more))
        there.system.kill("training/controller")
        submission = await there.begin()
        await submission.step(1, TRAINER)
        assert there.manager.batches["step-1"] == begun
        assert await submission.more("step-1", 4, 3) == more
    said = [record.getMessage() for record in caplog.records if "engine.max_prompt_tokens" in record.msg]
    assert len(said) == 2, "a line for the batch and one for its refill, none when they are repeated"


async def test_where_no_problem_fits_the_step_is_refused_with_the_setting_to_raise(tmp_path: Path) -> None:
    async with world(tmp_path, every=1, problems=10) as there:
        submission = await there.begin()
        with pytest.raises(NothingFits, match=f"engine.max_prompt_tokens is {MOST}"):
            await submission.step(1, TRAINER)
        assert there.manager.batches == {}


async def test_a_few_problems_that_fit_are_enough_for_a_large_batch(tmp_path: Path) -> None:
    async with world(tmp_path, every=2, problems=3) as there:
        submission = await there.begin()
        await submission.step(1, TRAINER)
        assert set(indices(there.manager.batches["step-1"])) == {1}
