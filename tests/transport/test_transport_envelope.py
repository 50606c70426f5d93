"""Envelopes: they survive the round trip, and invalid ones are refused."""

import contextlib

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.transport import envelope
from gleaner.transport.envelope import Envelope, Lane, Mode

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
    corr=counts,
    key=names,
    deadline_left_ms=counts,
    trace=names,
    body=st.binary(max_size=200),
)


def pack(sent: Envelope) -> bytes:
    return envelope.encode(**{field: getattr(sent, field) for field in Envelope.__struct_fields__})


def packed(*replace: tuple[int, object], extra: int = 0) -> bytes:
    fields: list[object] = list(msgpack.unpackb(envelope.encode("Ping", "manager", b"x")))
    for index, value in replace:
        fields[index] = value
    return msgpack.packb(fields + ["later"] * extra)


@given(envelopes)
def test_every_envelope_survives_the_round_trip(sent: Envelope) -> None:
    assert envelope.decode(pack(sent)) == sent


@given(envelopes)
def test_any_messagepack_reader_understands_the_envelope(sent: Envelope) -> None:
    assert msgpack.unpackb(pack(sent)) == list(msgspec.structs.astuple(sent))


@given(st.binary(max_size=400))
def test_random_bytes_raise_a_frame_error_and_nothing_else(junk: bytes) -> None:
    with pytest.raises(envelope.FrameError):
        envelope.decode(junk)


@given(envelopes, st.data())
def test_damaged_envelope_is_decoded_or_refused(sent: Envelope, data: st.DataObject) -> None:
    frame = bytearray(pack(sent))
    for _ in range(3):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(envelope.FrameError):  # any other error fails
        envelope.decode(bytes(frame))


@given(envelopes, st.data())
def test_shortened_envelope_is_truncated(sent: Envelope, data: st.DataObject) -> None:
    frame = pack(sent)
    with pytest.raises(envelope.Truncated):
        envelope.decode(frame[: data.draw(st.integers(0, len(frame) - 1))])


def test_envelope_with_fields_of_newer_minor_is_read() -> None:
    assert envelope.decode(packed(extra=2)).body == b"x"


@pytest.mark.parametrize(
    "frame", [packed() + b"\0", b"\xc1", b"\x91" * 200_000, packed().replace(b"Ping", b"\xff\xff\xff\xff")]
)
def test_non_envelope_raises_its_named_error(frame: bytes) -> None:
    with pytest.raises((envelope.NotAnEnvelope, envelope.BadField)):
        envelope.decode(frame)


@pytest.mark.parametrize(
    ("index", "value"),
    [(0, 5), (0, "k" * 256), (1, 9), (2, "shout"), (2, 4), (4, -1), (6, "one"), (10, "z" * 2000), (11, [1])],
)
def test_wrong_field_is_named(index: int, value: object) -> None:
    with pytest.raises(envelope.BadField, match=rf"\[{index}\]"):
        envelope.decode(packed((index, value)))


def test_oversize_envelope_is_neither_sent_nor_read() -> None:
    big = b"x" * (envelope.MAX_FRAME_BYTES + 1)
    with pytest.raises(envelope.Oversize, match="Weights to agent"):
        envelope.encode("Weights", "agent", big)
    with pytest.raises(envelope.Oversize):
        envelope.decode(big)
