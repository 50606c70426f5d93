"""EBF queues: the earliest batch first, and within it the earliest arrival."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.reward.planning.queues import BatchQueues

ENTRIES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5).map(float)), max_size=30)
ESTIMATES = st.fixed_dictionaries({}, optional={name: st.integers(0, 3).map(float) for name in "abc"})


@given(ENTRIES, ESTIMATES)
def test_items_leave_by_batch_then_by_arrival(
    entries: list[tuple[str, float]], complete_s: dict[str, float]
) -> None:
    queues: BatchQueues[tuple[float, float, int]] = BatchQueues()
    for number, (batch, arrival_s) in enumerate(entries):
        estimate_s = complete_s.get(batch, float("inf"))
        queues.add(batch, arrival_s, (estimate_s, arrival_s, number))
    assert len(queues) == len(entries)
    left = [queues.pick(complete_s) for _ in entries]
    assert queues.pick(complete_s) is None
    assert [item[0] for item in left if item] == sorted(item[0] for item in left if item)
    for batch in "abc":
        of_batch = [item for item in left if item and entries[item[2]][0] == batch]
        assert of_batch == sorted(of_batch)


def test_estimate_that_moves_changes_the_next_pick() -> None:
    queues: BatchQueues[str] = BatchQueues()
    queues.add("a", 0.0, "a1")
    queues.add("b", 1.0, "b1")
    queues.add("b", 2.0, "b2")
    assert queues.pick({"a": 9.0, "b": 5.0}) == "b1"
    assert queues.pick({"a": 4.0, "b": 5.0}) == "a1"
    assert len(queues) == 1


def test_item_that_waited_long_leaves_before_an_earlier_batch() -> None:
    """30 s beyond its 60: its batch counts as complete at 170 s; one without an estimate 30 s ago."""
    queues: BatchQueues[str] = BatchQueues(aging_s=60.0)
    complete_s = {"late": 200.0, "early": 175.0}
    queues.add("late", 10.0, "aged")
    queues.add("late", 50.0, "young")
    queues.add("early", 90.0, "early")
    assert queues.first(complete_s, 70.0) == (175.0, 90.0)
    assert queues.first(complete_s, 100.0) == (170.0, 10.0)
    assert queues.pick(complete_s, 100.0) == "aged"
    assert queues.pick(complete_s, 100.0) == "early"
    queues.add("unknown", 11.0, "never foreseen")
    queues.add("early", 95.0, "early")
    assert queues.pick(complete_s, 101.0) == "never foreseen"


def test_item_never_starves_when_batches_before_it_never_end() -> None:
    """A job whose batches are always complete sooner sends an item a second; a worker takes as many."""
    queues: BatchQueues[str] = BatchQueues(aging_s=60.0)
    queues.add("late", 0.0, "late")
    left: list[str | None] = []
    for now_s in range(200):
        queues.add(f"early-{now_s}", now_s, "early")
        complete_s = {"late": 100.0, **{f"early-{one}": one + 5.0 for one in range(now_s + 1)}}
        left.append(queues.pick(complete_s, now_s))
    assert "late" in left
    assert left.index("late") > 60, "before that, EBF alone decides"
