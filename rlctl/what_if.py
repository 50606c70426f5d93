"""Figures of a simulated job: throughput, step times, instances, tokens per money.

Pure: records of a history and prices go in, `Figures` come out. Does not know where they are shown.
"""

from collections.abc import Iterable, Sequence

import msgspec

from gleaner.actors.training.records import AnyRecord, Round, Sample, Step
from gleaner.configs.schema import Config
from gleaner.rlctl.cost_account import Account, account_of
from gleaner.rlctl.report.model import PREEMPTIBLE, Story, story_of
from gleaner.rlctl.report.step_times import PARTS, step_times


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Mean seconds of a step by use; see `gleaner.actors.training.records.Step`."""

    seeding_s: float
    waiting_s: float
    training_s: float
    weights_s: float
    other_s: float
    step_s: float
    recovery_s: float = 0.0
    evaluation_s: float = 0.0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One run. None where the run ended too early for the figure.

    Attributes:
        steps: ended steps. training_s: from the first step's start to the last one's end; the other figures
            cover this time. tokens: response tokens of trained samples.
        tokens_per_s: those by that time. t_seed_s: Algorithm 1's last choice.
        instances: preemptible hosts in use, the mean over time; peak_instances: the most at a time.
        migrations: dispatches of a request after its first one; moves: those to balance load.
        cost: of the hosts in that time, at the prices of the settings; tokens_per_unit: trained tokens for
            one unit of its currency. account: of the same time; None where no step ended.
    """

    steps: int
    steps_planned: int
    training_s: float
    tokens: int
    tokens_per_s: float | None
    parts: Parts | None
    t_seed_s: float | None
    t_seed_steps_s: list[float]
    instances: float
    peak_instances: int
    killed: int
    noticed: int
    migrations: int
    moves: int
    currency: str
    cost: float
    tokens_per_unit: float | None
    account: Account | None = None


def in_model_tokens(records: Iterable[AnyRecord], token_scale: int) -> list[AnyRecord]:
    """The same records in tokens of the modelled model: one recorded token is token_scale of them."""
    return [_scaled(record, token_scale) for record in records]


def _scaled(record: AnyRecord, scale: int) -> AnyRecord:
    match record:
        case Sample():
            return msgspec.structs.replace(
                record,
                tokens_collected=record.tokens_collected * scale,
                tokens_per_s=record.tokens_per_s * scale,
                generated_twice=record.generated_twice * scale,
                wasted={cause: count * scale for cause, count in record.wasted.items()},
            )
        case Step():
            return msgspec.structs.replace(record, tokens=record.tokens * scale)
        case Round():
            return msgspec.structs.replace(
                record,
                edge=record.edge * scale,
                longest=record.longest * scale,
                ended=tuple((tokens * scale, count) for tokens, count in record.ended),
                aborted=tuple((tokens * scale, count) for tokens, count in record.aborted),
                aborted_tokens=record.aborted_tokens * scale,
                trained_tokens=record.trained_tokens * scale,
            )
        case _:
            return record


def figures_of(records: Sequence[AnyRecord], config: Config) -> Figures:
    """The figures of a run up to its present end; its records are `in_model_tokens`."""
    story = story_of(records)
    steps = story.steps
    begin_s = begin_of(story)
    end_s = steps[-1].t_s if steps else 0.0
    training_s = end_s - begin_s
    tokens = sum(step.tokens for step in steps)
    hosts_s = _host_seconds(story, begin_s, end_s)
    account = account_of(records, config.prices, begin_s, end_s) if steps else None
    cost = account.cost if account is not None else 0.0
    nodes = [node for node in story.nodes if node.role == PREEMPTIBLE]
    return Figures(
        steps=len(steps),
        steps_planned=config.job.steps,
        training_s=training_s,
        tokens=tokens,
        tokens_per_s=tokens / training_s if training_s > 0 else None,
        parts=_parts(story),
        t_seed_s=steps[-1].t_seed_s if steps else None,
        t_seed_steps_s=[step.t_seed_s for step in steps],
        instances=hosts_s / training_s if training_s > 0 else 0.0,
        peak_instances=_peak(story),
        killed=sum(node.event == "killed" for node in nodes),
        noticed=sum((node.event == "noticed") - (node.event == "spared") for node in nodes),
        migrations=story.samples[-1].migrations if story.samples else 0,
        moves=story.samples[-1].moves if story.samples else 0,
        currency=config.prices.currency,
        cost=cost,
        tokens_per_unit=tokens / cost if cost > 0 else None,
        account=account,
    )


def begin_of(story: Story) -> float:
    """Start of the first step: from then on every second belongs to a step."""
    return story.steps[0].t_s - story.steps[0].step_s if story.steps else 0.0


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """Ratio of the two; None where one of them is unknown."""
    return ours / theirs if ours is not None and theirs else None


def _host_seconds(story: Story, begin_s: float, end_s: float) -> float:
    """Seconds of preemptible hosts within a time, all together."""
    return sum(
        max(0.0, min(life.to_s, end_s) - max(life.from_s, begin_s))
        for life in story.lives
        if life.role == PREEMPTIBLE
    )


def _peak(story: Story) -> int:
    changes = [(life.from_s, 1) for life in story.lives if life.role == PREEMPTIBLE]
    changes += [(life.to_s, -1) for life in story.lives if life.role == PREEMPTIBLE]
    up = most = 0
    for _t_s, change in sorted(changes):
        up += change
        most = max(most, up)
    return most


def _parts(story: Story) -> Parts | None:
    steps = story.steps
    if not steps:
        return None
    times = step_times(steps, story.restarts)
    means = {f"{part}_s": sum(time.part_s(part) for time in times) / len(times) for part in PARTS}
    return Parts(**means, step_s=sum(step.step_s for step in steps) / len(steps))
