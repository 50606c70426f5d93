"""Submission: problems become a batch, its requests get their seeds, and the RolloutManager gets it.

Owns nothing: whoever submits the same again changes nothing. So what a batch says of versions follows from
its step alone: version step - 1 starts the step, and with a staleness bound k (AReaL, arXiv 2505.24298,
section 5.1, calls it eta) tokens may be made under any version from step - 1 - k on.
"""

from actors.reward.messages import GetProblems, Problems
from actors.rollout.events import BatchSubmitted, Prompt
from actors.rollout.messages import PublishVersion, SubmitBatch, Weights
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

    async def publish(self, trainer: TrainerIs) -> None:
        """The weights of `trainer` are the newest."""
        await self._asking.ask(MANAGER, PublishVersion(weights=_weights(trainer)), Done)

    async def step(self, step: int, trainer: TrainerIs) -> None:
        """The batch of a training step; `trainer` has the newest weights."""
        rollout = self._config.rollout
        first = (step - 1) * rollout.prompts
        indices = [(first + g) % self._config.task.train_problems for g in range(rollout.prompts)]
        least = max(0, step - 1 - rollout.staleness) if rollout.staleness else None
        prompts = await self._prompts(f"step-{step}", "train", indices, rollout.samples)
        await self._submit(f"step-{step}", prompts, step - 1, least, rollout.temperature, trainer)

    async def evaluation(self, batch: str, trainer: TrainerIs) -> None:
        """The held-out problems, one sample each, under exactly the weights of `trainer`."""
        indices = list(range(self._config.task.heldout_problems))
        prompts = await self._prompts(batch, "heldout", indices, 1)
        temperature = self._config.rollout.eval_temperature
        await self._submit(batch, prompts, trainer.step, None, temperature, trainer)

    async def _prompts(self, batch: str, split: str, indices: list[int], samples: int) -> tuple[Prompt, ...]:
        problems = await self._asking.ask(REWARD, GetProblems(split=split, indices=indices), Problems)
        seed = self._config.job.seed
        return tuple(
            Prompt(
                split=split,
                index=index,
                tokens=tuple(tokens),
                seeds=tuple(request_seed(seed, batch, group, sample) for sample in range(samples)),
            )
            for group, (index, tokens) in enumerate(zip(indices, problems.prompts, strict=True))
        )

    async def _submit(
        self,
        batch: str,
        prompts: tuple[Prompt, ...],
        version: int,
        min_version: int | None,
        temperature: float,
        trainer: TrainerIs,
    ) -> None:
        submitted = BatchSubmitted(
            batch=batch,
            version=version,
            min_version=min_version,
            prompts=prompts,
            max_new_tokens=self._config.rollout.max_new_tokens,
            temperature=temperature,
        )
        await self._asking.ask(MANAGER, SubmitBatch(batch=submitted, weights=_weights(trainer)), Done)


def _weights(trainer: TrainerIs) -> Weights:
    return Weights(version=trainer.step, root=trainer.root, sources=(trainer.source,))
