"""The check of draws on hand-written journals of a job with rounds: of the lost and of periods."""

from collections.abc import Iterator, Sequence
from typing import Literal

import pytest
from content_story import CONTROLLER, LENGTH, SmallTruth, commit, prompts
from msgspec.structs import replace

from gleaner.actors.protocol.batches import BatchSubmitted
from gleaner.actors.rollout.state.events import GroupsDropped, GroupsKept
from gleaner.actors.training import round_draws
from gleaner.actors.training.draw_events import RoundDrawn, RoundSettled
from gleaner.actors.training.draw_snapshots import DrawSnapshot, ProblemsDrawn, RoundKept, RoundsDrawn
from gleaner.actors.training.job_journal import JobSnapshot, StepFinished
from gleaner.chaos.invariants import rounds
from gleaner.chaos.invariants.facts import Fact
from gleaner.chaos.invariants.rounds import DrawsKept
from gleaner.chaos.invariants.truth import Wanted, WantedRounds
from gleaner.chaos.plan import load
from gleaner.chaos.sim_run import run

PROMPTS, LAUNCHED = 4, 6


def reported(
    journal: Sequence[Fact],
    *,
    auto: bool = False,
    drop_uniform: bool = False,
    steps: int = 10,
    problems: int = 100,
    max_refills: int = 3,
) -> list[str]:
    """What the check reports of this journal of a job of ten steps."""
    rule = WantedRounds(prompts=LAUNCHED, samples=1, own_seeds=True, by_tokens=True, drain=True, auto=auto)
    wanted = Wanted(
        steps=steps, problems=problems, prompts=PROMPTS, drop_uniform=drop_uniform, max_refills=max_refills,
        rounds=rule,
    )  # fmt: skip
    check = DrawsKept(SmallTruth(wanted=wanted))
    return [text for fact in journal for text in check.see(fact)]


def drawn(step: int, kind: str, draws: Sequence[int], cursor: int, spare: int = 0) -> Fact:
    event = RoundDrawn(
        batch=f"step-{step}", kind=kind, samples=1, first=0, draws=tuple(draws), cursor=cursor, spare=spare
    )
    return commit(event, stream=CONTROLLER)


def ended(step: int, deferred: Sequence[int] = ()) -> Iterator[Fact]:
    """The first groups count, and the step is on record."""
    yield commit(GroupsKept(batch=f"step-{step}", groups=tuple(range(PROMPTS))))
    settled = RoundSettled(batch=f"step-{step}", over=(), deferred=tuple(deferred))
    yield commit(settled, StepFinished(step=step), stream=CONTROLLER)


def shorts(count: int) -> list[Fact]:
    """So many short rounds from the first step on."""
    journal: list[Fact] = []
    for step in range(1, count + 1):
        first = LAUNCHED * (step - 1)
        journal.append(drawn(step, "short", range(first, first + LAUNCHED), first + LAUNCHED))
        journal += ended(step, (first + 4, first + 5))
    return journal


LONG = [4, 5, 10, 11]
"""What two short rounds defer."""


def test_draws_of_whole_periods_are_not_reported() -> None:
    long = [*shorts(2), drawn(3, "long", LONG, 12), *ended(3)]
    assert reported([*long, drawn(4, "short", range(12, 18), 18)]) == []
    assert reported([*long, drawn(4, "plain", range(12, 16), 16)], auto=True) == []


def test_draws_that_leave_the_queue_when_they_are_submitted_are_reported() -> None:
    again = drawn(3, "short", range(12, 18), 18)  # after a crash between submission and the end of the step
    found = reported([*shorts(2), drawn(3, "long", LONG, 12), again])
    assert any("draws [4, 5, 10, 11] of step-3 are lost" in text for text in found)


def snapshot(**fields: object) -> Fact:
    """Of two short rounds and an open long one, with these fields of its draws changed."""
    opened = RoundKept(batch="step-3", kind="long", groups=4, samples=1, draws=tuple(LONG), settled=False)
    draws: DrawSnapshot = replace(
        RoundsDrawn(
            cursor=12,
            queue=tuple((draw, 1 + draw // LAUNCHED) for draw in LONG),
            launched=(),
            rounds=(opened,),
            newest="long",
            on=True,
            surplus=2,
            held=0,
            holds=(),
        ),
        **fields,
    )
    return as_snapshot(draws)


def as_snapshot(draws: DrawSnapshot) -> Fact:
    event = JobSnapshot(recorded=((1, 2),), evals=(), boot=1, draws=draws)
    return replace(commit(event, stream=CONTROLLER), snapshot=True)


PLAIN = ProblemsDrawn(cursor=12, waiting=(), batches={}, settled=())


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        (snapshot(), ""),
        (snapshot(queue=()), "a snapshot has draws [] in the queue, there are [4, 5, 10, 11]"),
        (snapshot(queue=((5, 1), (4, 1), (10, 2), (11, 2))), "a snapshot has draws [5, 4, 10, 11]"),
        (snapshot(cursor=11), "a snapshot has 11 new draws, 12 were made"),
        (snapshot(rounds=()), "a snapshot has open rounds {}, there are {'step-3': [4, 5, 10, 11]}"),
        (as_snapshot(PLAIN), "a snapshot has the draws of a job without rounds"),
    ],
)
def test_snapshot_without_a_part_of_the_draws_is_reported(fact: Fact, text: str) -> None:
    found = reported([*shorts(2), drawn(3, "long", LONG, 12), fact])
    assert len(found) == bool(text)
    assert all(text in one for one in found)


@pytest.mark.parametrize(("kind", "wrong"), [("long", 0), ("", 1), ("short", 1)])
def test_batch_with_another_kind_than_its_round_is_reported(
    kind: Literal["", "short", "long"], wrong: int
) -> None:
    batch = BatchSubmitted(
        batch="step-3", version=2, prompts=prompts(*LONG), max_new_tokens=LENGTH, kind=kind
    )
    found = reported([*shorts(2), drawn(3, "long", LONG, 12), commit(batch)])
    assert sum("was submitted with kind" in text for text in found) == wrong


@pytest.mark.parametrize(
    ("kind", "draws"), [("long", [4, 5, 6, 7]), ("plain", [6, 7, 8, 9])], ids=["long", "plain"]
)
def test_rounds_that_end_within_a_period_are_reported(kind: str, draws: list[int]) -> None:
    found = reported([*shorts(1), drawn(2, kind, draws, max(draws) + 1)], auto=True)
    assert found
    assert f"step-2 is a {kind} round" in found[0]


def test_whole_steps_behind_a_long_round_are_not_reported() -> None:
    journal = [drawn(1, "plain", range(4), 4), *ended(1), drawn(2, "plain", range(4, 8), 8), *ended(2)]
    assert reported([*journal, drawn(3, "short", range(8, 14), 14)], auto=True) == []
    assert reported(journal), "this shows nothing: `tail` has whole steps"


def test_rounds_that_begin_and_end_whenever_they_may_are_not_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No step of the campaign has a predicted gain with which rounds begin, so here it alternates."""
    monkeypatch.setattr(round_draws, "has_rounds", lambda now, gain: not now)
    kinds: list[str] = []
    in_turn = rounds.DrawsKept._drawn

    def noted(self: DrawsKept, event: RoundDrawn, rule: WantedRounds) -> Iterator[str]:
        assert rule.auto
        kinds.append(event.kind)
        return in_turn(self, event, rule)

    monkeypatch.setattr(rounds.DrawsKept, "_drawn", noted)
    outcome = run(load("rounds"), 1)
    assert (outcome.ended, outcome.broken) == ("done", ())
    assert {"plain", "short", "long"} <= set(kinds)


def with_uniform(dropped: int, launched: int) -> list[Fact]:
    """A short round of six groups with one that is uniform, and so many dropped where the next one begins,
    with so many groups."""
    deferred = tuple(range(PROMPTS + dropped, LAUNCHED))
    groups = tuple(range(PROMPTS, PROMPTS + dropped))
    return [
        drawn(1, "short", range(LAUNCHED), LAUNCHED),
        commit(GroupsKept(batch="step-1", groups=tuple(range(PROMPTS)))),
        commit(GroupsDropped(batch="step-1", groups=groups, why="uniform")),
        commit(
            RoundSettled(batch="step-1", over=groups, deferred=deferred),
            StepFinished(step=1),
            stream=CONTROLLER,
        ),
        drawn(2, "short", range(LAUNCHED, LAUNCHED + launched), LAUNCHED + launched, launched - LAUNCHED),
    ]


@pytest.mark.parametrize(
    ("dropped", "settings", "spare"),
    [
        (0, {}, 0),
        (1, {}, 2),
        (2, {}, 3),
        (2, {"max_refills": 0}, 0),
        (2, {"problems": 8}, 2),
        (2, {"steps": 3}, 2),
        (1, {"steps": 3}, 1),
    ],
)  # fmt: skip
def test_other_spare_groups_than_the_share_of_uniform_ones_asks_for_are_reported(
    dropped: int, settings: dict[str, int], spare: int
) -> None:
    for more in range(5):
        found = reported(with_uniform(dropped, LAUNCHED + more), drop_uniform=True, **settings)
        due = [f"step-2 launches {more} spare groups, {spare} are due"] if more != spare else []
        assert found == due


def test_snapshot_without_the_share_of_uniform_groups_is_reported() -> None:
    def found(uniform: tuple[tuple[int, int], ...]) -> list[str]:
        draws = RoundsDrawn(
            cursor=6, queue=((5, 1),), launched=(), rounds=(), newest="short", on=True, surplus=2, held=0,
            holds=(), uniform=uniform,
        )  # fmt: skip
        return reported([*with_uniform(1, 6)[:-1], as_snapshot(draws)], drop_uniform=True)

    assert found(((4, 1),)) == []
    assert found(()) == ["a snapshot has [] groups that counted and were dropped, [(4, 1)] were"]
