"""Delta codec: exact changes of a chunk, harmless refusal of damaged ones."""

import contextlib
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.weights.delta import codec as delta_codec
from gleaner.actors.weights.delta import kernels_numba as delta_kernels
from gleaner.actors.weights.delta import kernels_numpy as delta_numpy
from gleaner.actors.weights.delta.codec import (
    MAX_BYTES,
    Codec,
    DamagedPayload,
    DeltaError,
    Kernels,
    apply_chunk,
    encode_chunk,
)

LOOPS: list[Kernels] = [delta_kernels, delta_numpy]
TILE_BYTES = delta_kernels.TILE_WORDS * 8
GUARD = 64


@dataclass(frozen=True)
class Pair:
    """Two states of a chunk."""

    old: bytes = field(repr=False)
    new: bytes = field(repr=False)
    width: int


def pair(seed: int, size: int, width: int, density: float, *, clustered: bool = False) -> Pair:
    """Random bytes; a share of the elements, and perhaps of the tail, is changed."""
    rng = np.random.default_rng(seed)
    old = rng.integers(0, 256, size, np.uint8)
    new = old.copy()
    hit = rng.random(-(-size // width)) < density
    if clustered:
        hit &= np.sin(np.arange(hit.size) / 700) > 0.5
    hit = np.repeat(hit, width)[:size]
    new[hit] = rng.integers(0, 256, int(hit.sum()), np.uint8)
    return Pair(old.tobytes(), new.tobytes(), width)


_SIZES = st.one_of(
    st.integers(0, 40),
    st.integers(0, 6000),
    st.builds(lambda tiles, off: tiles * TILE_BYTES + off, st.integers(1, 2), st.integers(-9, 9)),
)
PAIRS = st.builds(
    pair,
    st.integers(0, 2**32),
    _SIZES,
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0.0, 0.0005, 0.003, 0.01, 0.0675, 0.19, 0.5, 1.0]),
    clustered=st.booleans(),
)


def applied(codec: int, payload: bytes, into: bytes, width: int, loops: Kernels) -> bytes:
    """The outcome for a chunk between guards, which must not change."""
    around = bytearray(b"\xa5" * GUARD + into + b"\xa5" * GUARD)
    try:
        apply_chunk(
            codec, memoryview(payload), memoryview(around)[GUARD : GUARD + len(into)], width, loops=loops
        )
    finally:
        assert around[:GUARD] == around[GUARD + len(into) :] == b"\xa5" * GUARD
    return bytes(around[GUARD : GUARD + len(into)])


@settings(deadline=None, max_examples=80)
@given(PAIRS, st.booleans(), st.sampled_from(LOOPS), st.integers(0, 100))
def test_every_change_is_exact_also_when_repeated(
    it: Pair, compress: bool, loops: Kernels, percent: int
) -> None:
    codec, payload = encode_chunk(
        memoryview(it.old), memoryview(it.new), it.width, compress=compress, loops=loops
    )
    assert applied(codec, payload, it.old, it.width, loops) == it.new
    assert applied(codec, payload, it.new, it.width, loops) == it.new
    half = len(it.old) * percent // 100
    assert applied(codec, payload, it.new[:half] + it.old[half:], it.width, loops) == it.new
    assert (codec is Codec.SAME) == (it.old == it.new)
    assert len(payload) <= len(it.new)


@settings(deadline=None, max_examples=80)
@given(PAIRS, st.booleans())
def test_compiled_and_plain_loops_are_interchangeable(it: Pair, compress: bool) -> None:
    old, new = memoryview(it.old), memoryview(it.new)
    one, other = (encode_chunk(old, new, it.width, compress=compress, loops=loops) for loops in LOOPS)
    assert one == other
    for loops in LOOPS:
        assert applied(*one, it.old, it.width, loops) == it.new


@settings(deadline=None, max_examples=30)
@given(PAIRS)
def test_images_in_step_give_equal_bytes(it: Pair) -> None:
    old, new = memoryview(it.old), memoryview(it.new)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_kernels, "_in_step", lambda old, new: True)
        found = encode_chunk(old, new, it.width, loops=delta_kernels)
    assert found == encode_chunk(old, new, it.width, loops=delta_numpy)


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=64), st.binary(max_size=64), st.sampled_from([1, 2, 4]), st.integers(0, 3))
def test_any_bytes_become_any_others_at_any_address(old: bytes, new: bytes, width: int, shift: int) -> None:
    size = min(len(old), len(new))
    moved = bytearray(shift) + bytearray(old[:size])  # off the grid of the elements
    target = memoryview(bytearray(shift) + bytearray(new[:size]))[shift:]
    codec, payload = encode_chunk(memoryview(moved)[shift:], target, width)
    apply_chunk(codec, memoryview(b"." + payload)[1:], memoryview(moved)[shift:], width)
    assert moved[shift:] == target


@settings(deadline=None, max_examples=100)
@given(PAIRS, st.booleans(), st.sampled_from(LOOPS), st.data())
def test_damage_is_refused_or_stays_within_its_chunk(
    it: Pair, compress: bool, loops: Kernels, data: st.DataObject
) -> None:
    codec, payload = encode_chunk(memoryview(it.old), memoryview(it.new), it.width, compress=compress)
    damaged = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, min(len(damaged), 40)))
        if data.draw(st.booleans()) and where < len(damaged):
            damaged[where] = data.draw(st.integers(0, 255))
        else:
            del damaged[len(damaged) - where :]
    claimed = data.draw(st.sampled_from([int(codec), *range(7)]))
    width = data.draw(st.sampled_from([it.width, 1, 2, 4, 3]))
    with contextlib.suppress(DeltaError):
        applied(claimed, bytes(damaged), it.old, width, loops)


@settings(deadline=None, max_examples=100)
@given(
    st.integers(0, 6), st.binary(max_size=80), st.integers(0, 50), st.sampled_from(LOOPS), st.integers(0, 12)
)
def test_random_payloads_do_no_harm(
    codec: int, noise: bytes, size: int, loops: Kernels, changed: int
) -> None:
    for payload in (noise, changed.to_bytes(4, "little") + noise):
        for width in (1, 2, 4):
            with contextlib.suppress(DeltaError):
                applied(codec, payload, bytes(size), width, loops)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32),
    st.integers(0, 90),
    st.sampled_from([0.0, 0.1, 0.6]),
    st.integers(-2, 2),
    st.sampled_from([0, 1, 100, 5000, 30000]),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)
def test_compiled_and_plain_loops_agree_on_gaps(
    seed: int, count: int, escapes: float, more_values: int, size: int, width: int, sparse: bool
) -> None:
    rng = np.random.default_rng(seed)
    gaps = rng.integers(0, 255, count, np.uint8)
    gaps[rng.random(count) < escapes] = 255
    ends = int(np.count_nonzero(gaps < 0x80 if sparse else gaps != 255))
    values = rng.integers(0, 256, max(0, ends + more_values) * width, np.uint8).view(f"u{width}")
    outcomes = []
    for loops in LOOPS:
        into = np.zeros(size + GUARD, f"u{width}")
        placed = (loops.place_sparse if sparse else loops.place)(gaps, values, into[:size])
        assert not into[size:].any(), "nothing was written behind the end of the buffer"
        outcomes.append((placed, into.tobytes() if placed else b""))
    assert outcomes[0] == outcomes[1]


def halves(density: float) -> tuple[memoryview, memoryview, int]:
    """Weights in bfloat16 before and after a share went to the next number, and the count of these."""
    rng = np.random.default_rng(5)
    old = (rng.standard_normal(1 << 19, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    hit = rng.random(old.size) < density
    return memoryview(old).cast("B"), memoryview(old + hit.astype(np.uint16)).cast("B"), int(hit.sum())


def test_codec_follows_from_the_share_of_changes() -> None:
    for density, compress, codec in (
        (0.0, False, Codec.SAME),
        (0.001, False, Codec.VARR),
        (0.01, False, Codec.G8R),
        (0.01, True, Codec.G8RZ),
        (0.9, False, Codec.FULL),
        (0.9, True, Codec.FULL),
    ):
        old, new, _ = halves(density)
        assert encode_chunk(old, new, 2, compress=compress)[0] is codec


def test_sparse_change_costs_little_over_three_bytes() -> None:
    old, new, changed = halves(0.01)
    _, payload = encode_chunk(old, new, 2)
    assert 3.0 < len(payload) / changed < 3.1
    _, pressed = encode_chunk(old, new, 2, compress=True)
    assert len(pressed) / changed < 2.7


def test_equal_numbers_with_different_bits_are_changes() -> None:
    old = np.array([0.0, np.nan, 1.0, 5e-324, np.inf] * 40, np.float64)
    new = old.copy()
    new[0] = -0.0
    new.view(np.uint64)[1] ^= 1  # another NaN
    codec, payload = encode_chunk(memoryview(old).cast("B"), memoryview(new).cast("B"), 4)
    assert codec is Codec.G8R
    assert applied(codec, payload, old.tobytes(), 4, delta_kernels) == new.tobytes()


def test_compressed_bomb_is_not_inflated() -> None:
    from backports import zstd

    zeros = zstd.compress(bytes(64 << 20), 1)
    head = np.array([10, 10, len(zeros), len(zeros)], "<u4").tobytes()
    with pytest.raises(DamagedPayload, match="do not hold 10 bytes"):
        apply_chunk(Codec.G8RZ, memoryview(head + zeros + zeros + bytes(10)), memoryview(bytearray(1000)), 2)


def test_invalid_chunk_is_refused() -> None:
    for old, new, width in ((b"ab", b"abc", 1), (b"ab", b"cd", 3), (bytes(MAX_BYTES + 1),) * 2 + (1,)):
        with pytest.raises(ValueError, match="must be equally long"):
            encode_chunk(memoryview(old), memoryview(new), width)


def test_compiled_loops_are_used_only_with_numba(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert delta_codec.kernels() is delta_kernels
    delta_codec.kernels.cache_clear()
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "gleaner.actors.weights.delta.kernels_numba")
    monkeypatch.delattr("gleaner.actors.weights.delta.kernels_numba")
    try:
        assert delta_codec.kernels() is delta_numpy
    finally:
        delta_codec.kernels.cache_clear()
