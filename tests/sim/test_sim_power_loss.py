"""A journal after a power loss: a prefix of its commits, or a refusal; never anything else."""

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gleaner.sim.kept_streams import Claim, Commit, KeptStreams
from gleaner.sim.power_loss import Recovered, after_power_loss
from gleaner.supervisor.journal.group_commit import NewRow, Write
from gleaner.supervisor.journal.rows import StreamRows

States = list[tuple[StreamRows, ...]]


def commits_of(rng: random.Random, count: int) -> list[Commit]:
    """Claims, events and snapshots of three streams, small and large."""
    found: list[Commit] = [Claim(name, 1) for name in "abc"]
    for _ in range(count):
        writes = []
        for _ in range(rng.randint(1, 3)):
            snapshot = rng.random() < 0.1
            rows = 1 if snapshot else rng.randint(1, 4)
            bodies = [rng.randbytes(rng.choice((20, 200, 6000))) for _ in range(rows)]
            new = [NewRow("k", 1, body) for body in bodies]
            writes.append(Write(rng.choice("abc"), 1, new, snapshot))
        found.append(tuple(writes))
    return found


def states_of(commits: list[Commit]) -> States:
    """The streams after each number of commits."""
    kept = KeptStreams("j", lambda: "", lambda: "")
    states = [kept.all_rows()]
    for commit in commits:
        kept.apply(commit)
        states.append(kept.all_rows())
    return states


def lost_at(seed: int, *, false_syncs: bool = False) -> tuple[States, Recovered]:
    rng = random.Random(seed)
    commits = commits_of(rng, 12)
    states = states_of(commits)
    sure = rng.randrange(4)
    left = after_power_loss("j", states[sure], commits[sure:], rng, false_syncs=false_syncs)
    return states[sure:], left


def test_journal_after_power_loss_is_a_prefix_of_its_commits() -> None:
    lengths, truncated = set(), 0
    for seed in range(60):
        states, left = lost_at(seed)
        assert left.streams is not None, left.refusal
        assert left.streams in states
        lengths.add(states.index(left.streams))
        truncated += left.truncated
    assert {0, len(states) - 1} & lengths
    assert len(lengths) > 4


@given(st.integers(0, 2**40))
@example(7848)  # a snapshot before any event was stored, and not the row of its stream
@settings(max_examples=15, deadline=None)
def test_disk_with_false_syncs_gives_whole_streams_or_a_refusal(seed: int) -> None:
    states, left = lost_at(seed, false_syncs=True)
    if left.streams is None:
        assert "journal" in left.refusal
        return
    for stream in left.streams:
        assert any(stream in state for state in states)
