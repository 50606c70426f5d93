"""Expert rows joined from attempts: each row is of the attempt that made the next token, or that read it."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.engine.worker.expert_routing import ExpertPiece, table
from gleaner.actors.gateway.expert_rows import AFTERWARDS, ExpertRowsOf, owned
from gleaner.actors.protocol.batches import Span
from gleaner.actors.protocol.experts import PART_BYTES, ExpertRows, ExpertsWanted

WIDTH = 6


def row(attempt: int, position: int) -> list[int]:
    """Expert row that this attempt reports for that token; it differs between attempts."""
    return [(attempt * 997 + position * 31 + place) % 250 for place in range(WIDTH)]


def parts_of(attempt: int, count: int) -> list[ExpertRows]:
    raw = np.array([row(attempt, position) for position in range(count)], "<i4").tobytes()
    wanted = ExpertsWanted(follower="rollout/gateway", id="r", attempt=attempt)
    return list(ExpertPiece(wanted, table(raw, count)).parts())


def spans_of(counts: Sequence[int], first: int = 1) -> list[Span]:
    """Spans of attempts that made so many tokens each; an attempt without tokens has no span."""
    spans, start = [], 0
    for attempt, count in enumerate(counts, first):
        if count:
            spans.append(
                Span(attempt=attempt, instance="e", incarnation=1, version=1, start=start, count=count)
            )
        start += count
    return spans


attempts = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.booleans()), min_size=1, max_size=6)
"""Tokens that counted, tokens made beyond them, and whether the rows came."""


@given(prompt=st.integers(1, 8), made=attempts, whole=st.booleans())
def test_row_is_of_the_attempt_of_the_next_token(
    prompt: int, made: list[tuple[int, int, bool]], whole: bool
) -> None:
    spans, rows = spans_of([count for count, _, _ in made]), ExpertRowsOf()
    total, start = sum(count for count, _, _ in made), 0
    covers: dict[int, int] = {}
    for attempt, (count, beyond, came) in enumerate(made, 1):
        last = max(0, prompt + start + count + beyond - 1)
        start += count
        if came and last:
            covers[attempt] = last
            for part in parts_of(attempt, last):
                rows.receive(part)
    if whole and prompt + total > 1:
        covers[AFTERWARDS] = prompt + total - 1
        for part in parts_of(AFTERWARDS, prompt + total - 1):
            rows.receive(part)
    joined = rows.joined(spans, prompt, total)
    if not total:
        assert joined is None
        return
    expected: list[list[int]] = []
    for lower, end, owner in owned(spans, prompt, total):
        by = next((one for one in sorted(covers) if one >= owner and covers[one] >= end), None)
        if by is None:
            assert joined is None
            return
        expected += [row(by, position) for position in range(lower, end)]
    if prompt + total == 1:
        assert joined is None
        return
    assert joined is not None
    assert len(joined.rows) == prompt + total - 1
    assert joined.rows.tolist() == expected
    assert not whole or len(covers) >= 1


@given(prompt=st.integers(1, 8), counts=st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_rows_have_one_owner_each_in_order(prompt: int, counts: list[int]) -> None:
    total = sum(counts)
    found = [place for lower, end, _ in owned(spans_of(counts), prompt, total) for place in range(lower, end)]
    assert found == list(range(prompt + total - 1 if total else 0))


def test_rows_use_the_narrowest_type_and_arrive_in_parts() -> None:
    for most, name in ((255, "uint8"), (256, "uint16"), (65535, "uint16"), (65536, "int32")):
        assert table(np.array([0, most], "<i4").tobytes(), 2).dtype.name == name
    count = 3 * PART_BYTES // 64
    raw = np.arange(count * 64, dtype="<i4").tobytes()
    wanted = ExpertsWanted(follower="rollout/gateway", id="r", attempt=1)
    parts = list(ExpertPiece(wanted, table(raw, count)).parts())
    assert len(parts) == 12
    assert max(len(part.rows) for part in parts) <= PART_BYTES
    rows = ExpertRowsOf()
    for part in parts:
        assert rows.joined(spans_of([1]), count, 1) is None, "some parts are missing"
        rows.receive(part)
    joined = rows.joined(spans_of([1]), count, 1)
    assert joined is not None
    assert joined.rows.astype("<i4").tobytes() == raw
    assert rows.held_bytes == len(raw)


@given(
    st.builds(
        ExpertRows,
        id=st.just("r"),
        attempt=st.integers(-1, 3),
        first=st.integers(-1, 3),
        count=st.integers(-1, 3),
        total=st.integers(-1, 4),
        width=st.integers(-1, 3),
        dtype=st.sampled_from(["uint8", "int32", "float64", ""]),
        rows=st.binary(max_size=24),
    )
)
def test_malformed_tables_are_ignored(message: ExpertRows) -> None:
    rows = ExpertRowsOf()
    rows.receive(message)
    assert rows.held_bytes in (0, len(message.rows))
    for part in parts_of(1, 4):
        rows.receive(part)
    joined = rows.joined(spans_of([3]), 2, 3)
    assert joined is not None
    assert joined.rows.tolist() == [row(1, position) for position in range(4)]
