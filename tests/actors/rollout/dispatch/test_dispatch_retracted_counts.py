"""Sums of retractions by kind, from reports of engines that may be lost, late or repeated."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.rollout.dispatch.retracted_counts import RetractedCounts


def test_sum_of_an_incarnation_counts_once_and_a_new_one_begins_at_0() -> None:
    counts = RetractedCounts()
    for incarnation, count in ((1, 2), (1, 2), (1, 5), (1, 3), (2, 1), (2, 4)):
        counts.add("a", incarnation, "preemptible", count)
    counts.add("b", 1, "reserved", 7)
    assert counts.by_kind == {"preemptible": 9, "reserved": 7}


def test_instance_that_was_forgotten_counts_from_0_again() -> None:
    counts = RetractedCounts()
    counts.add("a", 1, "preemptible", 5)
    counts.forget("a")
    counts.add("a", 1, "preemptible", 3)
    assert counts.by_kind == {"preemptible": 8}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=30), st.data())
def test_lost_and_repeated_reports_change_nothing_when_the_last_one_arrives(
    events: list[tuple[str, int]], data: st.DataObject
) -> None:
    counts, sums = RetractedCounts(), dict.fromkeys("abc", 0)
    for instance, more in events:
        sums[instance] += more
        if data.draw(st.booleans()):
            counts.add(instance, 1, "preemptible", sums[instance])
    for instance, total in sums.items():
        counts.add(instance, 1, "preemptible", total)
    assert counts.by_kind.total() == sum(sums.values())
    counts.forget("a")
    assert counts.by_kind.total() == sum(sums.values())
