"""The envelope of every control message: one MessagePack array, readable without knowing the body.

Owns the order and the limits of its fields (docs/protocol.md has them as a table). Does not own the body:
those are bytes, encoded and validated by the layer above. A newer minor version may append fields, which are
skipped here; a newer major version is refused.
"""

import enum
from typing import Annotated, Final

import msgpack
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


def encode(envelope: Envelope) -> bytes:
    """Pack an envelope. Raises `Oversize` beyond `MAX_FRAME_BYTES`."""
    values = msgspec.structs.astuple(envelope)
    frame: bytes = msgpack.packb([value.value if isinstance(value, enum.Enum) else value for value in values])
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
    values = _unpack(frame)
    # Said in the order in which it matters: not ours, another version, a field.
    if not isinstance(values, list) or len(values) < 2:
        raise NotAnEnvelope("MessagePack, but no envelope")
    magic, major = values[:2]
    if magic != MAGIC:
        raise NotAnEnvelope(f"magic {str(magic)[:16]!r}, expected {MAGIC!r}")
    if major != MAJOR:
        if isinstance(major, int):
            raise UnknownVersion("envelope", major, MAJOR)
        raise NotAnEnvelope("MessagePack, but no envelope")
    try:
        return msgspec.convert(values, Envelope)
    except msgspec.ValidationError as error:
        raise BadField(f"envelope field: {error}") from None


def _unpack(frame: bytes) -> object:
    try:
        values: object = msgpack.unpackb(frame, strict_map_key=False)
    except msgpack.ExtraData as error:
        raise NotAnEnvelope(f"no MessagePack envelope: {len(error.extra)} bytes after its end") from None
    except (msgpack.FormatError, msgpack.StackError, UnicodeDecodeError, TypeError) as error:
        raise NotAnEnvelope(f"no MessagePack envelope: {error or type(error).__name__}") from None
    except ValueError as error:  # what msgpack says of input that ends too early, or announces too much
        kind = Truncated if "incomplete" in str(error) or "exceeds" in str(error) else NotAnEnvelope
        raise kind(f"envelope: {error}") from None
    return values
