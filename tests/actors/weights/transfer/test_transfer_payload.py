"""`Payload`: chunks that are here, and the bytes of them that a pulling host reports."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.weights.transfer.payload import Payload
from gleaner.transport.bulk import Chunk, PullError


def chunks(count: int) -> tuple[Chunk, ...]:
    """So many chunks, the last of which is shorter."""
    return tuple(Chunk(8 * i, 5 if i == count - 1 else 8, bytes(16)) for i in range(count))


def payload(of: Sequence[Chunk]) -> Payload:
    """A payload without any chunk yet."""
    return Payload(1, of, memoryview(bytearray(8 * len(of))))


@given(st.integers(1, 12), st.lists(st.integers(0, 11), max_size=30))
def test_payload_has_the_bytes_of_its_chunks_when_they_land_in_any_order(
    count: int, order: list[int]
) -> None:
    every = chunks(count)
    one = payload(every)
    landed = [every[i % count] for i in order]
    for chunk in landed:  # some land twice: from two sources
        one.landed(chunk)
    assert one.have_bytes == sum(chunk.length for chunk in set(landed))
    assert set(one.left) == set(every) - set(landed)


@given(st.integers(1, 12), st.sets(st.integers(0, 11)))
def test_payload_of_an_earlier_life_has_all_but_the_missing_chunks(count: int, lacking: set[int]) -> None:
    every = chunks(count)
    missing = [chunk for i, chunk in enumerate(every) if i in lacking]
    one = payload(every)
    one.has_all_but(missing)
    assert one.have_bytes == sum(chunk.length for chunk in every) - sum(chunk.length for chunk in missing)
    if missing:
        with pytest.raises(PullError, match=rf"{len(missing)} of {count} chunks did not come"):
            one.require_all()
    else:
        one.require_all()


class _ReadOnce(Sequence[Chunk]):
    """Chunks that count how often all of them are read."""

    def __init__(self, of: tuple[Chunk, ...]) -> None:
        self._of, self.reads = of, 0

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, at: int) -> Chunk:  # type: ignore[override]  # no slices here
        return self._of[at]

    def __iter__(self) -> Iterator[Chunk]:
        self.reads += 1
        return iter(self._of)


def test_payload_reads_no_chunk_again_when_a_host_reports_its_bytes() -> None:
    every = _ReadOnce(chunks(12))
    one = payload(every)
    for at in range(12):
        one.landed(every[at])
        assert one.have_bytes > 0
    assert every.reads == 0
