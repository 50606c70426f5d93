"""Envelope of every control message: a MessagePack array around the opaque body.

Owns the order and the limits of its fields (docs/protocol.md has them as a table). Does not own the body
(bytes, encoded and validated by the layer above). Version and sequence number are not fields here: they occur
once in the frame that carries a batch of envelopes (`control_frame`). A newer minor version may append
fields, which are skipped here.
"""

import enum
from typing import Annotated, Final

import msgspec

from gleaner.transport.refusal import BadField, FrameError, NotAnEnvelope, Oversize, Truncated, UnknownVersion
from gleaner.transport.wire import MAX_FRAME_BYTES

__all__ = [
    "MAX_ENVELOPE_BYTES",
    "MAX_FRAME_BYTES",
    "BadField",
    "Envelope",
    "FrameError",
    "Lane",
    "Mode",
    "NotAnEnvelope",
    "Oversize",
    "Truncated",
    "UnknownVersion",
    "decode",
    "encode",
]

MAX_ENVELOPE_BYTES: Final = MAX_FRAME_BYTES - 256  # the rest is for the header of the frame that carries it

Name = Annotated[str, msgspec.Meta(max_length=255)]
Key = Annotated[str, msgspec.Meta(max_length=1024)]
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Lane(enum.IntEnum):
    """Queue of a mailbox; the lower number goes first."""

    SYSTEM = 0
    USER = 1


class Mode(enum.IntEnum):
    """Role of a message in an exchange."""

    TELL = 0
    ASK = 1
    REPLY = 2
    ERROR = 3


class Envelope(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """One control message, as its receiver sees it. `src`/`dst` are actor names with their incarnations (0 =
    the living one); `corr` pairs an ask with its reply (0 = none); `key` is the idempotency key of an ask;
    `deadline_left_ms` is the rest of the caller's deadline (0 = none)."""

    kind: Name
    lane: Lane = Lane.USER
    mode: Mode = Mode.TELL
    src: Name = ""
    src_inc: Count = 0
    dst: Name
    dst_inc: Count = 0
    corr: Count = 0
    key: Key = ""
    deadline_left_ms: Count = 0
    trace: Key = ""
    body: bytes


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Envelope).decode


def encode(
    kind: str,
    dst: str,
    body: bytes,
    lane: int = Lane.USER,
    mode: int = Mode.TELL,
    src: str = "",
    src_inc: int = 0,
    dst_inc: int = 0,
    corr: int = 0,
    key: str = "",
    deadline_left_ms: int = 0,
    trace: str = "",
) -> bytes:
    """Pack the fields of `Envelope`, whose documentation applies here. Every message passes here, so it makes
    no object besides the bytes, and leaves the limits of names to the receiver. Raises `Oversize` beyond
    `MAX_ENVELOPE_BYTES`."""
    packed = _pack((kind, lane, mode, src, src_inc, dst, dst_inc, corr, key, deadline_left_ms, trace, body))
    if len(packed) > MAX_ENVELOPE_BYTES:
        raise Oversize(f"{kind} to {dst} takes {len(packed)} bytes, the limit is {MAX_ENVELOPE_BYTES}")
    return packed


def decode(packed: bytes) -> Envelope:
    """Unpack one envelope. Raises a `FrameError`: `Oversize`, `Truncated`, `NotAnEnvelope` or `BadField`;
    nothing else, whatever the bytes."""
    if len(packed) > MAX_FRAME_BYTES:
        raise Oversize(f"envelope of {len(packed)} bytes, the limit is {MAX_FRAME_BYTES}")
    try:
        return _unpack(packed)
    except msgspec.ValidationError as error:
        raise BadField(f"envelope field: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        kind = Truncated if "truncated" in str(error) else NotAnEnvelope
        raise kind(f"no envelope: {error}") from None
