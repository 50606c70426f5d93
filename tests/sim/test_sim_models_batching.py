"""Continuous batching in the model of an engine.

Every token appears once and in order, whatever happens to its request, and the times add up.
"""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.engine.worker.engine_port import StepOutput
from gleaner.sim.models.batching import ContinuousBatch, Entry, Limits
from gleaner.sim.models.engine_cost import EngineCost
from gleaner.sim.models.tokens import request_key, response, tokens_at
from gleaner.transport.token_frame import MAX_ROWS, Flag

VOCABULARY = 1000
COST = EngineCost(
    weights_s=5e-3,
    row_products_s=2e-5,
    context_read_s=4e-8,
    step_s=2e-3,
    row_s=3e-5,
    prefill_token_s=1e-5,
    prefill_pair_s=1e-10,
    prefill_s=3e-3,
)


def batch(
    slots: int = 8, cache_tokens: int = 10**6, frame_rows: int = 1, token_scale: int = 1
) -> ContinuousBatch:
    limits = Limits(slots, cache_tokens, frame_rows=frame_rows, token_scale=token_scale)
    return ContinuousBatch(COST, limits, vocabulary=VOCABULARY)


def entry(ticket: int, end: int, *, made: int = 0, prompt: int = 10, group: int | None = None) -> Entry:
    return Entry(ticket, request_key(ticket), ticket if group is None else group, prompt, made, end)


def run(engine: ContinuousBatch) -> tuple[dict[int, list[int]], dict[int, int], float]:
    """Run to the end: tokens and flags by ticket, and the seconds."""
    tokens: dict[int, list[int]] = defaultdict(list)
    flags: dict[int, int] = defaultdict(int)
    total_s = 0.0
    while not engine.idle:
        output, seconds = engine.turn()
        assert len(output) <= MAX_ROWS
        total_s += seconds
        collect(output, tokens, flags)
    return tokens, flags, total_s


def collect(output: StepOutput, tokens: dict[int, list[int]], flags: dict[int, int]) -> None:
    rows = zip(output.tickets.tolist(), output.tokens.tolist(), output.flags.tolist(), strict=True)
    for ticket, token, flag in rows:
        assert not flags[ticket] & (Flag.FINISHED | Flag.ABORTED), "a row after the last one"
        flags[ticket] |= flag
        if not flag & Flag.NO_TOKEN:
            tokens[ticket].append(token)


def test_each_request_gets_the_tokens_of_its_seed() -> None:
    engine = batch(slots=3)
    engine.add([entry(ticket, end=5 + ticket) for ticket in range(1, 8)])
    tokens, flags, _ = run(engine)
    for ticket in range(1, 8):
        assert tokens[ticket] == response(ticket, 5 + ticket, VOCABULARY).tolist()
        assert flags[ticket] == Flag.FIRST | Flag.FINISHED


@settings(deadline=None)
@given(st.data())
def test_repeatedly_moved_request_ends_as_if_unmoved(data: st.DataObject) -> None:
    end = data.draw(st.integers(1, 60))
    made: list[int] = []
    while len(made) < end:
        engine = batch(frame_rows=data.draw(st.integers(1, 9)))
        engine.add([entry(1, end=end, made=len(made)), entry(2, end=70)])
        for _ in range(data.draw(st.integers(1, 6))):
            output, _ = engine.turn()
            made += [
                t for k, t in zip(output.tickets.tolist(), output.tokens.tolist(), strict=True) if k == 1
            ]
    assert made == response(1, end, VOCABULARY).tolist()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(1, 4)), min_size=1, max_size=20),
    st.integers(60, 400),
    st.integers(1, 12),
    st.integers(1, 3),
    st.integers(1, 12),
)
def test_nothing_is_lost_or_doubled_when_cache_is_full(
    requests: list[tuple[int, int, int]], cache: int, frame_rows: int, scale: int, slots: int
) -> None:
    engine = batch(slots, cache * scale * 2, frame_rows, scale)
    engine.add(
        [
            entry(number, end, prompt=prompt, group=group)
            for number, (end, prompt, group) in enumerate(requests)
        ]
    )
    for _ in range(10_000):
        if engine.idle:
            break
        engine.turn()
        assert engine.executing <= slots
        assert engine.context_tokens <= engine.limits.cache_tokens or engine.executing == 1
    again = batch(slots, cache * scale * 2, frame_rows, scale)
    again.add(
        [
            entry(number, end, prompt=prompt, group=group)
            for number, (end, prompt, group) in enumerate(requests)
        ]
    )
    tokens, _, total_s = run(again)
    assert {n: len(t) for n, t in tokens.items()} == {n: end for n, (end, _, _) in enumerate(requests)}
    assert all(tokens[n] == response(n, len(tokens[n]), VOCABULARY).tolist() for n in tokens)
    assert again.counts == engine.counts
    assert total_s > 0


def test_full_cache_retracts_shortest_response_for_second_prefill() -> None:
    engine = batch(slots=4, cache_tokens=120)
    engine.add([entry(ticket, end=50, prompt=10) for ticket in (1, 2, 3)])
    engine.add([entry(4, end=50, made=20, prompt=10)])
    tokens, _, _ = run(engine)
    assert engine.counts.retractions > 0
    assert [len(tokens[ticket]) for ticket in (1, 2, 3, 4)] == [50, 50, 50, 30]
    assert engine.counts.tokens_prefilled > 3 * 10 + 30


@settings(deadline=None)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=12), st.integers(2, 16))
def test_merged_frames_take_the_time_of_their_steps(ends: list[int], frame_rows: int) -> None:
    one, many = batch(slots=12), batch(slots=12, frame_rows=frame_rows)
    for engine in (one, many):
        engine.add([entry(number, end) for number, end in enumerate(ends)])
    assert run(many)[2] == pytest.approx(run(one)[2])
    assert many.counts.tokens_generated == one.counts.tokens_generated


def test_scaled_token_costs_as_much_as_its_tokens() -> None:
    fine, coarse = batch(slots=4, frame_rows=16), batch(slots=4, token_scale=16)
    fine.add([entry(number, 16 * end, prompt=160) for number, end in enumerate((3, 9, 9, 20))])
    coarse.add([entry(number, end, prompt=10) for number, end in enumerate((3, 9, 9, 20))])
    assert run(coarse)[2] == pytest.approx(run(fine)[2])
    assert coarse.counts == fine.counts


def test_samples_of_a_group_share_their_prefill() -> None:
    alone, group = batch(), batch()
    alone.add([entry(number, 5, prompt=100) for number in range(8)])
    group.add([entry(number, 5, prompt=100, group=1) for number in range(8)])
    run(alone)
    run(group)
    assert (alone.counts.tokens_prefilled, group.counts.tokens_prefilled) == (800, 100)


def test_aborted_tickets_end_with_one_row_each() -> None:
    engine = batch(slots=1)
    engine.add([entry(1, 50), entry(2, 50)])
    engine.turn()
    engine.abort([1, 2, 77])
    assert not engine.idle
    output, seconds = engine.turn()
    assert output.tickets.tolist() == [1, 2, 77]
    assert set(output.flags.tolist()) == {int(Flag.ABORTED | Flag.NO_TOKEN)}
    assert engine.idle
    assert seconds == 0.0


def test_frame_never_exceeds_the_row_limit_of_wire() -> None:
    engine = batch(slots=1000, frame_rows=64)
    engine.add([entry(number, 64, prompt=1, group=0) for number in range(1000)])
    output, _ = engine.turn()
    assert len(output) == 4000
    run(engine)
    assert engine.counts.tokens_generated == 64_000


def test_limits_beyond_a_frame_are_refused() -> None:
    with pytest.raises(ValueError, match="too many"):
        batch(slots=MAX_ROWS)
    with pytest.raises(ValueError, match="at least 1"):
        batch(frame_rows=0)


def test_tokens_depend_on_seed_and_position_alone() -> None:
    keys = np.array([request_key(seed) for seed in (1, 1, 2)], np.uint64)
    tokens, logprobs = tokens_at(keys, np.array([4, 5, 4]), VOCABULARY)
    assert tokens[0] == response(1, 6, VOCABULARY)[4]
    assert tokens[1] == response(1, 6, VOCABULARY)[5]
    assert len(set(tokens.tolist())) == 3
    assert tokens.dtype == np.uint32
    assert logprobs.dtype == np.float32
    assert ((logprobs <= 0) & (logprobs >= -4)).all()
    assert (response(1, 5000, VOCABULARY) > 0).all()


def test_other_weights_give_other_tokens_when_configured() -> None:
    plain, weighed = response(3, 50, VOCABULARY), response(3, 50, VOCABULARY, b"\x07" * 32)
    assert (plain != weighed).mean() > 0.9
