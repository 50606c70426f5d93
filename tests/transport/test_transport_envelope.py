"""The envelope survives the trip, and nothing else gets in."""

import contextlib

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport import envelope
from transport.envelope import Envelope, Lane, Mode

names = st.text(max_size=60)
counts = st.integers(min_value=0, max_value=(1 << 63) - 1)
envelopes = st.builds(
    Envelope,
    kind=names,
    lane=st.sampled_from(Lane),
    mode=st.sampled_from(Mode),
    src=names,
    src_inc=counts,
    dst=names,
    dst_inc=counts,
    seq=counts,
    corr=counts,
    key=names,
    deadline_left_ms=counts,
    trace=names,
    body=st.binary(max_size=200),
)


def packed(*replace: tuple[int, object], extra: int = 0) -> bytes:
    fields = list(msgspec.structs.astuple(Envelope(kind="Ping", dst="manager", body=b"x")))
    fields[4], fields[5] = int(fields[4]), fields[5].value
    for index, value in replace:
        fields[index] = value
    return msgpack.packb(fields + ["later"] * extra)


@given(envelopes)
def test_every_envelope_comes_back_as_it_went(sent: Envelope) -> None:
    assert envelope.decode(envelope.encode(sent)) == sent


@given(envelopes)
def test_any_messagepack_reader_understands_the_envelope(sent: Envelope) -> None:
    fields = msgpack.unpackb(envelope.encode(sent))
    assert fields[:4] == ["GL", 1, 0, sent.kind]
    assert fields[-1] == sent.body


@given(st.binary(max_size=400))
def test_random_bytes_raise_a_frame_error_and_nothing_else(junk: bytes) -> None:
    with pytest.raises(envelope.FrameError):
        envelope.decode(junk)


@given(envelopes, st.data())
def test_a_damaged_envelope_is_decoded_or_refused(sent: Envelope, data: st.DataObject) -> None:
    frame = bytearray(envelope.encode(sent))
    for _ in range(3):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(envelope.FrameError):  # any other error fails
        envelope.decode(bytes(frame))


@given(envelopes, st.data())
def test_a_shortened_envelope_is_truncated(sent: Envelope, data: st.DataObject) -> None:
    frame = envelope.encode(sent)
    with pytest.raises(envelope.Truncated):
        envelope.decode(frame[: data.draw(st.integers(0, len(frame) - 1))])


def test_a_newer_minor_version_with_more_fields_is_read() -> None:
    assert envelope.decode(packed((2, 7), extra=2)).body == b"x"


def test_another_major_version_is_refused_and_both_are_named() -> None:
    for frame in (packed((1, 2)), packed((1, 2), (3, 0)), msgpack.packb(["GL", 2])):
        with pytest.raises(envelope.UnknownVersion, match="version 2, this process speaks 1"):
            envelope.decode(frame)


@pytest.mark.parametrize(
    "frame",
    [packed((0, "XX")), msgpack.packb({"GL": 1}), msgpack.packb(5), b"\xc1", b"\x91" * 200_000],
)
def test_what_is_no_envelope_is_called_so(frame: bytes) -> None:
    with pytest.raises(envelope.NotAnEnvelope):
        envelope.decode(frame)


@pytest.mark.parametrize(
    ("index", "value"),
    [(3, 5), (3, "k" * 256), (4, 9), (5, "shout"), (7, -1), (9, "one"), (14, "z" * 2000), (15, [1])],
)
def test_a_wrong_field_is_named(index: int, value: object) -> None:
    with pytest.raises(envelope.BadField, match=rf"\[{index}\]"):
        envelope.decode(packed((index, value)))


def test_an_oversize_envelope_is_neither_sent_nor_read() -> None:
    big = b"x" * (envelope.MAX_FRAME_BYTES + 1)
    with pytest.raises(envelope.Oversize, match="Weights to agent"):
        envelope.encode(Envelope(kind="Weights", dst="agent", body=big))
    with pytest.raises(envelope.Oversize):
        envelope.decode(big)
