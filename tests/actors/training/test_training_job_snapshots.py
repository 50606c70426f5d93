"""Snapshots of the controller's journal: a replay from one ends as a replay of all events."""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.training.draw_events import DrawOrder, OtherDraws
from gleaner.actors.training.job_journal import (
    BeganIn,
    EvalDone,
    JobProgress,
    JobSnapshot,
    StepFinished,
    standing_of,
)
from gleaner.actors.training.problem_history import ProblemHistory
from gleaner.actors.training.problem_order import KEPT_STEPS, ProblemOrder
from gleaner.actors.training.round_draws import RoundDraws
from gleaner.actors.training.rounds import RoundRule
from gleaner.actors.training.uniform_share import UniformShare
from gleaner.supervisor import Message
from gleaner.supervisor.message import decode_body, encode_body, kind_of

PROBLEMS, PROMPTS, LAUNCHED = 23, 4, 6
STEPS = KEPT_STEPS + 8
"""Enough for draws to be forgotten."""


def plain() -> DrawOrder:
    return ProblemOrder(PROBLEMS, PROMPTS)


def with_rounds(*, auto: bool = False) -> RoundDraws:
    """All that an order with rounds can have. auto: rounds begin where a plan has chosen them."""
    rule = RoundRule(PROMPTS, 2, LAUNCHED, 2, steps=STEPS, ahead=1, refills=PROMPTS)
    return RoundDraws(PROBLEMS, rule, auto=auto, planned=True, history=True)


def with_auto() -> RoundDraws:
    return with_rounds(auto=True)


class Job:
    """Steps that draw, refill, replace what does not fit, settle and evaluate at random, up to two of them
    open at a time. choose: plans of rounds are made too, which are in no event."""

    def __init__(self, seed: int, order: Callable[[], DrawOrder], *, choose: bool) -> None:
        self._rng, self._choose = random.Random(seed), choose
        self.progress, self.journal = JobProgress(order()), list[Message]()

    def run(self, steps: int) -> None:
        self._enter(BeganIn(boot=1))
        self._enter(EvalDone(when="first"))
        for step in range(1, steps + 1):
            for due in (step, step + 1)[: 1 + self._rng.randrange(2)]:
                self._draw(due)
            self._draw(step)
            self._train(step)
            if self._rng.random() < 0.2:
                self._enter(BeganIn(boot=step))

    def _enter(self, event: Message | None) -> None:
        if event is not None:
            self.journal.append(event)
            self.progress.apply(event)

    def _draw(self, step: int) -> None:
        draws, batch = self.progress.draws, f"step-{step}"
        shape = draws.shape(batch, step)
        groups = LAUNCHED if shape is None else shape.groups
        self._enter(draws.draw(batch, groups + self._rng.randrange(2) * len(draws.of(batch)) // 4, step))
        if self._rng.random() < 0.3 and (drawn := draws.of(batch)):
            group = self._rng.randrange(len(drawn))
            self._enter(draws.redraw(batch, {group: drawn[group]}))

    def _train(self, step: int) -> None:
        draws, batch = self.progress.draws, f"step-{step}"
        groups = list(range(len(draws.of(batch))))
        self._rng.shuffle(groups)
        self._enter(draws.settle(batch, groups[:PROMPTS], groups[PROMPTS : PROMPTS + 1]))
        if self._choose and isinstance(draws, RoundDraws):
            draws.consider(self._rng.choice([None, -0.1, 0.1]))
            draws.choose(self._rng.choice([None, 1, 2, 3]))
        self._enter(StepFinished(step=step))
        if self._rng.random() < 0.2:
            self._enter(EvalDone(when=f"step-{step}"))


def state_of(value: object) -> object:
    """All that an object has, with the order of what it keeps in an order."""
    if isinstance(value, JobProgress):
        return {it.name: state_of(getattr(value, it.name)) for it in fields(value) if it.name != "events"}
    if isinstance(value, ProblemOrder | RoundDraws | ProblemHistory | UniformShare):
        return {name: state_of(one) for name, one in vars(value).items()}
    return list(value.items()) if isinstance(value, dict) else value


def stored(snapshot: JobSnapshot) -> Message:
    """As a replay reads it."""
    return decode_body(kind_of(snapshot), encode_body(snapshot))


async def replayed(events: Sequence[Message], draws: DrawOrder) -> JobProgress:
    async def read() -> AsyncIterator[Message]:
        for event in events:
            yield event

    return await standing_of(read(), draws)


@pytest.mark.parametrize("order", [plain, with_rounds, with_auto], ids=["plain", "rounds", "auto"])
@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, STEPS), cut=st.floats(0, 1))
async def test_replay_from_a_snapshot_ends_as_the_replay_of_all_events(
    order: Callable[[], DrawOrder], seed: int, steps: int, cut: float
) -> None:
    chosen = order is with_auto
    job = Job(seed, order, choose=chosen)
    job.run(steps)
    end = round(cut * len(job.journal))
    before, after = job.journal[:end], job.journal[end:]
    snapshot = stored((await replayed(before, order())).snapshot())
    whole, part = await replayed(job.journal, order()), await replayed([snapshot, *after], order())
    assert state_of(part) == state_of(whole)
    assert chosen or state_of(whole) == state_of(job.progress)
    assert (whole.events, part.events) == (len(job.journal), len(after))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, STEPS))
async def test_snapshot_has_what_plans_of_rounds_chose(seed: int, steps: int) -> None:
    job = Job(seed, with_auto, choose=True)
    job.run(steps)
    restored = await replayed([stored(job.progress.snapshot())], with_auto())
    assert state_of(restored) == state_of(job.progress)


@pytest.mark.parametrize("order", [plain, with_rounds], ids=["plain", "rounds"])
def test_snapshot_stays_small_in_a_long_job(order: Callable[[], DrawOrder]) -> None:
    sizes = []
    for steps in (2 * KEPT_STEPS, 10 * KEPT_STEPS):
        job = Job(0, order, choose=False)
        job.run(steps)
        snapshot = job.progress.snapshot()
        assert snapshot.steps() == list(range(1, steps + 1)), "no step is left out"
        assert {"first"} <= set(snapshot.evals) <= {"first", f"step-{steps}"}
        sizes.append(len(encode_body(snapshot)))
    assert sizes[1] < 1.5 * sizes[0], "numbers have more digits"


async def test_rounds_have_their_settings_where_plans_choose_nothing() -> None:
    job = Job(3, with_rounds, choose=True)
    job.run(9)
    rule = RoundRule(PROMPTS, 2, LAUNCHED + 2, 2, steps=STEPS)
    fixed = RoundDraws(PROBLEMS, rule)
    progress = await replayed([stored(job.progress.snapshot())], fixed)
    assert fixed.rule == rule
    step = progress.finished + 2
    assert fixed.shape(f"step-{step}", step).groups in (PROMPTS, LAUNCHED + 2), "its steps have rounds"


@pytest.mark.parametrize(
    ("order", "other", "text"),
    [(plain, with_rounds, "expected off"), (with_rounds, plain, "expected tail")],
    ids=["plain", "rounds"],
)
async def test_snapshot_of_the_other_mode_is_refused(
    order: Callable[[], DrawOrder], other: Callable[[], DrawOrder], text: str
) -> None:
    snapshot = JobProgress(order()).snapshot()
    with pytest.raises(OtherDraws, match=text):
        await replayed([snapshot], other())


async def test_steps_recorded_out_of_turn_stay_visible() -> None:
    journal = [StepFinished(step=step) for step in (1, 2, 2, 4)]
    progress = await replayed(journal, plain())
    assert progress.snapshot().steps() == [1, 2, 2, 4]
    assert progress.finished == 4
