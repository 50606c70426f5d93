"""Races over random histories: deaths, gaps, moves and samples made again change nothing of what counts."""

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from rollout_world import World, submission, true_crc, true_length

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.rollout.state.events import (
    BatchReleased,
    GroupsAdded,
    GroupsClosed,
    GroupsDropped,
    GroupsKept,
    SampleAgain,
    Scored,
)
from gleaner.actors.rollout.state.group_events import (
    closings_of,
    decision_of,
    due_aborts,
    events_of,
    longer_decides,
)
from gleaner.actors.rollout.state.group_policy import SURPLUS
from gleaner.actors.rollout.state.request_log import RequestState
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.rollout.status import fates_of
from gleaner.actors.training.round_draws import RoundDraws
from gleaner.actors.training.round_end import round_end
from gleaner.actors.training.rounds import RoundRule
from gleaner.supervisor.message import decode_body, encode_body, kind_of

WANTED, COUNTED, LAUNCHED, SAMPLES = 2, 2, 4, 3


def drawn(request: str, what: str, of: int) -> int:
    return zlib.crc32(f"{request} {what}".encode()) % of


class RacingWorld(World):
    """A world whose batch is a race. What a response is worth follows from its request alone."""

    def __init__(self, rng: random.Random, *, drop_uniform: bool, race: str = "tokens") -> None:
        super().__init__(rng)
        self.drop_uniform, self.race = drop_uniform, race

    def prompts(self, first: int, count: int) -> tuple[Prompt, ...]:
        return tuple(
            Prompt(split="train", index=group, tokens=(1, 2, group), seeds=tuple(range(SAMPLES)))
            for group in range(first, first + count)
        )

    def submission(self) -> BatchSubmitted:
        return structs.replace(
            submission(),
            prompts=self.prompts(0, LAUNCHED),
            wanted=WANTED,
            most=LAUNCHED + 4,
            race=self.race,
            counted=COUNTED,
            drop_uniform=self.drop_uniform,
            over_sampling=LAUNCHED / WANTED,
            again=1,
        )

    def score(self) -> None:
        for log in self.state.log.unscored():
            if not log.again and drawn(log.id, "lost", 6) == 0:
                self.apply(SampleAgain(request=log.id, why="lost"))
            else:
                score = float(drawn(f"{log.group}/{log.sample}", "score", 2))
                self.apply(Scored(request=log.id, score=score))
        self.select()

    def decode(self) -> None:
        super().decode()
        self.select()

    def deliver(self) -> None:
        ended = self.ended()
        super().deliver()
        self.select(only_longer=ended == self.ended())

    def ended(self) -> int:
        """Responses that have ended, at any time."""
        running = (RequestState.QUEUED, RequestState.DISPATCHED)
        return sum(log.state not in running for log in self.state.log.requests.values())

    def select(self, *, only_longer: bool = False) -> None:
        for batch in list(self.state.log.batches.values()):
            longer = longer_decides(batch)
            if (closings := closings_of(batch)) is not None:
                assert self.apply(closings).refused == []
                longer = True
            decision = decision_of(batch)
            if only_longer and self.race == "tokens":
                assert longer or not decision, "a decision was due although no bound met a key"
            for event in events_of(batch.name, decision):
                assert self.apply(event).refused == []
            if decision.add:
                first = len(batch.groups)
                prompts = self.prompts(first, decision.add)
                self.apply(GroupsAdded(batch=batch.name, first=first, prompts=prompts))

    def finish(self) -> None:
        batch = self.state.log.batches["step-1"]
        for _ in range(500):
            if len(batch.due_but(())) == WANTED:
                break
            if not self.engines:
                self.join()
            self.dispatch()
            for engine in self.engines.values():
                engine.decode()
                while engine.made:
                    self.apply(engine.made.pop(0))
            self.score()
        self.take()


def lived(seed: int, moves: int, *, drop_uniform: bool, race: str = "tokens") -> RacingWorld:
    world = RacingWorld(random.Random(seed), drop_uniform=drop_uniform, race=race)
    world.run(moves)
    return world


def outcome(world: RacingWorld) -> tuple[object, ...]:
    batch = world.state.log.batches["step-1"]
    uniform = {group for group, why in batch.fates.dropped.items() if why == "uniform"}
    samples = {group: batch.fates.closed[group] for group in batch.fates.kept}
    return samples, uniform, len(batch.groups)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 120), st.booleans())
def test_race_by_tokens_ends_alike_in_any_history(seed: int, moves: int, drop_uniform: bool) -> None:
    calm = lived(0, 0, drop_uniform=drop_uniform)
    calm.finish()
    world = lived(seed, moves, drop_uniform=drop_uniform)
    world.finish()
    assert outcome(world) == outcome(calm)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 120), st.sampled_from(["tokens", "time"]))
def test_race_counts_every_token_once_and_ends_every_ticket(seed: int, moves: int, race: str) -> None:
    world = lived(seed, moves, drop_uniform=True, race=race)
    world.finish()
    batch = world.state.log.batches["step-1"]
    assert len(batch.fates.kept) == WANTED
    for group in batch.fates.kept:
        assert [log.sample for log in batch.groups[group]] == list(batch.fates.closed[group])
    for log in batch.requests():
        assert log.tokens_crc() == true_crc(log)
        counts = log.group in batch.fates.kept and log not in batch.surplus and log not in batch.past
        assert bool(log.dropped) == (not counts)
        assert not log.ended or len(log) == true_length(log.id)
    world.apply(BatchReleased(batch="step-1"))
    assert world.state.tokens_lost == 0
    assert all(not stream.tickets for stream in world.state.streams.values())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 120), st.floats(0, 1))
def test_replay_from_any_snapshot_gives_equal_race(seed: int, moves: int, where: float) -> None:
    world = lived(seed, moves, drop_uniform=True)
    cut = round(where * len(world.events))
    before = RolloutState()
    for event in world.events[:cut]:
        before.apply(event)
    rebuilt, snapshot = RolloutState(), before.snapshot()
    rebuilt.apply(decode_body(kind_of(snapshot), encode_body(snapshot)))
    for event in world.events[cut:]:
        rebuilt.apply(decode_body(kind_of(event), encode_body(event)))
    assert rebuilt.snapshot() == world.state.snapshot()
    assert rebuilt.check() == []
    assert due_aborts(rebuilt.log, rebuilt.streams) == due_aborts(world.state.log, world.state.streams)
    for name, batch in rebuilt.log.batches.items():
        assert decision_of(batch) == decision_of(world.state.log.batches[name])


def test_tickets_of_dropped_requests_are_aborted_beside_those_that_count() -> None:
    world = RacingWorld(random.Random(1), drop_uniform=False)
    world.apply(world.submission())
    world.join()
    while world.state.log.queued():
        world.dispatch()
    (stream,) = world.state.streams.values()
    first = [number for number, ticket in stream.tickets.items() if ticket.request.startswith("step-1/0/")]
    assert 0 < len(first) < len(stream.tickets)
    assert due_aborts(world.state.log, world.state.streams) == {}
    world.apply(GroupsDropped(batch="step-1", groups=(0,), why=SURPLUS))
    assert list(due_aborts(world.state.log, world.state.streams).values()) == [first]


def test_group_that_is_not_closed_is_neither_kept_nor_closed_with_strange_samples() -> None:
    world = RacingWorld(random.Random(1), drop_uniform=False)
    world.apply(world.submission())
    kept = world.apply(GroupsKept(batch="step-1", groups=(0,)))
    few = world.apply(GroupsClosed(batch="step-1", groups=(0,), samples=((0,),)))
    strange = world.apply(GroupsClosed(batch="step-1", groups=(0,), samples=((0, 7),)))
    assert (kept.refused, few.refused, strange.refused) == (
        ["kept_incomplete"],
        ["closed_otherwise"],
        ["closed_otherwise"],
    )


def test_group_is_not_closed_with_no_samples_or_one_sample_twice() -> None:
    world = RacingWorld(random.Random(1), drop_uniform=False)
    world.apply(world.submission())
    twice = world.apply(GroupsClosed(batch="step-1", groups=(0,), samples=((1, 1),)))
    assert twice.refused == ["closed_otherwise"]
    state = RolloutState()
    state.apply(structs.replace(world.submission(), counted=0))
    none = state.apply(GroupsClosed(batch="step-1", groups=(0,), samples=((),)))
    assert none.refused == ["closed_otherwise"]
    assert [len(group) for group in state.log.batches["step-1"].groups] == [SAMPLES] * LAUNCHED
    assert state.snapshot().batches[0].closed == ()


def test_event_of_a_batch_that_is_not_open_is_refused() -> None:
    world = RacingWorld(random.Random(1), drop_uniform=False)
    for event in (
        GroupsKept(batch="step-1", groups=(0,)),
        GroupsDropped(batch="step-1", groups=(0,), why="s"),
    ):
        assert RolloutState().apply(event).refused == ["unknown_batch"]
        assert world.state.log.batches == {}


def test_group_with_a_negative_number_is_refused() -> None:
    world = RacingWorld(random.Random(1), drop_uniform=False)
    world.apply(world.submission())
    dropped = world.apply(GroupsDropped(batch="step-1", groups=(-1,), why="surplus"))
    closed = world.apply(GroupsClosed(batch="step-1", groups=(-1,), samples=((0, 1),)))
    assert dropped.refused == closed.refused == ["unknown_group"]


def test_snapshot_keeps_closed_groups_whose_samples_all_count() -> None:
    world = RacingWorld(random.Random(1), drop_uniform=False)
    world.apply(structs.replace(world.submission(), counted=SAMPLES))
    world.apply(GroupsClosed(batch="step-1", groups=(1,), samples=(tuple(range(SAMPLES)),)))
    rebuilt = RolloutState()
    rebuilt.apply(world.state.snapshot())
    assert rebuilt.log.batches["step-1"].fates.closed == {1: tuple(range(SAMPLES))}
    assert rebuilt.snapshot() == world.state.snapshot()


@pytest.mark.parametrize("seed", range(5))
def test_aborted_tokens_of_a_round_are_all_that_were_made_and_thrown_away(seed: int) -> None:
    world = lived(seed, 40, drop_uniform=False)
    world.finish()
    draws = RoundDraws(7, RoundRule(WANTED, COUNTED, LAUNCHED, SAMPLES, steps=9))
    fates = fates_of(world.state.log.batches["step-1"])
    lost = sum(len(log) for log in world.state.log.batches["step-1"].past if log.dropped == "lost")
    launched = sum(len(log) for log in world.state.log.batches["step-1"].requests())
    made = round_end(draws, 1, fates).aborted_tokens
    assert made == launched - lost - fates.trained[0]
    assert 0 < made <= world.state.counters.tokens_wasted["aborted"]
