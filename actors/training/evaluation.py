"""`Evaluation`: mean reward on the held-out problems under one weight version.

Owns an evaluation from its submission to its record. Every part of it is repeatable: the batch is the same
batch, its groups can be taken again, and `EvalDone` marks its end.
"""

from collections.abc import Mapping
from typing import Literal

from gleaner.actors.names import MANAGER, TRAINER
from gleaner.actors.protocol.rollout import Groups, ReleaseBatch, TakeGroups
from gleaner.actors.protocol.training import CloseSeeding, OpenSeeding, TrainerIs, TrainerStatus
from gleaner.actors.reward.mixture import Mixture
from gleaner.actors.training import records
from gleaner.actors.training.history_recorder import HistoryRecorder
from gleaner.actors.training.job_journal import EvalDone, JobProgress
from gleaner.actors.training.retrying_ask import RetryingAsk
from gleaner.actors.training.submission import Submission
from gleaner.configs.schema import Config
from gleaner.supervisor import Context, Done

GROUPS_LATE_S = 120.0  # so long without a token is logged, each time again
LOOK_S = 2.0  # one wait for groups; between two waits the reserved engine is asked to help (again)


def rewards_by_task(config: Config, scores: Mapping[int, float | None]) -> dict[str, float | None]:
    """The mean held-out reward of each task, where a job has several. scores: by held-out problem."""
    if len(config.task) == 1:
        return {}
    mixture = Mixture(config.shares(heldout=True))
    found: dict[str, list[float]] = {task.name: [] for task in config.task}
    for index, score in scores.items():
        if score is not None:
            found[config.task[mixture.place(index)[0]].name].append(score)
    return {name: records.mean(own) for name, own in found.items()}


class Evaluation:
    """See the module."""

    def __init__(
        self,
        ctx: Context,
        retrying_ask: RetryingAsk,
        config: Config,
        submission: Submission,
        standing: JobProgress,
        recorder: HistoryRecorder,
    ) -> None:
        self._ctx, self._retrying_ask, self._config = ctx, retrying_ask, config
        self._submission, self._standing, self._recorder = submission, standing, recorder

    async def run(self, when: Literal["first", "during", "last"], trainer: TrainerIs) -> bool:
        """Compute and record the mean reward on the held-out problems, one sample each, if it is not on
        record yet; the reserved engine helps. False: the trainer went back meanwhile, so perhaps no instance
        has that version any more."""
        name = f"step-{trainer.step}" if when == "during" else when
        if name in self._standing.evals:
            return True
        batch = f"eval-{name}"
        await self._submission.evaluation(batch, trainer)
        scores = await self._scores(batch, trainer)
        if scores is None:
            return False
        found = [score for score in scores.values() if score is not None]
        tasks = rewards_by_task(self._config, scores)
        self._recorder.evaluation(when, trainer.step, found, tasks, self._ctx.now())
        done = EvalDone(when=name)
        await self._ctx.journal.append(done)
        self._standing.apply(done)
        await self._retrying_ask.ask(MANAGER, ReleaseBatch(batch=batch), Done)
        return True

    async def _scores(self, batch: str, trainer: TrainerIs) -> dict[int, float | None] | None:
        """The score of each problem, None for an unscored one. None if the trainer went back: the batch's
        results then wait until the same version exists again."""
        count = self._config.heldout_problems
        engine = trainer.source.rsplit("/", 1)[0] + "/engine"
        opened = OpenSeeding(version=trainer.step, root=trainer.root)
        await self._retrying_ask.ask(engine, opened, Done)
        scores: dict[int, float | None] = {}
        collected = 0
        async with self._ctx.wait(
            "complete groups", on=MANAGER, deadline_s=GROUPS_LATE_S, go_on=True
        ) as wait:
            while len(scores) < count:
                take = TakeGroups(
                    batch=batch,
                    taker=self._ctx.incarnation,
                    have=sorted(scores),
                    min_groups=count - len(scores),
                    wait_s=LOOK_S,
                )
                groups = await self._retrying_ask.ask(MANAGER, take, Groups)
                scores |= {group.group: group.samples[0].score for group in groups.groups}
                if groups.groups or groups.collected != collected:
                    wait.progress()
                    collected = groups.collected
                if not groups.groups and await self._went_back(trainer):
                    self._ctx.log.warning("the trainer went back before %s was done", batch)
                    await self._retrying_ask.ask(engine, CloseSeeding(), Done)
                    return None
                if len(scores) < count:  # a restarted trainer has a new engine without requests
                    await self._retrying_ask.ask(engine, opened, Done)
        await self._retrying_ask.ask(engine, CloseSeeding(), Done)
        return scores

    async def _went_back(self, trainer: TrainerIs) -> bool:
        now = await self._retrying_ask.ask(TRAINER, TrainerStatus(), TrainerIs)
        return now.step < trainer.step
