"""Runs of bytes: exact tilings of an image, and needed bytes in whole chunks."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.model.byte_ranges import (
    MAX_RUNS,
    Run,
    TilingError,
    check_tiling,
    chunks_needed,
    cut,
    joined,
)
from gleaner.transport.bulk import Chunk

cuts = st.lists(st.integers(1, 99), max_size=12, unique=True).map(lambda inner: [0, *sorted(inner), 100])


def tiles(bounds: list[int]) -> list[Run]:
    return [Run(begin, end - begin) for begin, end in pairwise(bounds)]


@given(cuts, st.randoms(use_true_random=False), st.integers(1, 4))
def test_exact_tiles_of_an_image_are_accepted_only(
    bounds: list[int], rng: random.Random, sources: int
) -> None:
    runs = tiles(bounds)
    owners: dict[str, list[Run]] = {f"s{number}": [] for number in range(sources)}
    for run in runs:
        owners[f"s{rng.randrange(sources)}"].append(run)
    for held in owners.values():
        rng.shuffle(held)
    check_tiling(owners, 100)
    victim = rng.choice(runs)
    with pytest.raises(TilingError, match=r"held by .* and by|that is no run"):
        check_tiling({**owners, "again": [victim]}, 100)
    for held in owners.values():
        if victim in held:
            held.remove(victim)
    with pytest.raises(TilingError, match="have no holder|the image at"):
        check_tiling(owners, 100)


def test_tiling_error_names_bytes_and_their_holders() -> None:
    with pytest.raises(TilingError, match="bytes 5 to 10 are held by a and by b"):
        check_tiling({"a": [Run(0, 10)], "b": [Run(5, 95)]}, 100)
    with pytest.raises(TilingError, match="bytes 10 to 20 have no holder; b holds what follows"):
        check_tiling({"a": [Run(0, 10)], "b": [Run(20, 80)]}, 100)
    with pytest.raises(TilingError, match="ends at byte 90, the image at 100"):
        check_tiling({"a": [Run(0, 90)]}, 100)
    with pytest.raises(TilingError, match="b holds -1 bytes at 3"):
        check_tiling({"a": [Run(0, 3)], "b": [Run(3, -1)]}, 100)
    with pytest.raises(TilingError, match="ends at byte 0"):
        check_tiling({}, 100)
    with pytest.raises(TilingError, match="at most 262144"):
        check_tiling({"a": [Run(0, 1)] * (MAX_RUNS + 1)}, 100)


runs_somewhere = st.lists(
    st.tuples(st.integers(0, 99), st.integers(1, 30)).map(lambda one: Run(one[0], min(one[1], 100 - one[0]))),
    max_size=8,
)


def held(runs: list[Run] | tuple[Run, ...]) -> set[int]:
    return {byte for run in runs for byte in range(run.offset, run.end)}


@given(runs_somewhere)
def test_joined_runs_have_equal_bytes_and_gaps(runs: list[Run]) -> None:
    found = joined(runs)
    assert held(found) == held(runs)
    assert all(one.end < other.offset for one, other in pairwise(found))


@given(runs_somewhere, cuts)
def test_needed_chunks_are_those_with_needed_bytes(runs: list[Run], bounds: list[int]) -> None:
    chunks = [Chunk(run.offset, run.length, b"") for run in tiles(bounds)]
    touched = [
        number
        for number, chunk in enumerate(chunks)
        if held(runs) & set(range(chunk.offset, chunk.offset + chunk.length))
    ]
    assert list(chunks_needed(runs, chunks)) == touched


@given(runs_somewhere, st.integers(1, 40))
def test_ranges_to_hash_stay_within_their_runs(runs: list[Run], chunk_bytes: int) -> None:
    ranges = cut(runs, chunk_bytes)
    assert sum(run.length for run in ranges) == len(held(runs))
    assert held(ranges) == held(runs)
    assert all(run.length <= chunk_bytes for run in ranges)
