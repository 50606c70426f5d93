"""Token frames and stream control messages: exact bytes, validated input."""

import contextlib

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.transport import stream_control, token_frame
from gleaner.transport.refusal import (
    BadField,
    FrameError,
    NotAnEnvelope,
    Truncated,
    UnknownVersion,
    WrongParts,
)
from gleaner.transport.token_frame import TokenFrame

rows = st.lists(
    st.tuples(
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
        st.floats(width=32, allow_nan=False),
        st.integers(0, 15),
    ),
    max_size=70,
)


def frame_of(table: list[tuple[int, int, float, int]], seq: int = 1) -> TokenFrame:
    columns = list(zip(*table, strict=True)) or [[], [], [], []]
    return TokenFrame(
        "spot-3",
        2,
        seq,
        np.array(columns[0], "<u4"),
        np.array(columns[1], "<u4"),
        np.array(columns[2], "<f4"),
        np.array(columns[3], "u1"),
    )


@given(rows, st.integers(1, 2**63 - 1))
def test_every_frame_survives_bit_for_bit(table: list[tuple[int, int, float, int]], seq: int) -> None:
    sent = frame_of(table, seq)
    got = token_frame.decode(token_frame.encode(sent))
    assert (got.stream, got.incarnation, got.seq, len(got)) == ("spot-3", 2, seq, len(table))
    for name in ("slots", "tokens", "logprobs", "flags"):
        assert getattr(got, name).tobytes() == getattr(sent, name).tobytes()


def test_bytes_are_as_documented() -> None:
    head, columns = token_frame.encode(frame_of([(7, 9, -0.5, 3)], seq=4))
    assert msgpack.unpackb(head) == [1, "spot-3", 2, 4, 1]
    assert columns == b"\x07\0\0\0\x09\0\0\0\0\0\0\xbf\x03"


@given(st.lists(st.binary(max_size=120), max_size=4))
def test_random_parts_raise_a_frame_error_and_nothing_else(parts: list[bytes]) -> None:
    with pytest.raises(FrameError):
        token_frame.decode(parts)
    with pytest.raises(FrameError):
        stream_control.decode_hello(parts)
    with pytest.raises(FrameError):
        stream_control.decode_from_receiver(parts)


@given(rows, st.data())
def test_damaged_frame_is_decoded_or_refused(
    table: list[tuple[int, int, float, int]], data: st.DataObject
) -> None:
    parts = [bytearray(part) for part in token_frame.encode(frame_of(table))]
    part = parts[data.draw(st.integers(0, 1))]
    if part:
        part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FrameError):
        token_frame.decode([bytes(part) for part in parts])


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([b"x"], WrongParts),
        ([msgpack.packb([1, "s", 1, 1, 2]), b"x" * 13], Truncated),
        ([msgpack.packb([1, "s", 1, 1, 1])[:-1], b"x" * 13], Truncated),
        ([msgpack.packb([2, "s", 1, 1, 0]), b""], UnknownVersion),
        ([msgpack.packb([2]), b""], UnknownVersion),
        ([msgpack.packb("hello"), b""], NotAnEnvelope),
        ([msgpack.packb([1, "s", 1, 0, 0]), b""], BadField),
        ([msgpack.packb([1, "s", 1, 1, 4097]), b"x" * 13 * 4097], BadField),
        ([msgpack.packb([1, "s", 1, 1, 1]), b"\xff" * 13], BadField),
    ],
)
def test_damage_raises_its_named_error(parts: list[bytes], error: type[FrameError]) -> None:
    with pytest.raises(error):
        token_frame.decode(parts)


@pytest.mark.parametrize(
    "columns", [([1], [1, 2], [0.0], [0]), ([[1]], [[1]], [[0.0]], [[0]]), ([2**32], [1], [0.0], [0])]
)
def test_columns_that_do_not_fit_are_not_packed(columns: tuple[list[int], ...]) -> None:
    with pytest.raises((ValueError, OverflowError)):
        token_frame.pack_columns(*columns)


def test_frame_of_too_many_rows_is_not_packed() -> None:
    column = np.zeros(token_frame.MAX_ROWS + 1)
    with pytest.raises(ValueError, match="4097 rows"):
        token_frame.pack_columns(column, column, column, column)


@pytest.mark.parametrize(
    "message",
    [
        stream_control.Have(1, 5, 6, 7, 256),
        stream_control.Ack(5),
        stream_control.Resend(6),
        stream_control.Refused("old"),
    ],
)
def test_control_messages_survive_the_round_trip(message: stream_control.FromReceiver) -> None:
    parts = stream_control.encode(message)
    assert stream_control.decode_from_receiver(parts) == message
    with pytest.raises(FrameError):
        stream_control.decode_hello(parts)


def test_hello_of_another_major_version_is_refused() -> None:
    parts = stream_control.encode(stream_control.Hello(2, "s", 1, 0))
    with pytest.raises(UnknownVersion, match="version 2, this process speaks 1"):
        stream_control.decode_hello(parts)
