"""`Submission`: makes a batch of problems and submits it to the RolloutManager.

It also gives the requests their seeds. Owns the assignment of problems to steps, and the snapshots that keep
the journal of it short. A draw is in the journal before any other actor gets it, so a repeated submission, or
request for more prompts, gives the same. A problem whose prompt is too long for every engine is skipped.
Held-out problems are not skipped, because that would change the measure. The versions of a batch follow from
its step alone. Version step - 1 starts the step. With a staleness bound k (eta in AReaL, arXiv 2505.24298,
section 5.1) tokens may be made under any version from step - 1 - k on.
"""

import asyncio
from typing import Final, Literal

from msgspec import structs

from gleaner.actors.names import MANAGER, REWARD
from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.cluster import Plan
from gleaner.actors.protocol.reward import GetProblems, Problems
from gleaner.actors.protocol.rollout import GroupFates, GroupFatesAre, PublishVersion, SubmitBatch, Weights
from gleaner.actors.protocol.step_times import RoundKinds
from gleaner.actors.protocol.training import TrainerIs
from gleaner.actors.rollout.state.group_policy import launched
from gleaner.actors.training.draw_events import DrawOrder
from gleaner.actors.training.job_journal import JobProgress, StepFinished
from gleaner.actors.training.retrying_ask import RetryingAsk
from gleaner.actors.training.round_draws import RoundDraws
from gleaner.actors.training.round_end import RoundEnd, round_end
from gleaner.actors.training.rounds import LEAST_GAIN, Kind, Shape
from gleaner.actors.training.seeds import request_seed
from gleaner.configs.schema import Config
from gleaner.supervisor import AskFailed, Context, Done, Refused

MOST_UNFIT = 4096
"""Problems that are skipped in one request for prompts; a task with more of them needs the setting."""

_SUBMITTED: Final[dict[Kind, Literal["", "short", "long"]]] = {
    Kind.PLAIN: "",
    Kind.SHORT: "short",
    Kind.LONG: "long",
}
"""Kinds of rounds, as batches have them."""


class NothingFits(Refused):
    """Every tried problem has a prompt that no engine accepts; `str` names the setting to raise."""


class Submission:
    """See the module."""

    def __init__(
        self, ctx: Context, retrying_ask: RetryingAsk, config: Config, standing: JobProgress
    ) -> None:
        self._ctx, self._retrying_ask, self._config = ctx, retrying_ask, config
        self._standing = standing
        self._draws: DrawOrder = standing.draws
        self._order = asyncio.Lock()  # of draws: one is in the journal before the next is made
        self._gain: float | None = None  # of rounds, as the newest plan predicts it
        self._prepared: dict[int, tuple[Prompt, ...]] = {}  # by step; of one step at most

    async def publish(self, trainer: TrainerIs) -> None:
        """The weights of `trainer` are the newest."""
        await self._retrying_ask.ask(MANAGER, PublishVersion(weights=_weights(trainer)), Done)

    async def prepare(self, step: int) -> None:
        """Draw and word the problems of a step while the previous one is trained. Not if a batch draws again
        while it is rolled out: the order of draws would depend on the time of this call. Nor with rounds: the
        previous step's deferred draws are not in the queue yet."""
        config = self._config
        if config.rollout.selects or config.rounds.on or step in self._prepared:
            return
        try:
            prompts = await self._step_prompts(step)
        except AskFailed as problem:
            self._ctx.log.info("early draw of problems skipped: step=%d: %s", step, problem)
            return
        self._prepared = {step: prompts}

    async def step(self, step: int, trainer: TrainerIs) -> None:
        """The batch of a training step; `trainer` has the newest weights. Raises NothingFits."""
        rollout, rounds, batch = self._config.rollout, self._config.rounds, f"step-{step}"
        shape = self._shape(step)
        prepared = self._prepared.pop(step, None)
        event = BatchSubmitted(
            batch=batch,
            version=step - 1,
            min_version=max(0, step - 1 - rollout.staleness) if rollout.staleness else None,
            prompts=prepared if prepared is not None else await self._step_prompts(step),
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            again=rollout.sample_retries,
            kind=_SUBMITTED[shape.kind],
        )
        short = shape.kind is Kind.SHORT
        if rollout.selects or short:
            event = structs.replace(
                event,
                wanted=rollout.prompts,
                most=shape.groups
                - shape.spare
                + rollout.max_refills * rollout.prompts * rollout.drop_uniform,
                race=rounds.race if short else "",
                counted=rollout.samples if short and shape.samples > rollout.samples else 0,
                drop_uniform=rollout.drop_uniform,
                over_sampling=shape.factor(rollout.prompts) if short else rollout.over_sampling,
            )
        await self._submit(event, trainer)

    async def evaluation(self, batch: str, trainer: TrainerIs) -> None:
        """The held-out problems, one sample each, under exactly the weights of `trainer`."""
        indices = list(range(self._config.heldout_problems))
        event = BatchSubmitted(
            batch=batch,
            version=trainer.step,
            prompts=await self._prompts(batch, "heldout", indices, 1),
            max_new_tokens=self._config.rollout.max_new_tokens,
            temperature=self._config.rollout.eval_temperature,
        )
        await self._submit(event, trainer)

    async def more(self, batch: str, first: int, count: int) -> tuple[Prompt, ...]:
        """Prompts for the groups of a step's batch from `first` on. Raises Refused for a batch that was never
        drawn for, NothingFits."""
        if not self._draws.of(batch):
            raise Refused(f"{batch} is no batch of a step that is under way")
        return await self._fitting(int(batch.removeprefix("step-")), first, count)

    async def settle(self, step: int) -> RoundEnd | None:
        """The step is trained: problems of groups that were aborted or never added are drawn again, in a job
        with rounds by a later long one. The outcome of its round, None without rounds."""
        rounds = isinstance(self._draws, RoundDraws)
        if not rounds and self._config.rollout.over_sampling == 1:
            return None
        batch = f"step-{step}"
        fates = await self._retrying_ask.ask(MANAGER, GroupFates(batch=batch), GroupFatesAre)
        async with self._order:
            event = self._draws.settle(batch, fates.kept, fates.dropped)
            if event is not None:
                await self._ctx.journal.append(event)
                self._standing.apply(event)
        if not isinstance(self._draws, RoundDraws):
            return None
        return round_end(self._draws, step, fates)

    async def finished(self, step: int) -> None:
        """Record that the step is trained and in the history. A snapshot replaces the events of the journal
        when they are many; no draw is between its commit and its effect meanwhile."""
        event = StepFinished(step=step)
        async with self._order:
            await self._ctx.journal.append(event)
            self._standing.apply(event)
            if self._standing.events >= self._config.limits.job_events:
                await self._ctx.journal.snapshot(self._standing.snapshot())
                self._standing.events = 0

    def rounds(self, step: int) -> RoundKinds | None:
        """The kinds of this step, which is settled, and of the next one, for their plan; None without
        rounds."""
        if not isinstance(self._draws, RoundDraws):
            return None
        self._draws.consider(self._gain)
        return _kinds(self._draws, step)

    async def rounds_ahead(self, step: int) -> RoundKinds | None:
        """As `rounds`, of a step that is rolled out and not trained yet; nothing is settled."""
        if not isinstance(self._draws, RoundDraws):
            return None
        batch = f"step-{step}"
        fates = await self._retrying_ask.ask(MANAGER, GroupFates(batch=batch), GroupFatesAre)
        draws = self._draws.after(batch, fates.kept, fates.dropped)
        draws.consider(self._gain)
        return _kinds(draws, step)

    def planned(self, plan: Plan) -> None:
        """The plan of the next step. Rounds begin with this step if it predicts enough gain; they end after
        the one that follows, since this one is planned as a round. Its surplus counts from this step on, if a
        period begins with it."""
        self._gain = plan.tail_gain
        if isinstance(self._draws, RoundDraws):
            self._draws.begin(plan.tail_gain)
            self._draws.choose(plan.tail_surplus)

    def _shape(self, step: int) -> Shape:
        rollout = self._config.rollout
        plain = Shape(Kind.PLAIN, launched(rollout.prompts, rollout.over_sampling), rollout.samples)
        return self._draws.shape(f"step-{step}", step) or plain

    async def _step_prompts(self, step: int) -> tuple[Prompt, ...]:
        return await self._fitting(step, 0, self._shape(step).groups)

    async def _fitting(self, step: int, first: int, count: int) -> tuple[Prompt, ...]:
        """The prompts of these groups of a step's batch. Problems whose prompts no engine accepts are
        replaced by the next ones, for good. Raises NothingFits, and Refused for groups that a trained step
        never had."""
        most = self._config.engine.max_prompt_tokens
        batch, samples = f"step-{step}", self._shape(step).samples
        tried: dict[int, int] = {}
        drawn = await self._drawn(step, first + count)
        if len(drawn) < first + count:
            raise Refused(f"{batch} has {len(drawn)} groups and takes no more: its step is trained")
        while True:
            indices = drawn[first : first + count]
            prompts = await self._prompts(batch, "train", indices, samples, first)
            unfit = {group: one for group, one in enumerate(prompts, first) if len(one.tokens) > most}
            if not unfit:
                break
            tried |= {one.index: len(one.tokens) for one in unfit.values()}
            if len(tried) >= min(self._config.train_problems, MOST_UNFIT):
                raise NothingFits(
                    f"{batch}: {len(tried)} problems were tried and the shortest prompt has "
                    f"{min(tried.values())} tokens, engine.max_prompt_tokens is {most}: raise it"
                )
            async with self._order:
                event = self._draws.redraw(batch, {group: one.index for group, one in unfit.items()})
                if event is not None:
                    await self._ctx.journal.append(event)
                    self._standing.apply(event)
            drawn = self._draws.of(batch)
        if tried:
            self._ctx.log.warning(
                "%s: other problems take the place of %d whose prompts have up to %d tokens: "
                "engine.max_prompt_tokens is %d",
                batch,
                len(tried),
                max(tried.values()),
                most,
            )
        return prompts

    async def _drawn(self, step: int, count: int) -> list[int]:
        """The problems of at least the first `count` groups of a step's batch."""
        batch = f"step-{step}"
        async with self._order:
            event = self._draws.draw(batch, count, step)
            if event is not None:
                await self._ctx.journal.append(event)
                self._standing.apply(event)
        return self._draws.of(batch)

    async def _prompts(
        self, batch: str, split: str, indices: list[int], samples: int, first: int = 0
    ) -> tuple[Prompt, ...]:
        problems = await self._retrying_ask.ask(REWARD, GetProblems(split=split, indices=indices), Problems)
        seed = self._config.job.seed
        return tuple(
            Prompt(
                split=split,
                index=index,
                tokens=tuple(tokens),
                seeds=tuple(
                    request_seed(seed, *self._seed_place(split, batch, group), sample)
                    for sample in range(samples)
                ),
            )
            for group, (index, tokens) in enumerate(zip(indices, problems.prompts, strict=True), first)
        )

    def _seed_place(self, split: str, batch: str, group: int) -> tuple[str, int]:
        return self._draws.seed_place(batch, group) if split == "train" else (batch, group)

    async def _submit(self, event: BatchSubmitted, trainer: TrainerIs) -> None:
        await self._retrying_ask.ask(MANAGER, SubmitBatch(batch=event, weights=_weights(trainer)), Done)


def _weights(trainer: TrainerIs) -> Weights:
    return Weights(version=trainer.step, root=trainer.root, sources=(trainer.source,))


def _kinds(draws: RoundDraws, step: int) -> RoundKinds:
    """The kinds of this step, which is settled in these draws, and of the next one."""
    done, ahead = (draws.shape(f"step-{one}", one).kind for one in (step, step + 1))
    return RoundKinds(
        done=done,
        ahead=ahead,
        shorts=draws.shorts,
        surplus=draws.rule.surplus,
        spare=draws.spare,
        surpluses=draws.choices(),
        begins=LEAST_GAIN if draws.may_begin(f"step-{step + 1}", step + 1) else None,
    )
