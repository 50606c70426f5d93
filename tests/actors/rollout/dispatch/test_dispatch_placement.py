"""Balancer: worked examples of Algorithm 2, lines 1-12, and its laws."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.rollout.dispatch.placement import Balancer, InstanceKind

SPOT = InstanceKind.PREEMPTIBLE
SEVEN = {7: b"root"}
"""The gate of a batch of exactly version 7."""


def balancer(max_pending: int = 4, *, slots: int | None = None, **loads: tuple[int, int]) -> Balancer:
    """Instances that serve version 7, each with (pending, executing).

    slots: of each instance. None: all slots are taken, so that pending requests wait."""
    made = Balancer(max_pending)
    for name, (pending, executing) in loads.items():
        count = executing if slots is None else slots
        made.joined(name, 1, SPOT, slots=count, pending=pending, executing=executing)
        made.serving(name, 1, 7, b"root")
    return made


def test_shortest_queue_is_chosen() -> None:
    assert balancer(a=(2, 0), b=(1, 9), c=(3, 0)).select(SEVEN, 1) == ["b"]


def test_several_requests_fill_the_queues_evenly() -> None:
    # pending 2, 0: two go to b (0, 1). Then both have 2: a is first by name, then b
    assert balancer(a=(2, 0), b=(0, 0)).select(SEVEN, 4) == ["b", "b", "a", "b"]


def test_request_waits_when_every_queue_is_full() -> None:
    chosen = balancer(max_pending=2, a=(1, 5), b=(2, 0)).select(SEVEN, 3)
    assert chosen == ["a"]
    assert balancer(max_pending=2, a=(2, 0), b=(2, 0)).select(SEVEN, 3) == []


def test_start_of_a_request_frees_queue_capacity() -> None:
    full = balancer(max_pending=1, a=(1, 0))
    assert full.select(SEVEN, 1) == []
    full.started("a", 1)
    assert full.select(SEVEN, 1) == ["a"]
    assert full.instances["a"].executing == 1


def test_equal_queues_prefer_less_executing_then_longest_idle() -> None:
    assert balancer(a=(0, 3), b=(0, 2)).select(SEVEN, 1) == ["b"]
    even = balancer(a=(0, 0), b=(0, 0), c=(0, 0))
    order = []
    for _ in range(4):
        [name] = even.select(SEVEN, 1)
        even.dispatched(name, 1, 1)
        even.ended(name, 1, was_executing=False)
        order.append(name)
    assert order == ["a", "b", "c", "a"]


def test_only_the_wanted_version_and_root_are_chosen() -> None:
    fleet = balancer(a=(0, 0), b=(0, 0), c=(0, 0))
    fleet.serving("a", 1, 6, b"root")
    fleet.serving("b", 1, 7, b"forged")
    assert fleet.select({7: b"root"}, 2) == ["c", "c"]
    fleet.serving("c", 1, None)
    assert fleet.select({7: b"root"}, 1) == []
    assert fleet.select({8: b""}, 1) == []


def test_every_version_that_the_gate_admits_is_chosen() -> None:
    fleet = balancer(a=(2, 0), b=(1, 0), c=(0, 0))
    fleet.serving("a", 1, 6, b"six")
    fleet.serving("b", 1, 5, b"five")
    gate = {6: b"six", 7: b"root"}
    assert fleet.select(gate, 4) == ["c", "c", "a", "c"]
    assert len(fleet.select(gate, 100)) == 6
    assert fleet.select({6: b"another"}, 1) == []


def test_draining_instance_gets_nothing() -> None:
    fleet = balancer(a=(0, 0), b=(3, 0))
    fleet.draining("a", 1)
    assert fleet.select(SEVEN, 2) == ["b"]


def test_suspected_instance_gets_nothing_until_it_responds() -> None:
    fleet = balancer(a=(0, 0), b=(3, 0))
    assert fleet.suspected("a", 1, True)
    assert fleet.select(SEVEN, 2) == ["b"]
    assert not fleet.suspected("a", 2, False), "another incarnation"
    fleet.suspected("a", 1, False)
    assert fleet.select(SEVEN, 1) == ["a"]


def test_instance_that_serves_nothing_gets_nothing() -> None:
    fleet = Balancer(4)
    fleet.joined("a", 1, SPOT, 8)
    assert fleet.select(SEVEN, 1) == []


def test_older_incarnation_changes_nothing() -> None:
    fleet = balancer(a=(2, 2))
    assert fleet.joined("a", 2, SPOT, 8)
    assert not fleet.joined("a", 1, SPOT, 8)
    assert not fleet.serving("a", 1, 7)
    assert not fleet.ended("a", 1, was_executing=True)
    assert not fleet.dispatched("a", 1, 1)
    assert not fleet.draining("a", 1)
    assert not fleet.gone("a", 1)
    assert fleet.ignored == 6
    assert (fleet.instances["a"].pending, fleet.instances["a"].version) == (0, None)
    assert fleet.gone("a", 2)
    assert not fleet.instances


def test_threshold_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Balancer(0)


def test_queues_are_weighted_in_seconds_of_work() -> None:
    fleet = balancer(a=(2, 0), b=(1, 0))
    assert fleet.select(SEVEN, 1) == ["b"]
    fleet.speeds({"a": 4000.0, "b": 1000.0})
    assert fleet.select(SEVEN, 1) == ["a"], "two requests on the faster instance take less time"
    empty = balancer(a=(0, 0), b=(0, 0))
    empty.speeds({"a": 2000.0, "b": 1000.0})
    assert sorted(empty.select(SEVEN, 3)) == ["a", "a", "b"]


def test_faster_instances_may_have_more_pending_requests() -> None:
    fleet = balancer(max_pending=4, a=(0, 0), b=(0, 0), c=(0, 0))
    fleet.speeds({"a": 4000.0, "b": 1000.0, "c": 250.0})
    chosen = fleet.select(SEVEN, 100)
    assert [chosen.count(name) for name in "abc"] == [16, 4, 1]
    assert len(chosen) == 21
    fleet.speeds({"a": 1e9, "b": 1000.0, "c": 1.0})
    chosen = fleet.select(SEVEN, 100)
    assert [chosen.count(name) for name in "abc"] == [16, 4, 1], "the limits stay within bounds"


def test_speed_noise_does_not_change_the_choice() -> None:
    loads = {"a": (0, 3), "b": (0, 2), "c": (1, 0)}
    plain, noisy = balancer(**loads), balancer(**loads)
    noisy.speeds({"a": 1000.0, "b": 930.0, "c": 1100.0})
    assert noisy.select(SEVEN, 8) == plain.select(SEVEN, 8)
    unknown = balancer(**loads)
    unknown.speeds({"c": 777.0})
    assert unknown.select(SEVEN, 8) == plain.select(SEVEN, 8), "the speeds of the others are unknown"


def test_idle_instance_gets_all_requests_that_it_decodes() -> None:
    fleet = balancer(max_pending=4, slots=256, a=(0, 0))
    assert fleet.select(SEVEN, 1000) == ["a"] * 256
    fleet.dispatched("a", 1, 256)
    assert fleet.select(SEVEN, 744) == [], "no token has arrived, and no slot is free"
    fleet.started("a", 1, 256)
    assert fleet.select(SEVEN, 744) == ["a"] * 4


def test_first_serving_instance_leaves_the_others_their_share() -> None:
    fleet = balancer(max_pending=4, slots=256, a=(0, 0), b=(0, 0), c=(0, 0), d=(0, 0))
    for name in "bcd":
        fleet.serving(name, 1, 6, b"six")
    assert fleet.select(SEVEN, 400) == ["a"] * 100
    fleet.dispatched("a", 1, 100)
    fleet.started("a", 1, 100)
    assert fleet.select(SEVEN, 300) == ["a"] * 4, "beyond its share only gradually"
    fleet.draining("c", 1)
    fleet.suspected("d", 1, True)
    assert fleet.select(SEVEN, 300) == ["a"] * 100, "an instance that gets nothing has no share"


def test_faster_instance_has_a_larger_share() -> None:
    fleet = balancer(max_pending=1, slots=256, a=(0, 0), b=(0, 0))
    fleet.speeds({"a": 4000.0, "b": 1000.0})
    chosen = fleet.select(SEVEN, 100)
    assert [chosen.count(name) for name in "ab"] == [80, 20]


def test_free_slot_precedes_a_shorter_pending_queue() -> None:
    fleet = balancer(slots=8, a=(0, 8), b=(5, 0))
    assert fleet.select(SEVEN, 4) == ["b", "b", "b", "a"]


def test_free_slots_are_filled_evenly_by_decoding_requests() -> None:
    fleet = balancer(slots=8, a=(2, 0), b=(0, 5), c=(0, 0))
    assert fleet.select(SEVEN, 6) == ["c", "c", "a", "c", "a", "c"]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=5),
    st.integers(1, 40),
    st.integers(1, 4),
)
def test_no_share_slot_is_free_while_requests_wait(
    loads: list[tuple[int, int, int]], count: int, max_pending: int
) -> None:
    fleet = Balancer(max_pending)
    for number, (pending, executing, slots) in enumerate(loads):
        fleet.joined(f"i{number}", 1, SPOT, slots=slots, pending=pending, executing=executing)
        fleet.serving(f"i{number}", 1, 7, b"root")
    slots_of = [slots for _, _, slots in loads]
    work = min(sum(slots_of), count + sum(pending + executing for pending, executing, _ in loads))
    share = next(level for level in range(10) if sum(min(slots, level) for slots in slots_of) >= work)
    chosen = fleet.select(SEVEN, count)

    def free() -> list[str]:
        """Instances with a free slot for one more request of their share."""
        return [
            one.id for one in fleet.instances.values() if one.pending + one.executing < min(one.slots, share)
        ]

    for id in chosen:
        within = free()
        assert id in within or not within, "it waits while another share has a free slot"
        assert id in within or fleet.instances[id].pending < max_pending
        fleet.dispatched(id, 1, 1)
    if len(chosen) < count:
        assert not free()
        assert all(one.pending >= max_pending for one in fleet.instances.values())


names = st.sampled_from(["a", "b", "c"])
moves = st.one_of(
    st.tuples(st.just("joined"), names, st.integers(1, 3)),
    st.tuples(st.just("gone"), names, st.integers(1, 3)),
    st.tuples(st.just("serving"), names, st.integers(1, 3)),
    st.tuples(st.just("draining"), names, st.integers(1, 3)),
    st.tuples(st.just("started"), names, st.integers(1, 3)),
    st.tuples(st.just("finished"), names, st.integers(1, 3)),
    st.tuples(st.just("aborted"), names, st.integers(1, 3)),
    st.tuples(st.just("dispatch"), names, st.integers(0, 12)),
)


@given(st.lists(moves, max_size=60), st.integers(1, 4))
def test_no_history_breaks_the_counts(history: list[tuple[str, str, int]], max_pending: int) -> None:
    fleet = Balancer(max_pending)
    inside: dict[tuple[str, int], int] = {}  # what should be on each incarnation: pending + executing
    for what, name, number in history:
        key = (name, number)
        if what == "joined":
            if fleet.joined(name, number, SPOT, 8):
                inside[key] = 0
                assert fleet.serving(name, number, 7)
        elif what == "gone":
            fleet.gone(name, number)
        elif what == "serving":
            fleet.serving(name, number, number + 5)
        elif what == "draining":
            fleet.draining(name, number)
        elif what == "started":
            fleet.started(name, number)
        elif what in ("finished", "aborted"):
            inside[key] = inside.get(key, 0) - fleet.ended(name, number, was_executing=what == "finished")
        else:
            chosen = fleet.select(SEVEN, number)
            assert chosen == fleet.select(SEVEN, number), "the choice is a function of the state"
            for id in dict.fromkeys(chosen):
                assert fleet.instances[id].version == 7
                assert not fleet.instances[id].draining
                incarnation = fleet.instances[id].incarnation
                assert fleet.dispatched(id, incarnation, chosen.count(id))
                inside[id, incarnation] += chosen.count(id)
        for id, instance in fleet.instances.items():
            assert instance.pending >= 0
            assert instance.pending - max(0, instance.slots - instance.executing) <= max_pending
            assert instance.executing >= 0
            assert instance.pending + instance.executing == inside[id, instance.incarnation]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=6), st.integers(1, 20))
def test_no_queue_gets_requests_before_shorter_ones(loads: list[tuple[int, int]], count: int) -> None:
    fleet = balancer(max_pending=5, **{f"i{number}": load for number, load in enumerate(loads)})
    pending = {id: instance.pending for id, instance in fleet.instances.items()}
    for id in fleet.select(SEVEN, count):
        assert pending[id] == min(pending.values())
        pending[id] += 1
        assert pending[id] <= 5


def test_halved_instance_gets_half_until_it_is_whole_again() -> None:
    made = balancer(max_pending=1, slots=8, a=(0, 0), b=(0, 0))
    assert made.halved("a", 1, True)
    assert Counter(made.select(SEVEN, 6)) == {"a": 2, "b": 4}
    assert made.halved("a", 1, True), "sent again"
    made.speeds({"a": 100.0, "b": 100.0})
    assert Counter(made.select(SEVEN, 6)) == {"a": 2, "b": 4}
    assert not made.halved("a", 2, False), "another incarnation"
    assert made.halved("a", 1, False)
    assert Counter(made.select(SEVEN, 6)) == {"a": 3, "b": 3}
