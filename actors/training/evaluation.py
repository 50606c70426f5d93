"""Evaluation: the mean reward on the held-out problems under one version of the weights.

Owns an evaluation from its submission to its record. Every step of it may be repeated: the batch is the same
batch, its groups are taken again by whoever asks, and `EvalDone` says that it is over.
"""

from typing import Literal

from actors.rollout.messages import Groups, ReleaseBatch, TakeGroups
from actors.training.asking import Asking
from actors.training.chronicle import Chronicle
from actors.training.job_journal import EvalDone, Standing
from actors.training.messages import CloseSeeding, OpenSeeding, TrainerIs
from actors.training.submission import Submission
from configs.schema import Config
from supervisor import Context, Done

MANAGER = "rollout/manager"
GROUPS_LATE_S = 120.0  # so long without a new group of an evaluation is worth a line, again each time
LOOK_S = 2.0  # one wait for groups; between two of them the reserved engine is asked to help (again)


class Evaluation:
    """See the module."""

    def __init__(
        self,
        ctx: Context,
        asking: Asking,
        config: Config,
        submission: Submission,
        standing: Standing,
        chronicle: Chronicle,
    ) -> None:
        self._ctx, self._asking, self._config = ctx, asking, config
        self._submission, self._standing, self._chronicle = submission, standing, chronicle

    async def run(self, when: Literal["first", "last"], trainer: TrainerIs) -> None:
        """Mean reward on the held-out problems, one sample each; the reserved engine helps."""
        batch, count = f"eval-{when}", self._config.task.heldout_problems
        await self._submission.evaluation(batch, trainer)
        engine = trainer.source.rsplit("/", 1)[0] + "/engine"
        await self._asking.ask(engine, OpenSeeding(version=trainer.step, root=trainer.root), Done)
        scores: dict[int, float] = {}
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
                groups = await self._asking.ask(MANAGER, take, Groups)
                scores |= {group.group: group.samples[0].score for group in groups.groups}
                if groups.groups:
                    wait.progress()
                if len(scores) < count:  # a trainer that was restarted has a new engine, which knows nothing
                    await self._asking.ask(engine, OpenSeeding(version=trainer.step, root=trainer.root), Done)
        await self._asking.ask(engine, CloseSeeding(), Done)
        mean = sum(scores.values()) / count
        self._chronicle.evaluation(when, trainer.step, mean, count, self._ctx.now())
        await self._ctx.journal.append(EvalDone(when=when))
        self._standing.evals.add(when)
        await self._asking.ask(MANAGER, ReleaseBatch(batch=batch), Done)
