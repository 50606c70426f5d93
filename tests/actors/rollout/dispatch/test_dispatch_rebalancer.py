"""Moves between instances: Algorithm 2, lines 13-27, and laws of every round."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.rollout.dispatch.rebalancer import MOST_MOVES, Load, Move, Requests, decide
from gleaner.actors.rollout.dispatch.throughput_table import StepModel

H100 = StepModel(base_s=6e-3, row_s=2e-5, context_s=3e-8, prefill_token_s=3e-5)
"""Steps of a 14B model: at 8,000 tokens of context the plateau is at 10 requests."""
ON_POLICY = frozenset({0})


def requests(count: int, *, context: float = 8000.0, left: float = 4000.0, first: int = 1) -> Requests:
    return Requests(
        tickets=np.arange(first, first + count),
        context=np.full(count, context),
        expected=np.full(count, left),
        gate=np.zeros(count, np.int64),
        movable=np.ones(count, np.bool_),
    )


def load(
    id: str,
    executing: int,
    pending: int = 0,
    *,
    model: StepModel | None = H100,
    slots: int = 256,
    left: float = 4000.0,
    gates: frozenset[int] = ON_POLICY,
) -> Load:
    return Load(
        id=id,
        slots=slots,
        gates=gates,
        pending=requests(pending, first=1001, left=left),
        executing=requests(executing, left=left),
        model=model,
    )


def counts(moves: list[Move]) -> list[tuple[str, str, int, bool]]:
    return [(move.source, move.target, len(move.tickets), move.executing) for move in moves]


def test_pending_request_moves_from_longest_to_empty_queue() -> None:
    loads = [load("a", 256, 3), load("b", 256, 5), load("c", 40)]
    assert decide(loads) == [Move("b", "c", (1005,), executing=False)], "the last request of its queue"


def test_only_executing_requests_need_a_profile() -> None:
    assert counts(decide([load("a", 256, 2, model=None), load("b", 0, model=None)])) == [("a", "b", 1, False)]
    assert decide([load("a", 200, model=None), load("b", 0, model=None)]) == []
    assert decide([load("a", 200), load("b", 0, model=None)]) == []


def test_saturated_instance_gets_no_pending_request() -> None:
    assert decide([load("a", 256, 3), load("b", 256)]) == []


def test_queue_of_a_slow_instance_counts_as_longer() -> None:
    slow, fast = replace(load("slow", 256, 3), speed=0.5), replace(load("fast", 256, 4), speed=1.0)
    assert counts(decide([fast, slow, load("idle", 0)])) == [("slow", "idle", 1, False)]


def test_idle_instance_gets_requests_beyond_the_plateau() -> None:
    plateau = H100.plateau(8000.0, 256)
    assert plateau == 10
    # The paper's rule moves max(15 - 10, 0) of the 15; half of them would be more.
    assert counts(decide([load("full", 15), load("other", 12), load("idle", 0)])) == [
        ("full", "idle", 5, True)
    ]


def test_no_executing_request_moves_below_the_plateau() -> None:
    assert decide([load("a", 10), load("b", 7), load("idle", 0)]) == []


def test_overshooting_move_is_reduced_to_equal_loads() -> None:
    [(source, target, count, executing)] = counts(decide([load("full", 200), load("idle", 0)]))
    assert (source, target, executing) == ("full", "idle", True)
    assert 70 <= count <= 100, "190 would make the other slow; prefill has a cost"
    [free] = decide(
        [load(name, n, model=replace(H100, prefill_token_s=0.0)) for name, n in (("full", 200), ("idle", 0))]
    )
    assert count < len(free.tickets) <= 100


def test_two_idle_instances_take_from_the_two_fullest() -> None:
    moves = decide([load("a", 100), load("b", 120), load("c", 90), load("x", 0), load("y", 0)])
    assert [move.source for move in moves] == ["b", "a"]
    assert sorted(move.target for move in moves) == ["x", "y"]


def test_faster_instance_takes_more() -> None:
    fast = StepModel(base_s=6e-3, row_s=5e-6, context_s=7.5e-9, prefill_token_s=1e-5)
    [same] = decide([load("full", 200), load("idle", 0)])
    [more] = decide([load("full", 200), load("idle", 0, model=fast)])
    assert len(more.tickets) > 1.3 * len(same.tickets)


def test_requests_near_their_end_stay() -> None:
    assert decide([load("full", 200, left=8.0), load("idle", 0)]) == []
    mixed = load("full", 60)
    mixed.executing.expected[:30] = 3.0
    [move] = decide([mixed, load("idle", 0)])
    assert min(move.tickets) > 30, "only requests far from their end"


def test_moves_that_cost_more_than_they_gain_stay() -> None:
    dear = replace(H100, prefill_token_s=1e-2)
    assert decide([load("full", 200, model=dear), load("idle", 0, model=dear)]) == []
    # Far up the curve one request less hardly matters and is not worth its prefill.
    assert decide([load("a", 150), load("b", 120)]) == []


def test_instance_of_another_version_gets_nothing() -> None:
    loads = [load("full", 200), load("idle", 0, gates=frozenset({1}))]
    assert decide(loads) == []
    assert decide([load("full", 256, 4), load("idle", 0, gates=frozenset())]) == []


def test_executing_requests_avoid_a_trainers_device() -> None:
    lent = replace(load("reserved", 0), stays=False)
    assert decide([load("full", 200), load("other", 190), lent]) == []
    assert len(decide([replace(load("full", 200), stays=False), lent])) == 1


def test_crowded_device_gets_none_of_its_executing_requests() -> None:
    full, idle = load("a", 200), load("b", 0)
    crowded = [replace(full, device="cores"), replace(idle, device="cores", crowded=True)]
    assert decide(crowded) == []
    assert counts(decide([crowded[0], replace(crowded[1], crowded=False)])) == [("a", "b", 81, True)]
    assert counts(decide([replace(full, device="other"), crowded[1]])) == [("a", "b", 81, True)]


def test_instance_with_a_running_move_waits() -> None:
    busy = replace(load("full", 200), busy=True)
    assert decide([busy, load("idle", 0)]) == []
    assert decide([load("full", 200), replace(load("idle", 0), busy=True)]) == []


# -- laws --

models = st.sampled_from(
    [None, H100, replace(H100, base_s=2e-2), StepModel(6e-3, 5e-6, 7e-9, 1e-5), StepModel(1e-3, 1e-3, 0.0)]
)


@st.composite
def fleets(draw: st.DrawFn) -> list[Load]:
    loads = []
    for number in range(draw(st.integers(1, 6))):
        count, waiting = draw(st.integers(0, 64)), draw(st.integers(0, 6))
        rng = np.random.default_rng(draw(st.integers(0, 2**16)))
        size = count + waiting
        held = Requests(
            tickets=np.arange(1, size + 1),
            context=rng.uniform(1, 14000, size),
            expected=rng.uniform(1, 14000, size),
            gate=rng.integers(0, 2, size),
            movable=rng.random(size) < 0.8,
        )
        executing = np.arange(size) < count
        loads.append(
            Load(
                id=f"i{number}",
                slots=draw(st.sampled_from([8, 64, 256])),
                gates=frozenset(draw(st.sets(st.integers(0, 1)))),
                pending=held.only(~executing),
                executing=held.only(executing),
                speed=draw(st.sampled_from([0.5, 1.0, 4.0])),
                model=draw(models),
                stays=draw(st.booleans()),
                busy=draw(st.integers(0, 5)) == 0,
            )
        )
    return loads


def joined(one: Requests, other: Requests) -> Requests:
    columns = ("tickets", "context", "expected", "gate", "movable")
    return Requests(*(np.concatenate((getattr(one, name), getattr(other, name))) for name in columns))


def after(loads: list[Load], moves: list[Move]) -> list[Load]:
    """The fleet after the moves, where each moved request has begun if it fits."""
    by_id = {one.id: one for one in loads}
    for move in moves:
        source, target = by_id[move.source], by_id[move.target]
        held = source.executing if move.executing else source.pending
        goes = np.isin(held.tickets, move.tickets)
        moved = replace(held.only(goes), tickets=10_000 * (1 + len(by_id)) + held.tickets[goes])
        stays = held.only(~goes)
        by_id[move.source] = (
            replace(source, executing=stays) if move.executing else replace(source, pending=stays)
        )
        if len(target.executing) + len(moved) <= target.slots:
            by_id[move.target] = replace(target, executing=joined(target.executing, moved))
        else:
            by_id[move.target] = replace(target, pending=joined(target.pending, moved))
    return list(by_id.values())


def tokens_s(loads: list[Load]) -> float:
    return sum(one.model.tokens_s(float(one.rows), one.context) for one in loads if one.model is not None)


@given(fleets())
def test_round_moves_each_request_once_to_fitting_targets(loads: list[Load]) -> None:
    moves = decide(loads)
    assert moves == decide(loads), "the decision is a function of the snapshot"
    by_id = {one.id: one for one in loads}
    touched = [id for move in moves for id in (move.source, move.target)]
    assert len(touched) == len(set(touched)) or not moves[0].executing
    assert len({(move.source, ticket) for move in moves for ticket in move.tickets}) == sum(
        len(move.tickets) for move in moves
    )
    assert sum(len(move.tickets) for move in moves) <= MOST_MOVES
    for move in moves:
        source, target = by_id[move.source], by_id[move.target]
        held = source.executing if move.executing else source.pending
        assert move.source != move.target
        assert (source.busy, target.busy) == (False, False)
        assert 0 < len(move.tickets) <= target.room
        rows = np.flatnonzero(np.isin(held.tickets, move.tickets))
        assert len(rows) == len(move.tickets)
        assert held.movable[rows].all()
        assert all(int(gate) in target.gates for gate in held.gate[rows])
    assert sum(one.rows for one in after(loads, moves)) == sum(one.rows for one in loads)


@settings(deadline=None)
@given(fleets())
def test_rounds_end_and_never_reverse(loads: list[Load]) -> None:
    # A moved request may move again at once here. The manager's rest period only makes this slower.
    loads = [replace(one, busy=False) for one in loads]
    rounds = 0
    while moves := decide(loads):
        rounds += 1
        assert rounds <= 6 * 64 + 100
        before, waiting = tokens_s(loads), sum(len(one.pending) for one in loads)
        loads = after(loads, moves)
        if moves[0].executing:
            assert tokens_s(loads) > before, "each move of executing requests speeds the fleet up"
        else:
            assert sum(len(one.pending) for one in loads) < waiting, "each other move ends a wait"
