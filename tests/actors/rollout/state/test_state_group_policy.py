"""Group selection: laws of the policy, and of the state over random histories."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_world import World, submission, true_crc

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.rollout.state.events import (
    BatchReleased,
    GroupsAdded,
    GroupsKept,
    GroupsTaken,
    SampleAgain,
    Scored,
)
from gleaner.actors.rollout.state.group_events import decision_of, due_aborts, events_of
from gleaner.actors.rollout.state.group_policy import Rule, Standing, decide, launched, made_again, seed_again
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.supervisor.message import decode_body, encode_body, kind_of

UNIFORM, VARIED, OPEN, KEPT = Standing.UNIFORM, Standing.VARIED, Standing.OPEN, Standing.KEPT
DROPPED, ABORTED = Standing.DROPPED, Standing.ABORTED


def carry_out(rule: Rule, groups: list[Standing]) -> int:
    """Decide once; added groups are open. Returns how many were added."""
    decision = decide(rule, groups)
    assert all(groups[group] in (UNIFORM, VARIED) for group in (*decision.keep, *decision.drop))
    assert all(groups[group] not in (KEPT, DROPPED) for group in decision.abort)
    for group in decision.keep:
        groups[group] = KEPT
    for group in decision.drop:
        groups[group] = DROPPED
    for group in decision.abort:
        groups[group] = ABORTED
    groups.extend([OPEN] * decision.add)
    assert not decide(rule, groups), "a second decision has nothing to decide"
    return decision.add


def roll_out(rule: Rule, seed: int, uniform: float) -> list[Standing]:
    """Complete a batch. Groups end in a random order; the number of a group makes it uniform or not."""
    rng = random.Random(seed)
    groups = [OPEN] * launched(rule.wanted, rule.over_sampling)
    for _ in range(1000):
        still_open = [number for number, one in enumerate(groups) if one is OPEN]
        if not still_open:
            break
        number = rng.choice(still_open)
        groups[number] = UNIFORM if random.Random(f"{seed // 7} {number}").random() < uniform else VARIED
        carry_out(rule, groups)
    return groups


rules = st.builds(
    lambda wanted, refills, drop, over: Rule(
        wanted, launched(wanted, over) + refills * wanted * drop, drop, over
    ),
    st.integers(1, 6),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([1.0, 1.25, 2.0]),
)


@settings(max_examples=300, deadline=None)
@given(rules, st.integers(0, 2**32), st.floats(0, 1))
def test_batch_ends_with_wanted_groups_and_all_decided(rule: Rule, seed: int, uniform: float) -> None:
    groups = roll_out(rule, seed, uniform)
    assert groups.count(KEPT) == rule.wanted
    assert set(groups) <= {KEPT, DROPPED, ABORTED}
    assert len(groups) <= rule.most
    assert groups.count(DROPPED) <= rule.droppable
    if rule.over_sampling == 1:
        assert ABORTED not in groups, "no unneeded group is drawn"


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 5), st.integers(0, 3), st.integers(0, 2**31), st.floats(0, 1))
def test_end_order_does_not_matter_without_over_sampling(
    wanted: int, refills: int, seed: int, uniform: float
) -> None:
    rule = Rule(wanted, wanted * (1 + refills), drop_uniform=True)
    first, other = (roll_out(rule, seed // 7 * 7 + order, uniform) for order in (0, 6))
    assert first == other


def test_dapo_refills_until_all_groups_have_an_advantage() -> None:
    rule = Rule(3, 9, drop_uniform=True)
    groups = [UNIFORM, VARIED, OPEN]
    assert carry_out(rule, groups) == 1
    assert groups == [DROPPED, KEPT, OPEN, OPEN]
    groups[2] = groups[3] = VARIED
    assert carry_out(rule, groups) == 0
    assert groups == [DROPPED, KEPT, KEPT, KEPT]


def test_uniform_groups_are_accepted_at_the_refill_limit() -> None:
    rule = Rule(2, 4, drop_uniform=True)
    groups = [UNIFORM, UNIFORM]
    assert carry_out(rule, groups) == 2
    groups[2:] = [UNIFORM, UNIFORM]
    assert carry_out(rule, groups) == 0
    assert groups == [DROPPED, DROPPED, KEPT, KEPT]


def test_uniform_group_waits_for_an_earlier_drop() -> None:
    rule = Rule(2, 3, drop_uniform=True)
    groups = [OPEN, UNIFORM]
    assert not decide(rule, groups)
    groups[0] = UNIFORM
    carry_out(rule, groups)
    assert groups == [DROPPED, KEPT, OPEN]


def test_over_sampling_keeps_first_groups_and_aborts_others() -> None:
    rule = Rule(2, 3, over_sampling=1.5)
    groups = [OPEN, VARIED, OPEN]
    carry_out(rule, groups)
    groups[2] = UNIFORM
    carry_out(rule, groups)
    assert groups == [ABORTED, KEPT, KEPT]


@pytest.mark.parametrize(("wanted", "most", "over"), [(0, 1, 1.0), (3, 2, 1.0), (1, 1, 0.5)])
def test_impossible_rule_is_refused(wanted: int, most: int, over: float) -> None:
    with pytest.raises(ValueError, match="wanted|over-sampling"):
        Rule(wanted, most, over_sampling=over)


def test_only_a_lost_sample_is_made_again() -> None:
    assert made_again("lost", 0, 1)
    assert not made_again("lost", 1, 1)
    assert not made_again("ok", 0, 1)
    assert len({seed_again(7, times) for times in range(4)} | {7}) == 5


class SelectingWorld(World):
    """A world whose batch wants fewer groups than it has, and whose verifier sometimes fails."""

    def submission(self) -> BatchSubmitted:
        plain = submission(groups=3)
        return BatchSubmitted(
            batch=plain.batch,
            version=plain.version,
            prompts=plain.prompts,
            max_new_tokens=plain.max_new_tokens,
            wanted=2,
            most=7,
            drop_uniform=True,
            over_sampling=1.5,
            again=2,
        )

    def score(self) -> None:
        for log in self.state.log.unscored():
            if self.rng.random() < 0.2 and made_again("lost", log.again, 2):
                self.apply(SampleAgain(request=log.id, why="lost"))
            else:
                self.apply(Scored(request=log.id, score=float(self.rng.randrange(2))))
        self.select()

    def select(self) -> None:
        for batch in list(self.state.log.batches.values()):
            decision = decision_of(batch)
            for event in events_of(batch.name, decision):
                self.apply(event)
            if decision.add:
                first = len(batch.groups)
                prompts = tuple(
                    Prompt(split="train", index=group, tokens=(1, 2, group), seeds=(0, 1))
                    for group in range(first, first + decision.add)
                )
                self.apply(GroupsAdded(batch=batch.name, first=first, prompts=prompts))

    def take(self) -> None:
        kept = {name: batch.fates.kept for name, batch in self.state.log.batches.items()}
        before = len(self.handed)
        super().take()
        assert all(group in kept["step-1"] for _, group in self.handed[before:])

    def finish(self) -> None:
        for _ in range(500):
            if len(self.state.log.batches["step-1"].fates.kept) == 2:
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


histories = st.builds(
    lambda seed, moves: (seed, moves), st.integers(0, 2**32), st.integers(min_value=0, max_value=120)
)


def lived(history: tuple[int, int]) -> SelectingWorld:
    world = SelectingWorld(random.Random(history[0]))
    world.run(history[1])
    return world


@settings(max_examples=100, deadline=None)
@given(histories)
def test_history_hands_out_wanted_groups_and_counts_tokens(
    history: tuple[int, int],
) -> None:
    world = lived(history)
    world.finish()
    batch = world.state.log.batches["step-1"]
    handed = sorted(group for taker, group in world.handed if taker == world.taker)
    assert handed == sorted(batch.fates.kept)
    assert len(handed) == 2
    for log in batch.requests():
        assert log.tokens_crc() == true_crc(log)
        assert bool(log.dropped) == (log in batch.past or log.group in batch.fates.dropped)
    assert world.state.tokens_lost == 0
    counters = world.state.counters
    in_the_log = sum(len(log) for log in batch.requests() if log.dropped)
    assert sum(counters.tokens_wasted.values()) >= in_the_log
    assert counters.samples_again == len(batch.past)
    world.apply(BatchReleased(batch="step-1"))
    assert world.state.tokens_lost == 0
    assert all(not stream.tickets for stream in world.state.streams.values())


@settings(max_examples=100, deadline=None)
@given(histories, st.floats(0, 1))
def test_replay_from_any_snapshot_gives_equal_groups(history: tuple[int, int], where: float) -> None:
    world = lived(history)
    cut = round(where * len(world.events))
    before = RolloutState()
    for event in world.events[:cut]:
        before.apply(event)
    rebuilt = RolloutState()
    snapshot = before.snapshot()
    rebuilt.apply(decode_body(kind_of(snapshot), encode_body(snapshot)))
    for event in world.events[cut:]:
        rebuilt.apply(decode_body(kind_of(event), encode_body(event)))
    assert rebuilt.snapshot() == world.state.snapshot()
    assert rebuilt.check() == []
    assert due_aborts(rebuilt.log, rebuilt.streams) == due_aborts(world.state.log, world.state.streams)


def test_late_tokens_of_aborted_requests_count_as_wasted() -> None:
    world = SelectingWorld(random.Random(1))
    world.apply(world.submission())
    world.join()
    while world.state.log.queued():
        world.dispatch()
    (engine,) = world.engines.values()
    while len(world.state.log.batches["step-1"].fates.kept) < 2:
        engine.decode()
        world.apply(engine.made.pop(0))
        world.score()
        world.dispatch()
    aborted = due_aborts(world.state.log, world.state.streams)
    assert aborted.keys() == {engine.name}, "a request must run when the batch is complete"
    before = dict(world.state.counters.tokens_wasted)
    live = len(engine.tickets)
    engine.decode()
    world.apply(engine.made.pop(0))
    after = world.state.counters.tokens_wasted
    assert after.get("aborted", 0) - before.get("aborted", 0) == live
    assert world.state.counters.tokens_generated_twice == 0
    engine.drain()
    world.apply(engine.made.pop(0))
    assert due_aborts(world.state.log, world.state.streams) == {}


def test_kept_group_is_never_decided_again() -> None:
    world = SelectingWorld(random.Random(3))
    world.apply(world.submission())
    world.finish()
    batch = world.state.log.batches["step-1"]
    kept = tuple(batch.fates.kept)
    changes = world.apply(GroupsKept(batch="step-1", groups=kept))
    assert changes.refused == ["decided_twice", "decided_twice"]
    assert tuple(batch.fates.kept) == kept
    open_groups = tuple(group for group in range(len(batch.groups)) if group not in kept)
    if open_groups:
        changes = world.apply(GroupsTaken(batch="step-1", taker=world.taker, groups=open_groups[:1]))
        assert changes.refused == ["not_ready"]
