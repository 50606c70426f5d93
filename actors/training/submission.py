"""Submission: problems become a batch, its requests get their seeds, and the RolloutManager gets it.

Owns nothing: whoever submits the same again changes nothing.
"""

from actors.reward.messages import GetProblems, Problems
from actors.rollout.events import BatchSubmitted, Prompt
from actors.rollout.messages import SubmitBatch, Weights
from actors.training.asking import Asking
from actors.training.messages import TrainerIs
from actors.training.seeds import request_seed
from configs.schema import Config
from supervisor import Done

REWARD = "reward/proxy"
MANAGER = "rollout/manager"


class Submission:
    """See the module."""

    def __init__(self, asking: Asking, config: Config) -> None:
        self._asking, self._config = asking, config

    async def step(self, step: int, trainer: TrainerIs) -> None:
        """The batch of a training step, under the weights of `trainer`."""
        rollout = self._config.rollout
        first = (step - 1) * rollout.prompts
        indices = [(first + g) % self._config.task.train_problems for g in range(rollout.prompts)]
        await self.batch(f"step-{step}", "train", indices, rollout.samples, rollout.temperature, trainer)

    async def batch(
        self,
        batch: str,
        split: str,
        indices: list[int],
        samples: int,
        temperature: float,
        trainer: TrainerIs,
    ) -> None:
        """`samples` responses to each of these problems of a split, under the weights of `trainer`."""
        problems = await self._asking.ask(REWARD, GetProblems(split=split, indices=indices), Problems)
        seed = self._config.job.seed
        prompts = tuple(
            Prompt(
                split=split,
                index=index,
                tokens=tuple(tokens),
                seeds=tuple(request_seed(seed, batch, group, sample) for sample in range(samples)),
            )
            for group, (index, tokens) in enumerate(zip(indices, problems.prompts, strict=True))
        )
        submitted = BatchSubmitted(
            batch=batch,
            version=trainer.step,
            prompts=prompts,
            max_new_tokens=self._config.rollout.max_new_tokens,
            temperature=temperature,
        )
        weights = Weights(version=trainer.step, root=trainer.root, sources=(trainer.source,))
        await self._asking.ask(MANAGER, SubmitBatch(batch=submitted, weights=weights), Done)
