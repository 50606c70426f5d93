"""Control frames: readable by any client, forward compatible, validated."""

import contextlib
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.transport import control_frame, envelope
from gleaner.transport.control_frame import MAX_BATCH, NONE, Ack, Data, Gone, Hello, RefusedLink, Welcome
from gleaner.transport.refusal import BadField, FrameError, NotAnEnvelope, Oversize, Truncated, UnknownVersion

counts = st.integers(0, (1 << 63) - 1)
packed_envelopes = st.lists(
    st.builds(envelope.encode, st.text(max_size=20), st.text(max_size=20), st.binary(max_size=50)),
    max_size=40,
)


def strict(frame: bytes) -> control_frame.ControlFrame:
    """Decode where no envelope may be refused."""

    def refuse(reason: str, detail: str) -> None:
        raise AssertionError(f"{reason}: {detail}")

    return control_frame.decode(frame, refuse)


@given(counts, counts, counts, counts, packed_envelopes)
def test_data_survives_round_trip_and_is_plain_messagepack(life, first, ack, limit, batch) -> None:
    frame = control_frame.data(life, first, ack, limit, batch)
    assert strict(frame) == Data("GL", 2, 0, 3, life, first, ack, limit, [envelope.decode(e) for e in batch])
    assert msgpack.unpackb(frame) == [
        "GL",
        2,
        0,
        3,
        life,
        first,
        ack,
        limit,
        [msgpack.unpackb(e) for e in batch],
    ]


@given(counts, counts, counts, counts, counts, st.booleans())
def test_other_messages_survive_the_round_trip(a, b, c, d, e, flag) -> None:
    for frame, value in (
        (control_frame.hello(a, b, c, d, e), Hello("GL", 2, 0, 1, a, b, c, d, e)),
        (control_frame.welcome(a, b, c, d), Welcome("GL", 2, 0, 2, a, b, c, d)),
        (control_frame.ack(a, b, c, again=flag, sent=d), Ack("GL", 2, 0, 4, a, b, c, flag, d)),
        (control_frame.refused("why"), RefusedLink("GL", 2, 0, 5, "why")),
        (control_frame.gone(a), Gone("GL", 2, 0, 6, a)),
    ):
        assert strict(frame) == value
        assert msgpack.unpackb(frame)[:4] == ["GL", 2, 0, value.type]


def test_newer_minor_version_may_append_fields_to_everything() -> None:
    later = [*msgpack.unpackb(envelope.encode("Ping", "manager", b"x")), "more", {"and": "more"}]
    for minor in (1, 127, 128, 70_000):
        data = msgpack.packb(["GL", 2, minor, 3, 7, 1, 0, 100, [later, later], "more", None])
        got = strict(data)
        assert isinstance(got, Data)
        assert [e.body for e in got.envelopes] == [b"x", b"x"]
        assert strict(msgpack.packb(["GL", 2, minor, 4, 7, 1, 100, False, 0, "more"])).ack == 1
        assert strict(msgpack.packb(["GL", 2, minor, 1, 7, 0, 1, 0, 100, "more", 1])).life == 7


def test_another_major_version_is_refused_with_both_named() -> None:
    for frame in (["GL", 3], ["GL", 1, 0, "kind", 1], ["GL", 3, 0, 3, 7, 1, 0, 100, []]):
        with pytest.raises(UnknownVersion, match=rf"version {frame[1]}, this process speaks 2"):
            strict(msgpack.packb(frame))


def test_bad_envelope_is_refused_alone() -> None:
    good = envelope.encode("Ping", "manager", b"x")
    bad = [
        msgpack.packb(value)
        for value in (["Ping"], 5, None, ["Ping", 9, 0, "", 0, "m", 0, 0, "", 0, "", b""])
    ]
    reasons: list[str] = []
    frame = control_frame.data(7, 10, 0, 100, [good, bad[0], good, *bad[1:], good])
    got = control_frame.decode(frame, lambda reason, detail: reasons.append(f"{reason}: {detail}"))
    assert isinstance(got, Data)
    assert [e is not NONE for e in got.envelopes] == [True, False, True, False, False, False, True]
    assert len(reasons) == 4
    assert reasons[0].startswith("bad-field: envelope 11:")


@given(st.binary(max_size=300))
def test_random_bytes_raise_a_frame_error_and_nothing_else(junk: bytes) -> None:
    with pytest.raises(FrameError):
        strict(junk)


@given(packed_envelopes, st.data())
def test_damaged_frame_is_decoded_or_refused(batch, data: st.DataObject) -> None:
    frame = bytearray(control_frame.data(7, 1, 0, 100, batch))
    for _ in range(3):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FrameError):  # any other error fails
        control_frame.decode(bytes(frame), lambda reason, detail: None)


@given(packed_envelopes, st.data())
def test_shortened_frame_is_truncated(batch, data: st.DataObject) -> None:
    frame = control_frame.data(7, 1, 0, 100, batch)
    with pytest.raises(Truncated):
        strict(frame[: data.draw(st.integers(0, len(frame) - 1))])


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (msgpack.packb(["XX", 2, 0, 3]), NotAnEnvelope),
        (msgpack.packb({"GL": 2}), NotAnEnvelope),
        (msgpack.packb(["GL", "two"]), NotAnEnvelope),
        (msgpack.packb(["GL", True]), NotAnEnvelope),
        (msgpack.packb(5), NotAnEnvelope),
        (b"\xc1", NotAnEnvelope),
        (b"\x91" * 200_000, NotAnEnvelope),
        (msgpack.packb(["GL", 2]), BadField),
        (msgpack.packb(["GL", 2, 0, 99]), BadField),
        (msgpack.packb(["GL", 2, 0, 6, -1]), BadField),
        (msgpack.packb(["GL", 2, 0, 6, 1 << 63]), BadField),
        (control_frame.gone(7) + b"\0", NotAnEnvelope),
        (control_frame.data(1, 1, 0, 9, [b"\x90"] * (MAX_BATCH + 1)), BadField),
        (bytes((16 << 20) + 1), Oversize),
    ],
)
def test_invalid_frame_raises_its_named_error(frame: bytes, error: type[FrameError]) -> None:
    with pytest.raises(error):
        strict(frame)


@pytest.mark.parametrize("kind", [3, 4, 99])
def test_many_empty_values_allocate_no_memory(kind: int) -> None:
    count = 1 << 20
    crowd = b"\xdd" + count.to_bytes(4) + b"\x90" * count
    frame = b"\x99" + msgpack.packb(["GL", control_frame.MAJOR, 0, kind, 7, 1, 0, 64])[1:] + crowd
    tracemalloc.start()
    try:
        for data in (crowd, frame):
            with pytest.raises(FrameError):
                control_frame.decode(data, lambda reason, detail: None)
        assert tracemalloc.get_traced_memory()[1] < count // 10
    finally:
        tracemalloc.stop()
