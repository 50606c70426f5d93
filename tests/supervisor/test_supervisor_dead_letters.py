"""Dead letters: counted by reason, sampled within bounds."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.supervisor.dead_letters import MAX_REASONS, OTHER, SAMPLES, DeadLetters


def test_flood_of_one_reason_hides_no_other() -> None:
    clock = iter(range(10_000))
    letters = DeadLetters(lambda: float(next(clock)))
    letters.add("no such actor", "gone", "Hello", source="lonely")
    for number in range(1000):
        letters.add("mailbox full", f"busy-{number}", "Work")
    assert letters.counts == {"no such actor": 1, "mailbox full": 1000}
    samples = letters.samples()
    assert (samples[0].to, samples[0].kind, samples[0].source) == ("gone", "Hello", "lonely")
    assert samples[-1].to == "busy-999"
    assert [one.t_s for one in letters.samples(3)] == [998.0, 999.0, 1000.0]
    assert letters.samples(0) == []


@given(st.lists(st.integers(0, 3 * MAX_REASONS), max_size=300))
def test_dead_letters_are_all_counted_and_few_kept(reasons: list[int]) -> None:
    letters = DeadLetters(lambda: 0.0)
    for reason in reasons:
        letters.add(f"reason {reason}", "a", "K")
    assert sum(letters.counts.values()) == len(reasons)
    assert set(letters.counts) - {OTHER} <= {f"reason {reason}" for reason in reasons}
    assert len(letters.counts) <= MAX_REASONS + 1
    assert len(letters.samples()) <= (MAX_REASONS + 1) * SAMPLES
