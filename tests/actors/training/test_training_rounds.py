"""Rounds: kinds and draws, laws over random jobs whose controller dies now and then."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.rollout.state.group_policy import launched
from gleaner.actors.training.draw_events import (
    DrawEvent,
    Drawn,
    OtherDraws,
    RoundDrawn,
    RoundRedrawn,
    RoundSettled,
)
from gleaner.actors.training.problem_history import ProblemHistory
from gleaner.actors.training.problem_order import ProblemOrder
from gleaner.actors.training.round_draws import RoundDraws
from gleaner.actors.training.rounds import (
    Kind,
    RoundRule,
    Shape,
    has_rounds,
    oldest_age,
    period_steps,
    room_for_held,
    shape_of,
    surpluses,
    with_surplus,
)

PROBLEMS = 7


class Job:
    """Steps of a job with rounds, up to `ahead` of them open at a time."""

    def __init__(
        self,
        seed: int,
        rule: RoundRule,
        *,
        drops: float = 0.0,
        ahead: int = 0,
        auto: bool = False,
        planned: bool = False,
        history: bool = False,
    ) -> None:
        self.rng, self.rule, self.drops, self.ahead = random.Random(seed), rule, drops, ahead
        self.auto, self.planned, self.history = auto, planned, history
        self.draws, self.journal = self.fresh(), list[DrawEvent]()
        self.shapes: dict[int, Shape] = {}
        self.trained: list[int] = []
        self.over: list[int] = []
        self.kinds: list[Kind] = []
        self.ages: list[int] = []
        self.first: dict[int, int] = {}
        self.opened = 0

    def fresh(self) -> RoundDraws:
        return RoundDraws(PROBLEMS, self.rule, auto=self.auto, planned=self.planned, history=self.history)

    def replayed(self) -> RoundDraws:
        draws = self.fresh()
        for one in self.journal:
            draws.apply(one)
        return draws

    def enter(self, event: DrawEvent | None) -> None:
        if event is None:
            return
        self.journal.append(event)
        self.draws.apply(event)
        if self.rng.random() < 0.3:  # the controller dies behind the commit
            self.draws = self.replayed()

    def open(self, step: int) -> None:
        batch = f"step-{step}"
        shape = self.draws.shape(batch, step)
        self.enter(self.draws.draw(batch, shape.groups, step))
        assert self.draws.shape(batch, step) == shape, "the kind of a round stays"
        self.shapes[step] = shape
        assert self.draws.draw(batch, shape.groups, step) is None
        if self.rng.random() < self.drops:
            group = self.rng.randrange(shape.groups)
            if shape.kind is Kind.SHORT:
                self.over.append(self.draws.numbers(batch)[group])
                self.enter(self.draws.redraw(batch, {group: self.draws.of(batch)[group]}))
        for number in (*self.draws.numbers(batch), *self.draws.queued()):
            self.first.setdefault(number, step)
        self.opened = step

    def train(self, step: int) -> None:
        batch = f"step-{step}"
        groups = list(range(len(self.draws.of(batch))))
        dropped = [group for group in groups if self.rng.random() < self.drops]
        until = len(groups) + len(dropped)
        self.enter(self.draws.draw(batch, until, step))  # a refill
        for number in self.draws.numbers(batch):
            self.first.setdefault(number, step)
        left = [group for group in range(until) if group not in dropped]
        kept = sorted(self.rng.sample(left, self.rule.prompts))
        numbers = self.draws.numbers(batch)
        self.trained += [numbers[group] for group in kept]
        self.ages += [step - self.first[numbers[group]] for group in kept]
        self.over += [numbers[group] for group in dropped]
        self.kinds.append(self.draws.shape(batch, step).kind)
        life, expected = self.draws, self.draws.after(batch, kept, dropped)
        for _ in range(2):  # a controller that died before the step was on record settles it again
            self.enter(self.draws.settle(batch, kept, dropped))
        assert expected.snapshot().queue == self.draws.snapshot().queue
        following = f"step-{step + 1}", step + 1
        if self.draws is life:  # a controller that died has not what plans chose
            assert expected.shape(*following) == self.draws.shape(*following), "as it was foreseen"
        self.draws.finished(step)
        if self.rng.random() < 0.5:
            self.draws.consider(self.rng.choice([None, -0.1, 0.01, 0.1]))
        self.draws.choose(self.rng.choice([None, *range(1, self.rule.prompts + 1)]))

    def run(self) -> None:
        for step in range(1, self.rule.steps + 1):
            while self.opened < min(step + self.ahead, self.rule.steps):
                self.open(self.opened + 1)
            self.train(step)
            self.check()

    def check(self) -> None:
        waiting = self.draws.queued()
        unsettled = [
            number
            for step in range(len(self.kinds) + 1, self.opened + 1)
            for number in self.draws.numbers(f"step-{step}")
            if number not in waiting
        ]
        everything = sorted([*self.trained, *self.over, *waiting, *unsettled])
        assert everything == list(range(self.draws.cursor)), "each draw is in one place"


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(5, 8), st.sampled_from([0.0, 0.3]))
def test_job_that_turns_rounds_on_and_off_loses_no_draw(seed: int, launched: int, drops: float) -> None:
    job = Job(seed, rule(launched), drops=drops, auto=True)
    job.run()
    assert job.kinds[0] is Kind.PLAIN
    assert all(
        before is not Kind.SHORT or after is not Kind.PLAIN
        for before, after in zip(job.kinds, job.kinds[1:], strict=False)
    ), "what short rounds deferred is trained before whole steps"


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(5, 8),
    st.sampled_from([0.0, 0.3]),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
)
def test_job_whose_surplus_follows_plans_keeps_the_laws_of_rounds(
    seed: int, launched: int, drops: float, ahead: int, auto: bool, history: bool
) -> None:
    start = rule(launched, ahead=ahead)
    job = Job(seed, start, drops=drops, ahead=ahead, auto=auto, planned=True, history=history)
    job.run()
    replayed = job.replayed()
    for step in range(start.steps - 3, start.steps + 1):
        assert replayed.shape(f"step-{step}", step) == job.shapes[step], "a replay has the same rounds"
    short = {step: one.groups - 4 for step, one in job.shapes.items() if one.kind is Kind.SHORT}
    assert set(short.values()) <= {launched - 4, 1, 2, 3, 4}
    assert all(step + 1 not in short or short[step + 1] == surplus for step, surplus in short.items()), (
        "the surplus stays within a period"
    )
    if not drops:
        least = with_surplus(start, min(short.values(), default=1))
        assert max(job.ages) <= oldest_age(least) + 2 * ahead
        assert sorted(job.trained) == list(range(80)), "a job that drains trains what it launched"


def test_surplus_moves_by_a_step_of_the_grid_between_periods() -> None:
    draws = RoundDraws(PROBLEMS, rule(10, prompts=8), planned=True, auto=True)
    assert draws.choices() == [1, 2, 3, 4, 6, 8], "no round was measured"
    draws.choose(5)
    assert draws.rule.surplus == 2, "it is not in the grid"
    draws.choose(4)
    draws.consider(0.5)
    event = draws.draw("step-1", 12, 1)
    assert event is not None
    draws.apply(event)
    assert draws.choices() == [], "a period has begun"
    draws.apply(RoundSettled(batch="step-1", over=(), deferred=tuple(range(4, 12))))
    event = draws.draw("step-2", 8, 2)
    assert event is not None
    assert event.kind == "long"
    draws.apply(event)
    assert draws.choices() == [3, 4, 6]
    draws.choose(6)
    assert (draws.rule.surplus, draws.shorts) == (6, pytest.approx(8 / 6))


def test_surplus_outside_the_grid_may_stay_or_move_to_its_neighbours() -> None:
    assert surpluses(rule(13, prompts=8), begun=True) == [4, 5, 6]
    assert surpluses(rule(16, prompts=8), begun=True) == [6, 8]
    assert surpluses(rule(9, prompts=8), begun=True) == [1, 2]
    assert surpluses(rule(5, prompts=4), begun=False) == [1, 2, 3, 4]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(5, 8), st.integers(0, 2), st.booleans())
def test_job_that_holds_long_problems_keeps_the_laws_of_rounds(
    seed: int, launched: int, ahead: int, drain: bool
) -> None:
    job = Job(seed, rule(launched, drain=drain, ahead=ahead), ahead=ahead, history=True)
    job.run()
    assert max(job.ages) <= oldest_age(job.rule) + 2 * ahead
    if drain:
        assert sorted(job.trained) == list(range(80))
    drawn = [one for one in job.journal if isinstance(one, RoundDrawn)]
    assert any(one.held for one in drawn), "nothing was held: this shows nothing"


def test_problem_that_was_deferred_is_held_three_times_and_launched_again() -> None:
    history = ProblemHistory(10)
    history.deferred(3)
    history.deferred(5)
    history.counted(15)
    for draw in (13, 23, 33):
        assert history.to_hold(draw - 3, 9, 9) == (draw,)
        assert history.to_hold(draw - 3, 9, 0) == (), "there is no room"
        history.held(draw)
    assert history.to_hold(40, 10, 9) == (), "it is tried again"


def test_short_round_launches_others_for_what_it_holds() -> None:
    draws = RoundDraws(10, rule(6), history=True)
    first = draws.draw("step-1", 6, 1)
    assert first is not None
    draws.apply(first)
    settled = draws.settle("step-1", [0, 1, 3, 4], [])
    assert settled is not None
    draws.apply(settled)
    second = draws.draw("step-2", 6, 2)
    assert second == RoundDrawn(
        batch="step-2",
        kind="short",
        samples=2,
        first=0,
        draws=(6, 7, 8, 9, 10, 11),
        cursor=12,
    )
    draws.apply(second)
    settled = draws.settle("step-2", [0, 1, 2, 4, 5], [])
    assert settled is not None
    draws.apply(settled)
    third = draws.draw("step-3", 6, 3)
    assert third is not None
    assert (third.held, third.draws, third.cursor) == ((12,), (13, 14, 15, 16, 17, 18), 19)
    draws.apply(third)
    assert draws.queued() == [2, 5, 9, 12]
    assert draws.shorts == pytest.approx(4 / 3)


def test_held_draws_fill_no_more_than_a_long_round_and_the_end_of_the_job() -> None:
    assert room_for_held(rule(6), 1, 1) == 3
    assert room_for_held(rule(6), 1, 5) == 0
    assert room_for_held(rule(6), 19, 1) == 1
    assert room_for_held(rule(6), 19, 1, 1) == 0
    assert room_for_held(rule(6, drain=False), 19, 1) == 3
    assert period_steps(rule(6), 2) == 2.0


def test_surplus_stays_where_plans_do_not_decide_it() -> None:
    draws = RoundDraws(PROBLEMS, rule(6))
    draws.choose(3)
    assert (draws.choices(), draws.rule.surplus) == ([], 2)


def test_rounds_begin_and_end_by_their_predicted_gain() -> None:
    assert [has_rounds(False, gain) for gain in (None, -0.1, 0.01, 0.03)] == [False, False, False, True]
    assert [has_rounds(True, gain) for gain in (None, -0.01, 0.01)] == [True, False, True]


def test_job_with_auto_leaves_its_rounds_after_a_long_round_only() -> None:
    draws = RoundDraws(PROBLEMS, rule(6), auto=True)
    draws.consider(0.5)
    kinds = []
    for step in range(1, 6):
        event = draws.draw(f"step-{step}", draws.shape(f"step-{step}", step).groups, step)
        assert event is not None
        kinds.append(event.kind)
        draws.apply(event)
        settled = draws.settle(event.batch, range(4), [])
        assert settled is not None
        draws.apply(settled)
        draws.consider(-0.1)
    assert kinds == ["short", "short", "long", "plain", "plain"]


def test_rounds_begin_with_a_batch_that_is_not_drawn_and_can_be_short() -> None:
    draws = RoundDraws(PROBLEMS, rule(6), auto=True)
    assert draws.may_begin("step-1", 1)
    assert not draws.may_begin("step-20", 20), "no later step could train what it defers"
    event = draws.draw("step-1", 4, 1)
    assert event is not None
    draws.apply(event)
    assert not draws.may_begin("step-1", 1), "it was submitted ahead"
    draws.begin(0.02)
    assert draws.may_begin("step-2", 2), "the gain is too small"
    draws.begin(0.03)
    assert not draws.may_begin("step-2", 2), "it is a short round in any case"
    assert draws.shape("step-2", 2).kind is Kind.SHORT
    draws.begin(-0.1)
    assert draws.shape("step-2", 2).kind is Kind.SHORT, "its plan is that of a round"
    assert not RoundDraws(PROBLEMS, rule(6)).may_begin("step-1", 1), "there are rounds from the first step on"


def rule(
    launched: int, steps: int = 20, *, prompts: int = 4, drain: bool = True, ahead: int = 0
) -> RoundRule:
    return RoundRule(prompts, 2, launched, 2, steps, drain, ahead)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(4, 8),
    st.sampled_from([0.0, 0.3]),
    st.integers(0, 2),
    st.booleans(),
)
def test_every_draw_is_trained_over_queued_or_open(
    seed: int, launched: int, drops: float, ahead: int, drain: bool
) -> None:
    job = Job(seed, rule(launched, drain=drain, ahead=ahead), drops=drops, ahead=ahead)
    job.run()
    assert len(job.trained) == 20 * 4


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(5, 8), st.integers(0, 2))
def test_no_draw_waits_longer_than_a_period_and_two_steps(seed: int, launched: int, ahead: int) -> None:
    job = Job(seed, rule(launched, ahead=ahead), ahead=ahead)
    job.run()
    assert max(job.ages) <= oldest_age(job.rule) + 2 * ahead
    assert len(job.draws.queued()) == 0, "a job that drains trains what it launched"
    assert sorted(job.trained) == list(range(80))


@pytest.mark.parametrize(("prompts", "launched", "period"), [(8, 10, 5), (8, 9, 9), (8, 12, 3), (8, 16, 2)])
def test_period_is_what_the_factor_gives_exactly(prompts: int, launched: int, period: int) -> None:
    job = Job(1, rule(launched, 2 * period, prompts=prompts))
    job.run()
    assert period_steps(job.rule) == period
    assert job.kinds == [*[Kind.SHORT] * (period - 1), Kind.LONG] * 2


def test_last_steps_are_short_only_if_later_ones_have_room() -> None:
    assert shape_of(rule(6, 3), 3, 0).kind is Kind.LONG, "what it deferred would never be trained"
    assert shape_of(rule(6, 3), 2, 2).kind is Kind.SHORT
    assert shape_of(rule(6, 3), 2, 3).kind is Kind.LONG
    assert shape_of(rule(6, 3, drain=False), 3, 3).kind is Kind.SHORT


@given(st.integers(1, 300), st.floats(1, 2))
def test_race_keeps_as_many_groups_under_way_as_it_launched(counted: int, factor: float) -> None:
    groups = round(factor * counted)
    assert launched(counted, Shape(Kind.SHORT, groups, 2).factor(counted)) == groups
    assert launched(19, Shape(Kind.SHORT, 21, 2).factor(19)) == 21 < launched(19, 21 / 19)


def test_draw_has_the_seeds_of_the_job_without_rounds() -> None:
    draws = RoundDraws(PROBLEMS, rule(6))
    draws.apply(RoundDrawn(batch="step-1", kind="short", samples=2, first=0, draws=tuple(range(6)), cursor=6))
    assert [draws.seed_place("step-1", group) for group in (0, 3, 4, 5)] == [
        ("step-1", 0),
        ("step-1", 3),
        ("step-2", 0),
        ("step-2", 1),
    ]
    anew = RoundDraws(PROBLEMS, rule(6), own_seeds=False)
    assert anew.seed_place("step-1", 5) == ("step-1", 5)


def test_long_round_that_never_ended_lost_no_draw() -> None:
    draws = RoundDraws(PROBLEMS, rule(8))
    first = draws.draw("step-1", 8, 1)
    assert first is not None
    draws.apply(first)
    draws.apply(RoundSettled(batch="step-1", over=(), deferred=(4, 5, 6, 7)))
    second = draws.draw("step-2", 4, 2)
    assert second == RoundDrawn(batch="step-2", kind="long", samples=2, first=0, draws=(4, 5, 6, 7), cursor=8)
    draws.apply(second)
    assert draws.queued() == [4, 5, 6, 7]
    assert draws.shape("step-3", 3).kind is Kind.SHORT, "they are in an open round"


def test_journal_of_another_mode_is_refused_with_the_setting() -> None:
    with pytest.raises(OtherDraws, match=r"rounds\.mode: expected off"):
        RoundDraws(PROBLEMS, rule(8)).apply(
            Drawn(batch="step-1", first=0, indices=(0,), returned=0, cursor=1)
        )
    with pytest.raises(OtherDraws, match=r"rounds\.mode: expected tail"):
        ProblemOrder(PROBLEMS, 4).apply(RoundRedrawn(batch="step-1", groups=(0,), draws=(9,), cursor=10))


def test_late_request_for_prompts_of_a_settled_round_draws_nothing() -> None:
    draws = RoundDraws(PROBLEMS, rule(6))
    draws.apply(RoundDrawn(batch="step-1", kind="short", samples=2, first=0, draws=tuple(range(6)), cursor=6))
    assert draws.draw("step-1", 7, 1) is not None
    draws.apply(RoundSettled(batch="step-1", over=(), deferred=(4, 5)))
    assert draws.draw("step-1", 7, 1) is None, "no step would ever train it"
    assert draws.numbers("step-1") == list(range(6))
