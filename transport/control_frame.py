"""Messages of a control link, each one MessagePack array in one frame.

An array is `["GL", major, minor, type, ...]`. Owns the fields and the versions. The first three fields are
fixed for ever, so that any two releases can at least name each other's version. A newer minor version may
append fields to a message and to the envelopes in it; they are skipped. Another major is refused. `link_end`
and `links` decide when a message is sent.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec

from gleaner.transport.envelope import Count, Envelope
from gleaner.transport.refusal import BadField, NotAnEnvelope, Oversize, Truncated, UnknownVersion
from gleaner.transport.wire import MAX_FRAME_BYTES

MAGIC: Final = "GL"
MAJOR: Final = 2
MINOR: Final = 0
MAX_BATCH: Final = 256  # envelopes in one frame
NONE: Final = Envelope(kind="", dst="", body=b"")  # replaces a refused envelope


class Type(enum.IntEnum):
    """Type number of a message."""

    HELLO = 1
    WELCOME = 2
    DATA = 3
    ACK = 4
    REFUSED = 5
    GONE = 6


class _Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    magic: str
    major: int
    minor: int
    type: int


class Hello(_Head, frozen=True, gc=False):
    """Dialler to listener, on every connection. `life`: of the dialler. `peer_life`: the listener's session
    (0: a new one). The other fields are the dialler's first unacknowledged message, what it received (`ack`),
    and up to which number it takes `tell` messages (`limit`)."""

    life: Count
    peer_life: Count
    first: Count
    ack: Count
    limit: Count


class Welcome(_Head, frozen=True, gc=False):
    """Listener to dialler: the session is open. `peer_life` repeats the dialler's life."""

    life: Count
    peer_life: Count
    ack: Count
    limit: Count


class Data(_Head, frozen=True):
    """Envelopes numbered `first`, `first + 1` and so on; `life` is the sender's."""

    life: Count
    first: Count
    ack: Count
    limit: Count
    envelopes: Annotated[list[Envelope], msgspec.Meta(max_length=MAX_BATCH)]


class Ack(_Head, frozen=True, gc=False):
    """Everything up to `ack` has arrived; with `again` the messages after it are missing. `sent` is the last
    number sent in this direction (0: no question); a receiver that has less answers with `again`."""

    life: Count
    ack: Count
    limit: Count
    again: bool
    sent: Count


class RefusedLink(_Head, frozen=True, gc=False):
    """The sender does not support this version."""

    text: str


class Gone(_Head, frozen=True, gc=False):
    """The session of this `life` (the addressee's) is unknown here: it ended, or this process is another."""

    life: Count


ControlFrame = Hello | Welcome | Data | Ack | RefusedLink | Gone

TYPES: Final[dict[Type, type[ControlFrame]]] = {
    Type.HELLO: Hello,
    Type.WELCOME: Welcome,
    Type.DATA: Data,
    Type.ACK: Ack,
    Type.REFUSED: RefusedLink,
    Type.GONE: Gone,
}
_DATA, _ACK = int(Type.DATA), int(Type.ACK)  # looked up for every message
_pack = msgspec.msgpack.Encoder().encode
_unpack_data = msgspec.msgpack.Decoder(Data).decode
_unpack_ack = msgspec.msgpack.Decoder(Ack).decode
_OURS: Final = b"\xa2GL\x02"  # magic and major behind the first byte, as every packer writes them


class _Start(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The fields that are fixed for ever."""

    magic: str
    major: int


class _RawData(_Head, frozen=True):
    life: Count
    first: Count
    ack: Count
    limit: Count
    envelopes: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_BATCH)]


_unpack_start = msgspec.msgpack.Decoder(_Start).decode
_unpack_head = msgspec.msgpack.Decoder(_Head).decode
_unpack_raw = msgspec.msgpack.Decoder(_RawData).decode
_unpack_envelope = msgspec.msgpack.Decoder(Envelope).decode
_UNPACK = {kind: msgspec.msgpack.Decoder(cls).decode for kind, cls in TYPES.items()}


def hello(life: int, peer_life: int, first: int, ack: int, limit: int) -> bytes:
    """Pack a `Hello`."""
    return _pack((MAGIC, MAJOR, MINOR, Type.HELLO, life, peer_life, first, ack, limit))


def welcome(life: int, peer_life: int, ack: int, limit: int) -> bytes:
    """Pack a `Welcome`."""
    return _pack((MAGIC, MAJOR, MINOR, Type.WELCOME, life, peer_life, ack, limit))


def data(life: int, first: int, ack: int, limit: int, envelopes: Sequence[bytes]) -> bytes:
    """Pack a `Data` of envelopes that are packed already."""
    count = len(envelopes)
    head = _pack((MAGIC, MAJOR, MINOR, 3, life, first, ack, limit, ()))[:-1]  # less the empty array
    return b"".join((head, bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2), *envelopes))


def ack(life: int, ack: int, limit: int, *, again: bool = False, sent: int = 0) -> bytes:
    """Pack an `Ack`."""
    return _pack((MAGIC, MAJOR, MINOR, Type.ACK, life, ack, limit, again, sent))


def refused(text: str) -> bytes:
    """Pack a `RefusedLink`."""
    return _pack((MAGIC, MAJOR, MINOR, Type.REFUSED, text))


def gone(life: int) -> bytes:
    """Pack a `Gone`."""
    return _pack((MAGIC, MAJOR, MINOR, Type.GONE, life))


def decode(frame: bytes, refuse: Callable[[str, str], None]) -> ControlFrame:
    """Unpack one message. An envelope that is not valid is reported to `refuse(reason, detail)` and replaced
    by `NONE` in `Data.envelopes`; the others of its batch stay valid.

    Raises a `FrameError`, whatever the bytes: `Oversize`, `Truncated`, `NotAnEnvelope`, `UnknownVersion` (it
    names both) or `BadField`.
    """
    if len(frame) > MAX_FRAME_BYTES:
        raise Oversize(f"frame of {len(frame)} bytes, the limit is {MAX_FRAME_BYTES}")
    if frame[1:5] == _OURS:  # the fast path; a frame that fails here is checked in full below
        try:
            kind = frame[6] if frame[5] < 0x80 else 0
            if kind == _DATA:
                return _unpack_data(frame)
            if kind == _ACK:
                return _unpack_ack(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError):
            pass
    return _decode_in_full(frame, refuse)


def _decode_in_full(frame: bytes, refuse: Callable[[str, str], None]) -> ControlFrame:
    # Unexpected elements are not decoded: a frame at the limit may hold sixteen million empty arrays, which
    # are a gigabyte of Python objects and block the process for half a minute. The checks run in the order in
    # which they matter: not ours, another version, a field.
    try:
        start = _unpack_start(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        kind = Truncated if "truncated" in str(error) else NotAnEnvelope
        raise kind(f"no message of a control link: {error}") from None
    if start.magic != MAGIC:
        raise NotAnEnvelope("MessagePack, but no message of a control link")
    if start.major != MAJOR:
        raise UnknownVersion("control link", start.major, MAJOR)
    try:
        head = _unpack_head(frame)
        if head.type == Type.DATA:
            return _believable(_unpack_raw(frame), refuse)
        if head.type not in TYPES:
            raise BadField(f"control link: message type {head.type} is not known")
        return _UNPACK[Type(head.type)](frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadField(f"control link: {error}") from None


def _believable(raw: _RawData, refuse: Callable[[str, str], None]) -> Data:
    envelopes: list[Envelope] = []
    for number, packed in enumerate(raw.envelopes, raw.first):
        try:
            envelopes.append(_unpack_envelope(packed))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            refuse(BadField.reason, f"envelope {number}: {error}")
            envelopes.append(NONE)
    return Data(raw.magic, raw.major, raw.minor, raw.type, raw.life, raw.first, raw.ack, raw.limit, envelopes)
