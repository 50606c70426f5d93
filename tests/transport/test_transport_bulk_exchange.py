"""The exchange on one connection of a pull: requested chunks and calls."""

import os
from collections import deque
from collections.abc import Callable, Coroutine

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from gleaner.transport.bulk_exchange import Exchange, PullProgress
from gleaner.transport.bulk_frames import (
    ANSWER_BYTES,
    REQUEST_BYTES,
    BulkSource,
    Chunk,
    Request,
    Status,
    decode_request,
    encode_answer,
)

CHUNK_BYTES = 64


class Source:
    """A connection to a source that answers at once, but with `not_yet` this many times first."""

    def __init__(self, content: bytes, not_yet: int = 0) -> None:
        self._content = content
        self._not_yet = not_yet
        self._asked: deque[Request] = deque()
        self._payload = b""
        self.calls: list[int] = []  # requests in each
        self.most = 0  # requests that waited at once

    async def send(self, data: bytes, stall_s: float) -> None:
        frames = [data[at : at + REQUEST_BYTES] for at in range(0, len(data), REQUEST_BYTES)]
        self._asked.extend(map(decode_request, frames))
        self.calls.append(len(frames))
        self.most = max(self.most, len(self._asked))

    async def receive(self, place: memoryview, stall_s: float, least_bytes: int = 1) -> int:
        if len(place) != ANSWER_BYTES:
            place[:], self._payload = self._payload[: len(place)], self._payload[len(place) :]
            return len(place)
        assert not self._payload, "the answer before it was not read"
        request = self._asked.popleft()
        status = Status.OK if self._not_yet <= 0 else Status.NOT_YET
        self._not_yet -= 1
        if status is Status.OK:
            self._payload = self._content[request.offset : request.offset + request.length]
        place[:] = encode_answer(status, request.version, request.tag, len(self._payload))
        return ANSWER_BYTES

    async def on_loop(self, question: Coroutine[object, object, float | None]) -> float | None:
        return await question

    def tell(self, callback: Callable[[], None]) -> None:
        callback()


def exchange(chunks: int, window: int, *, not_yet: int = 0, paces: list[int] | None = None) -> Source:
    """Pull this many chunks; all of them arrive."""
    content = os.urandom(chunks * CHUNK_BYTES)
    source, into, landed = Source(content, not_yet), bytearray(len(content)), []

    async def pace(nbytes: int, patience_s: float) -> float | None:
        if paces is not None:
            paces.append(len(source.calls))
        return 0.0

    wanted = deque(
        Chunk(at, CHUNK_BYTES, xxhash.xxh3_128(content[at : at + CHUNK_BYTES]).digest())
        for at in range(0, len(content), CHUNK_BYTES)
    )
    order = PullProgress(
        BulkSource("tcp://source:1", bytes(48)),
        3,
        memoryview(into),
        window,
        2.0,
        wanted,
        landed.append,
        lambda: None,
        None if paces is None else pace,
    )
    with pytest.raises(StopIteration):
        Exchange(order, source).talk().send(None)  # type: ignore[arg-type]
    assert bytes(into) == content
    assert len(landed) == chunks
    return source


@given(chunks=st.integers(1, 40), window=st.integers(1, 9), not_yet=st.integers(0, 20))
def test_requests_stay_within_the_window_and_all_arrives(chunks, window, not_yet) -> None:
    source = exchange(chunks, window, not_yet=not_yet)
    assert source.most == min(window, chunks)
    assert sum(source.calls) == chunks + not_yet


def test_call_requests_half_the_window() -> None:
    assert exchange(20, 4).calls == [4, *[2] * 8]
    assert exchange(5, 1).calls == [1] * 5


def test_limited_requests_are_paced_one_by_one() -> None:
    paces: list[int] = []
    source = exchange(6, 4, paces=paces)
    assert source.calls == [1] * 6
    assert paces == list(range(6)), "no request waits for the turn of another chunk"
