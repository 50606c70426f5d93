"""Spare groups of short rounds where uniform groups are dropped: laws over random jobs that are replayed."""

import math
import random
from collections.abc import Callable, Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gleaner.actors.training.draw_events import DrawEvent, RoundDrawn
from gleaner.actors.training.round_draws import RoundDraws
from gleaner.actors.training.rounds import (
    Kind,
    RoundRule,
    Shape,
    oldest_age,
    shape_of,
    spare_groups,
    with_surplus,
)
from gleaner.actors.training.uniform_share import MOST_ROUNDS, UniformShare

PROBLEMS, REFILLS = 1000, 3
STEPS = 16


def rule(
    launched: int,
    *,
    prompts: int = 8,
    steps: int = STEPS,
    drain: bool = True,
    ahead: int = 0,
    refills: int = 24,
) -> RoundRule:
    return RoundRule(prompts, 2, launched, 2, steps, drain, ahead, refills)


class Job:
    """A job whose races are decided by the lengths of draws; up to `ahead` steps are open beside the one in
    turn. uniform: whether a draw is uniform, by its number and the step that launches it."""

    def __init__(
        self,
        seed: int,
        start: RoundRule,
        uniform: Callable[[int, int], bool],
        *,
        problems: int = PROBLEMS,
        **more: bool,
    ) -> None:
        self.rng, self.rule, self.uniform = random.Random(seed), start, uniform
        self.problems, self.more = problems, more
        self.draws, self.journal = self.fresh(), list[DrawEvent]()
        self.trained: list[int] = []
        self.over: list[int] = []
        self.first: dict[int, int] = {}
        self.ages: dict[int, int] = {}
        self.shapes: list[Shape] = []
        self.deferred: list[int] = []  # by each short round

    def fresh(self) -> RoundDraws:
        return RoundDraws(self.problems, self.rule, **self.more)

    def restarted(self) -> RoundDraws:
        """After a replay of all events, or of a snapshot."""
        draws = self.fresh()
        if self.rng.random() < 0.5 or "planned" in self.more:  # a snapshot has the choices of plans too
            draws.restore(self.draws.snapshot())
        else:
            for one in self.journal:
                draws.apply(one)
        return draws

    def enter(self, event: DrawEvent | None, step: int) -> None:
        if event is None:
            return
        self.journal.append(event)
        self.draws.apply(event)
        if self.rng.random() < 0.3:
            restarted = self.restarted()
            assert vars_of(restarted) == vars_of(self.draws), "a restart changes nothing"
            self.draws = restarted
        if isinstance(event, RoundDrawn):
            for number in (*event.draws, *event.held):
                self.first.setdefault(number, step)

    def open(self, step: int) -> None:
        batch = f"step-{step}"
        shape = self.draws.shape(batch, step)
        self.enter(self.draws.draw(batch, shape.groups, step), step)
        assert self.draws.shape(batch, step) == shape, "the round stays as it was drawn"
        self.shapes.append(shape)

    def train(self, step: int) -> None:
        batch = f"step-{step}"
        shape = self.draws.shape(batch, step)
        while True:
            numbers = self.draws.numbers(batch)
            kept, dropped = list[int](), list[int]()
            for group in sorted(range(len(numbers)), key=lambda group: (length(numbers[group]), group)):
                if shape.kind is not Kind.SHORT or len(kept) < self.rule.prompts:
                    (dropped if self.uniform(numbers[group], step) else kept).append(group)
            if len(kept) == self.rule.prompts:
                break
            missing = self.rule.prompts - len(kept)
            self.enter(self.draws.draw(batch, len(numbers) + missing, step), step)
        self.trained += [numbers[group] for group in kept]
        self.over += [numbers[group] for group in dropped]
        self.ages |= {numbers[group]: step - self.first[numbers[group]] for group in (*kept, *dropped)}
        if shape.kind is Kind.SHORT:
            self.deferred.append(len(numbers) - len(kept) - len(dropped))
        self.enter(self.draws.settle(batch, kept, dropped), step)
        self.draws.finished(step)
        if "planned" in self.more:
            self.draws.consider(self.rng.choice([None, -0.1, 0.1]))
            self.draws.choose(self.rng.choice([None, 1, 2, 3, 4, 6, 8]))

    def run(self) -> "Job":
        opened = 0
        for step in range(1, self.rule.steps + 1):
            while opened < min(step + self.rule.ahead, self.rule.steps):
                opened += 1
                self.open(opened)
            self.train(step)
            waiting = self.draws.queued()
            later = (f"step-{one}" for one in range(step + 1, opened + 1))
            open_ones = {number for batch in later for number in self.draws.numbers(batch)} - set(waiting)
            everything = sorted([*self.trained, *self.over, *waiting, *open_ones])
            assert everything == list(range(self.draws.cursor)), "each draw is in one place"
        return self


def vars_of(draws: RoundDraws) -> tuple[object, ...]:
    snapshot = draws.snapshot()
    newest = snapshot.rounds[-4:]  # a replay of events alone forgets none
    return structs.replace(snapshot, rounds=newest), draws.spare, draws.rule


@cache
def length(draw: int) -> float:
    return random.Random(draw).random()


@cache
def evenness(draw: int) -> float:
    return random.Random(f"{draw}/uniform").random()


def some(share: float, until: int = STEPS) -> Callable[[int, int], bool]:
    """This share of the draws is uniform, up to a step."""
    return lambda draw, step: step <= until and evenness(draw) < share


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    launched=st.integers(9, 16),
    share=st.sampled_from([0.0, 0.3, 0.5, 0.8]),
    until=st.integers(0, STEPS),
    ahead=st.integers(0, 2),
    history=st.booleans(),
)
def test_job_that_drops_uniform_groups_ends_with_all_it_launched_when_they_get_fewer(
    seed: int, launched: int, share: float, until: int, ahead: int, history: bool
) -> None:
    start = rule(launched, ahead=ahead)
    job = Job(seed, start, some(share, until), problems=97, history=history).run()
    assert job.draws.queued() == []
    assert len(job.trained) == STEPS * 8
    assert all(shape.groups <= 2 * launched for shape in job.shapes)
    late = [age for draw, age in job.ages.items() if job.first[draw] > until]
    longs = math.ceil((start.surplus + start.most_spare) / start.prompts)  # for what a short round defers
    assert max(late, default=0) <= oldest_age(start) + (longs + 1) * ahead


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), launched=st.integers(9, 16), share=st.sampled_from([0.3, 0.6]))
def test_surplus_follows_plans_alone_when_spare_groups_are_launched(
    seed: int, launched: int, share: float
) -> None:
    job = Job(seed, rule(launched), some(share), auto=True, planned=True).run()
    assert job.draws.queued() == []
    surplus = {shape.groups - shape.spare - 8 for shape in job.shapes if shape.kind is Kind.SHORT}
    assert surplus <= {launched - 8, 1, 2, 3, 4, 6, 8}


@pytest.mark.parametrize(("share", "least"), [(0.3, 0.75), (0.45, 0.75)])
def test_uniform_groups_leave_the_surplus_of_short_rounds(share: float, least: float) -> None:
    start = rule(20, prompts=16, steps=80, refills=48)
    job = Job(1, start, some(share, 80)).run()
    mean = sum(job.deferred) / len(job.deferred)
    assert least * 4 <= mean * (1 - share) <= 1.25 * 4, "a short round defers its surplus over 1 - u"
    eaten = Job(1, rule(20, prompts=16, steps=80, refills=0), some(share, 80)).run()
    assert sum(eaten.deferred) / len(eaten.deferred) < mean / 3, "without spare groups: this shows nothing"


def test_job_that_drops_no_group_has_no_spare_ones() -> None:
    with_refills = Job(1, rule(10), some(0.0)).run()
    without = Job(1, rule(10, refills=0), some(0.0)).run()
    assert with_refills.journal == without.journal
    assert without.draws.snapshot().uniform == ()


def test_spare_groups_are_what_the_share_of_uniform_ones_asks_for() -> None:
    def spare(counted: int, dropped: int, refills: int = 24) -> int:
        return spare_groups(rule(10, refills=refills), counted, dropped, PROBLEMS)

    assert spare(0, 0) == 0, "nothing is known"
    assert spare(8, 0) == 0
    assert spare(32, 8) == 3, "10 / (1 - 0.2) = 12.5"
    assert spare(8, 8) == 10
    assert spare(8, 80) == 10, "at most as many again"
    assert spare(8, 8, refills=8) == 8, "no more than refills"
    assert spare(8, 8, refills=0) == 0
    assert spare_groups(rule(10), 8, 8, 14) == 4, "no more than problems"
    assert spare_groups(rule(10), 8, 8, 5) == 0


def test_spare_groups_leave_room_for_the_last_steps() -> None:
    assert shape_of(rule(10), STEPS - 2, 3, 0, 9) == Shape(Kind.SHORT, 19, 2, 9)
    assert shape_of(rule(10), STEPS - 1, 3, 0, 9) == Shape(Kind.SHORT, 13, 2, 3)
    assert shape_of(rule(10), STEPS - 1, 3, 1, 9) == Shape(Kind.SHORT, 12, 2, 2)
    assert shape_of(rule(10), STEPS - 1, 7, 0, 9) == Shape(Kind.LONG, 8, 2)
    assert shape_of(rule(10, drain=False), STEPS - 1, 3, 0, 9) == Shape(Kind.SHORT, 19, 2, 9)


def test_share_of_uniform_groups_is_that_of_the_last_period() -> None:
    known = UniformShare()
    for counted, dropped in [(8, 8), (8, 2), (8, 2), (8, 0), (8, 4)]:
        known.settled(counted, dropped)
    assert known.spare(rule(10), PROBLEMS) == 3, "four short rounds: 8 of 40 groups"
    assert known.spare(rule(16), PROBLEMS) == 8, "one short round"
    assert known.spare(rule(9), PROBLEMS) == 4, "eight: 16 of 56"
    for _ in range(MOST_ROUNDS):
        known.settled(8, 0)
    assert known.spare(rule(9), PROBLEMS) == 0
    assert len(known.rounds()) == MOST_ROUNDS


def settled(draws: RoundDraws, step: int, kept: Sequence[int], dropped: Sequence[int]) -> Shape:
    """This step is over; its round."""
    batch = f"step-{step}"
    shape = draws.shape(batch, step)
    for event in (draws.draw(batch, shape.groups, step), draws.settle(batch, kept, dropped)):
        if event is not None:
            draws.apply(event)
    if (ended := draws.settle(batch, kept, dropped)) is not None:
        draws.apply(ended)
    return shape


def test_share_of_uniform_groups_is_known_from_decided_groups_of_short_rounds() -> None:
    draws = RoundDraws(PROBLEMS, rule(6, prompts=4, refills=12))
    assert settled(draws, 1, [0, 1, 2, 3], [4]).spare == 0, "group 5 was aborted: it may be uniform or not"
    assert draws.spare == 2, "1 of 5: 6 / 0.8 = 7.5"
    assert settled(draws, 2, [0, 1, 2, 3], []) == Shape(Kind.SHORT, 8, 2, 2)
    assert draws.waiting == 5
    assert settled(draws, 3, [0], [1, 2, 3]).kind is Kind.LONG
    assert draws.spare == 1, "1 of 9: those of a long round do not count"


def test_round_that_was_launched_keeps_its_spare_groups_when_the_share_changes() -> None:
    draws = RoundDraws(PROBLEMS, rule(6, prompts=4, refills=12, ahead=1))
    settled(draws, 1, [0, 1, 2, 3], [4])
    event = draws.draw("step-2", 8, 2)
    assert event is not None
    assert (event.spare, len(event.draws)) == (2, 8)
    draws.apply(event)
    settled(draws, 3, [0, 1, 2, 3], [4, 5, 6])
    restored = RoundDraws(PROBLEMS, rule(6, prompts=4, refills=12, ahead=1))
    restored.restore(draws.snapshot())
    assert draws.shape("step-2", 2) == restored.shape("step-2", 2) == Shape(Kind.SHORT, 8, 2, 2)


def test_bound_of_the_waiting_time_has_the_long_rounds_of_spare_groups() -> None:
    assert oldest_age(rule(10, refills=0)) == 6
    assert oldest_age(rule(10)) == 7, "2 + 10 deferred draws fill two long rounds"
    assert oldest_age(with_surplus(rule(10), 8)) == 5
