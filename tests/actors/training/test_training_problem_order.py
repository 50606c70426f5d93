"""Which problems are drawn: laws over random jobs whose controller dies now and then."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.training.draw_events import Drawn, Redrawn, Returned
from gleaner.actors.training.problem_order import KEPT_STEPS, ProblemOrder
from gleaner.supervisor import Message

PROMPTS = 4


class Job:
    """Steps that draw, refill and give back; every event goes into the journal before it counts."""

    def __init__(self, seed: int, problems: int) -> None:
        self.rng, self.problems = random.Random(seed), problems
        self.draws, self.journal = ProblemOrder(problems, PROMPTS), list[Message]()
        self.trained: list[int] = []
        self.unfit: set[int] = set()
        self.steps = 0

    def die(self) -> None:
        self.draws = ProblemOrder(self.problems, PROMPTS)
        for event in self.journal:
            if isinstance(event, Drawn | Redrawn | Returned):
                self.draws.apply(event)

    def problems_of(self, batch: str, until: int) -> list[int]:
        event = self.draws.draw(batch, until)
        if event is not None:
            self.journal.append(event)
            if self.rng.random() < 0.2:
                self.die()  # between the commit and the next action
            else:
                self.draws.apply(event)
        return self.draws.of(batch)

    def fit(self, batch: str, first: int) -> list[int]:
        """Replace the problems that fit no engine, here every fifth."""
        while unfit := {
            group: index
            for group, index in enumerate(self.draws.of(batch))
            if group >= first and index % 5 == 2
        }:
            event = self.draws.redraw(batch, unfit)
            assert event is not None
            self.journal.append(event)
            self.draws.apply(event)
            assert self.draws.redraw(batch, unfit) is None, "a repeated redraw changes nothing"
            self.unfit |= set(unfit.values())
            if self.rng.random() < 0.2:
                self.die()
        return self.draws.of(batch)

    def step(self) -> None:
        self.steps += 1
        batch, count = f"step-{self.steps}", PROMPTS + self.rng.randrange(3)
        self.problems_of(batch, count)
        before = self.fit(batch, 0)[:]
        for _ in range(self.rng.randrange(3)):
            count += self.rng.randrange(3)
            self.problems_of(batch, count)
            drawn = self.fit(batch, len(before))
            assert drawn[: len(before)] == before, "drawn problems stay"
        groups = list(range(count))
        self.rng.shuffle(groups)
        aborted = sorted(groups[PROMPTS:])
        for _ in range(2):  # a controller that died before the step was on record does it again
            event = self.draws.give_back(batch, aborted)
            if event is not None:
                self.journal.append(event)
                self.draws.apply(event)
        self.trained += [self.draws.of(batch)[group] for group in groups[:PROMPTS]]
        self.draws.finished(self.steps)
        if self.rng.random() < 0.2:
            self.die()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_every_problem_is_trained_once_before_repeats(seed: int, steps: int) -> None:
    job = Job(seed, problems=1000)
    for _ in range(steps):
        job.step()
    assert len(set(job.trained)) == len(job.trained) == steps * PROMPTS
    drawn = {index for one in job.journal if isinstance(one, Drawn | Redrawn) for index in one.indices}
    assert drawn == set(range(len(drawn))), "new problems are drawn in sequence"
    rest = job.draws.draw("step-later", len(drawn))
    assert rest is not None
    assert set(rest.indices[: rest.returned]) == drawn - set(job.trained) - job.unfit, (
        "aborted problems are drawn again first"
    )


def test_problems_repeat_from_the_first_after_the_last() -> None:
    draws = ProblemOrder(5, PROMPTS)
    for batch, wanted in (("step-1", (0, 1, 2, 3)), ("step-2", (4, 0, 1, 2))):
        event = draws.draw(batch, PROMPTS)
        assert event is not None
        assert event.indices == wanted
        draws.apply(event)


def test_journal_without_draws_resumes_with_its_problems() -> None:
    draws = ProblemOrder(1000, PROMPTS)
    for step in (1, 2, 3):
        draws.finished(step)
    event = draws.draw("step-4", PROMPTS)
    assert event is not None
    assert event.indices == (12, 13, 14, 15)


def test_old_problems_are_forgotten() -> None:
    draws = ProblemOrder(1000, PROMPTS)
    for step in range(1, 3 * KEPT_STEPS):
        event = draws.draw(f"step-{step}", PROMPTS)
        assert event is not None
        draws.apply(event)
        draws.finished(step)
    assert draws.of("step-1") == []
    assert len(draws.of(f"step-{3 * KEPT_STEPS - 1}")) == PROMPTS
