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
