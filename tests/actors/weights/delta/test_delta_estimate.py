"""Delta estimate: a sample of a hundredth gives up deltas that cannot be small."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.weights.delta import estimate as delta_sample
from gleaner.actors.weights.delta import kernels_numpy as delta_numpy
from gleaner.actors.weights.delta.codec import FULL_SHARE, encode_chunk
from gleaner.actors.weights.delta.estimate import BLOCK_BYTES, blocks_of, is_hopeless, least_share
from gleaner.transport.bulk_frames import Chunk

CHUNK = 48 * BLOCK_BYTES + 20  # no multiple of a block
Pair = tuple[memoryview, memoryview, list[Chunk], list[int]]


def pair(seed: int, density: float, clustered: bool, width: int, size: int) -> Pair:
    """Two images in chunks; a share of the elements changed, everywhere or in stretches."""
    rng = np.random.default_rng(seed)
    old = rng.integers(0, 256, size, np.uint8)
    hit = rng.random(-(-size // width)) < density
    if clustered:
        hit = np.sin(np.arange(hit.size) * (7.0 / hit.size)) > np.cos(np.pi * density)
    new = old ^ np.repeat(hit, width)[:size].astype(np.uint8) * rng.integers(1, 256, size, np.uint8)
    chunks = [Chunk(at, min(CHUNK, size - at), b"") for at in range(0, size, CHUNK)]
    return memoryview(old.tobytes()), memoryview(new.tobytes()), chunks, [width] * len(chunks)


def payload_bytes(images: Pair, *, compress: bool) -> int:
    old, new, chunks, widths = images
    parts = [slice(chunk.offset, chunk.offset + chunk.length) for chunk in chunks]
    return sum(
        len(encode_chunk(old[part], new[part], width, compress=compress, loops=delta_numpy)[1])
        for part, width in zip(parts, widths, strict=True)
    )


PAIRS = st.builds(
    pair,
    st.integers(0, 2**32),
    st.sampled_from([0.001, 0.05, 0.2, 0.29, 0.31, 0.5, 0.6, 1.0]),
    st.booleans(),
    st.sampled_from([1, 2, 4]),
    st.integers(BLOCK_BYTES, 4 * CHUNK),
)


@settings(deadline=None, max_examples=60)
@given(PAIRS, st.booleans())
def test_no_delta_is_smaller_than_the_full_estimate(images: Pair, compress: bool) -> None:
    old, new, chunks, widths = images
    least = 0.0
    for chunk, width in zip(chunks, widths, strict=True):
        for begin in range(chunk.offset, chunk.offset + chunk.length, BLOCK_BYTES):
            length = min(BLOCK_BYTES, chunk.offset + chunk.length - begin)
            whole = slice(begin, begin + length - length % width)
            was, now = (np.frombuffer(one[whole], f"u{width}") for one in (old, new))
            share = least_share(int(np.count_nonzero(was != now)), length, width, compress=compress)
            assert share <= 1
            least += share * length
    assert least <= payload_bytes(images, compress=compress) + 1e-6


@settings(deadline=None, max_examples=60)
@given(PAIRS, st.booleans(), st.integers(0, 2**64 - 1), st.integers(1, 600))
def test_small_enough_delta_is_never_given_up(images: Pair, compress: bool, seed: int, blocks: int) -> None:
    fits = payload_bytes(images, compress=compress)
    assert not is_hopeless(*images, fits, seed=seed, compress=compress, blocks=blocks)


def test_small_deltas_are_given_up_within_the_limit() -> None:
    images = pair(3, 0.5, True, 4, 4 * CHUNK)
    fits = payload_bytes(images, compress=False)
    wrong = sum(is_hopeless(*images, fits, seed=seed, blocks=9, wrong=0.2) for seed in range(500))
    assert wrong <= 100
    hopeless = [is_hopeless(*images, fits // 8, seed=seed, blocks=40, wrong=0.2) for seed in range(50)]
    assert all(hopeless), "the estimate can detect it at all"


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 4]), st.booleans())
def test_change_everywhere_is_given_up_with_few_blocks(seed: int, width: int, compress: bool) -> None:
    images = pair(seed, 1.0, False, width, 3 * CHUNK)
    most = int(FULL_SHARE * 3 * CHUNK)
    assert is_hopeless(*images, most, seed=seed, compress=compress, blocks=blocks_of(1 << 30))


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 1 << 45))
def test_sample_is_less_than_a_hundredth(total: int) -> None:
    assert blocks_of(total) * BLOCK_BYTES <= total / 100
    assert blocks_of(total) <= delta_sample.MOST_BLOCKS


def test_small_and_unchanged_images_are_not_sampled() -> None:
    images = pair(1, 1.0, False, 4, 2 * CHUNK)
    assert not is_hopeless(*images, CHUNK, seed=0)
    old, new, *_ = images
    assert not is_hopeless(old, new, [], [], 0, seed=0, blocks=1000)


def test_only_changed_chunks_are_sampled() -> None:
    old, new, chunks, widths = pair(5, 1.0, False, 1, 4 * CHUNK)
    mixed = memoryview(bytes(new[:CHUNK]) + bytes(old[CHUNK:]))
    most = CHUNK // 2
    assert is_hopeless(old, mixed, chunks[:1], widths[:1], most, seed=1, blocks=400)
    assert not is_hopeless(old, mixed, chunks[1:], widths[1:], most, seed=1, blocks=400)
