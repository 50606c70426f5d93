"""The envelope of every control message: one MessagePack array, readable without knowing the body.

Owns the order and the limits of its fields (docs/protocol.md has them as a table). Does not own the body:
those are bytes, encoded and validated by the layer above. A newer minor version may append fields, which are
skipped here; a newer major version is refused.
"""

import enum
from typing import Annotated, Final

import msgspec

from transport.refusal import BadField, FrameError, NotAnEnvelope, Oversize, Truncated, UnknownVersion
from transport.wire import MAX_FRAME_BYTES

__all__ = [
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

MAGIC: Final = "GL"
MAJOR: Final = 1
MINOR: Final = 0

Name = Annotated[str, msgspec.Meta(max_length=255)]
Key = Annotated[str, msgspec.Meta(max_length=1024)]
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Lane(enum.IntEnum):
    """Which of a mailbox's two queues; the lower number goes first."""

    SYSTEM = 0
    USER = 1


class Mode(enum.Enum):
    """What a message is in a conversation."""

    TELL = "tell"
    ASK = "ask"
    REPLY = "reply"
    ERROR = "error"


class Envelope(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One control message. `src`/`dst` are actor names with their incarnations (0 = whichever is alive);
    `seq` counts per sender, receiver and lane; `corr` pairs an ask with its reply (0 = none); `key` is the
    idempotency key of an ask; `deadline_left_ms` is what is left of the caller's deadline (0 = none)."""

    magic: str = MAGIC
    major: int = MAJOR
    minor: int = MINOR
    kind: Name
    lane: Lane = Lane.USER
    mode: Mode = Mode.TELL
    src: Name = ""
    src_inc: Count = 0
    dst: Name
    dst_inc: Count = 0
    seq: Count = 0
    corr: Count = 0
    key: Key = ""
    deadline_left_ms: Count = 0
    trace: Key = ""
    body: bytes = b""


class _Head(msgspec.Struct, array_like=True):
    magic: str
    major: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)
_head_decoder = msgspec.msgpack.Decoder(_Head)
_FIELDS: Final = len(Envelope.__struct_fields__)


def encode(envelope: Envelope) -> bytes:
    """Pack an envelope. Raises `Oversize` beyond `MAX_FRAME_BYTES`."""
    frame = _encoder.encode(envelope)
    if len(frame) > MAX_FRAME_BYTES:
        raise Oversize(
            f"{envelope.kind} to {envelope.dst} takes {len(frame)} bytes, the limit is {MAX_FRAME_BYTES}"
        )
    return frame


def decode(frame: bytes) -> Envelope:
    """Unpack an envelope. Raises a `FrameError`: `Oversize`, `Truncated`, `NotAnEnvelope`, `UnknownVersion`
    or `BadField`; nothing else, whatever the bytes."""
    if len(frame) > MAX_FRAME_BYTES:
        raise Oversize(f"envelope of {len(frame)} bytes, the limit is {MAX_FRAME_BYTES}")
    try:
        envelope = _decoder.decode(frame)
    except msgspec.ValidationError as error:
        _check_head(frame)
        raise BadField(f"envelope field: {error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _unreadable(error) from None
    if envelope.magic != MAGIC or envelope.major != MAJOR:
        _check_head(frame)
    return envelope


def _check_head(frame: bytes) -> None:
    """Say what is wrong in the order in which it matters: not ours, then another version."""
    try:
        head = _head_decoder.decode(frame)
    except msgspec.ValidationError:
        raise NotAnEnvelope("MessagePack, but no envelope") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _unreadable(error) from None
    if head.magic != MAGIC:
        raise NotAnEnvelope(f"magic {head.magic[:16]!r}, expected {MAGIC!r}")
    if head.major != MAJOR:
        raise UnknownVersion("envelope", head.major, MAJOR)


def _unreadable(error: Exception) -> FrameError:
    if "truncated" in str(error):
        return Truncated(f"envelope: {error}")
    return NotAnEnvelope(f"no MessagePack envelope: {error}")
