"""TokenFrame: the columns that one decode step produced for a whole batch.

Owns the bytes: two parts, a MessagePack header [major, stream, incarnation, seq, count] and the columns one
after the other, little-endian: slot u32, token u32, log-prob f32, flags u8 (13 bytes a row). Does not own
delivery; `token_stream` does.
"""

import enum
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from gleaner.transport.refusal import BadField, NotAnEnvelope, Truncated, UnknownVersion, WrongParts

MAJOR: Final = 1
ROW_BYTES: Final = 13
MAX_ROWS: Final = 4096  # rows in one frame; no engine decodes more requests at a time


class Flag(enum.IntFlag):
    """Flags of a row besides its token."""

    FIRST = 1  # decoding of this slot began
    FINISHED = 2  # stop token or length; the row carries the last token
    ABORTED = 4  # no token: the slot ended here
    NO_TOKEN = 8  # the token and log-prob of this row mean nothing
    CUT = 16  # with FINISHED: at a limit, the request's or the engine's own, not at a stop token


_KNOWN_FLAGS: Final = bytes(range(1 << len(Flag)))


@dataclass(frozen=True, slots=True, eq=False)
class TokenFrame:
    """One frame. `slots` u32 [rows] name the owner of each token (a number never used twice within an
    incarnation), `tokens` u32 [rows], `logprobs` f32 [rows] (natural logarithm), `flags` u8 [rows] (`Flag`).
    """

    stream: str
    incarnation: int
    seq: int
    slots: NDArray[np.uint32]
    tokens: NDArray[np.uint32]
    logprobs: NDArray[np.float32]
    flags: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.slots)


class PackedFrame(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One frame as it arrived: its columns are the second part, checked and not taken apart yet."""

    stream: str
    incarnation: int
    seq: int
    columns: bytes

    def __len__(self) -> int:
        return len(self.columns) // ROW_BYTES

    def unpack(self) -> TokenFrame:
        """The arrays are read-only views of the columns."""
        body, rows = self.columns, len(self)
        return TokenFrame(
            self.stream,
            self.incarnation,
            self.seq,
            np.frombuffer(body, "<u4", rows, 0),
            np.frombuffer(body, "<u4", rows, 4 * rows),
            np.frombuffer(body, "<f4", rows, 8 * rows),
            np.frombuffer(body, "u1", rows, 12 * rows),
        )


def joined(frames: list[PackedFrame]) -> tuple[bytes, bytes, bytes, bytes]:
    """The columns of these frames, one frame after the other: slots, tokens, log-probs and flags, raw."""
    size = len(frames[0].columns)
    rows = size // ROW_BYTES
    cuts = (slice(4 * rows), slice(4 * rows, 8 * rows), slice(8 * rows, 12 * rows), slice(12 * rows, size))
    if len(frames) == 1:
        body = frames[0].columns
        return body[cuts[0]], body[cuts[1]], body[cuts[2]], body[cuts[3]]
    if all(len(frame.columns) == size for frame in frames):
        table = np.frombuffer(b"".join([frame.columns for frame in frames]), np.uint8).reshape(-1, size)
        slots, tokens, logprobs, flags = (table[:, cut].tobytes() for cut in cuts)
        return slots, tokens, logprobs, flags
    apart = [joined([frame]) for frame in frames]
    slots, tokens, logprobs, flags = (b"".join(column) for column in zip(*apart, strict=True))
    return slots, tokens, logprobs, flags


_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
_Incarnation = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Header(msgspec.Struct, array_like=True, frozen=True):
    major: int
    stream: _Name
    incarnation: _Incarnation
    seq: _Positive
    count: Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)]


class _Major(msgspec.Struct, array_like=True):
    major: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Header)
_major_decoder = msgspec.msgpack.Decoder(_Major)


def encode(frame: TokenFrame) -> list[bytes]:
    """Pack a frame into its two parts."""
    columns = pack_columns(frame.slots, frame.tokens, frame.logprobs, frame.flags)
    return [header(frame.stream, frame.incarnation, frame.seq, len(columns) // ROW_BYTES), columns]


def header(stream: str, incarnation: int, seq: int, count: int) -> bytes:
    """The first part."""
    return _encoder.encode(_Header(MAJOR, stream, incarnation, seq, count))


def pack_columns(slots: ArrayLike, tokens: ArrayLike, logprobs: ArrayLike, flags: ArrayLike) -> bytes:
    """The second part. Raises ValueError when the columns differ in length, exceed `MAX_ROWS`, or hold values
    that their types cannot."""
    columns = [
        np.asarray(column, dtype=dtype)
        for column, dtype in ((slots, "<u4"), (tokens, "<u4"), (logprobs, "<f4"), (flags, "u1"))
    ]
    rows = columns[0].size
    if any(column.shape != (rows,) for column in columns):
        raise ValueError(f"columns of shapes {[column.shape for column in columns]}: one length is needed")
    if rows > MAX_ROWS:
        raise ValueError(f"{rows} rows, a frame takes {MAX_ROWS}")
    return b"".join([column.tobytes() for column in columns])


def decode(parts: list[bytes]) -> TokenFrame:
    """Check and unpack a frame; the arrays are read-only views of the second part. Raises as `check` does."""
    return check(parts).unpack()


def check(parts: list[bytes]) -> PackedFrame:
    """Check a frame and leave its columns packed. Raises a `FrameError`: `WrongParts`, `Truncated`,
    `NotAnEnvelope`, `UnknownVersion` or `BadField`."""
    if len(parts) != 2:
        raise WrongParts(f"a token frame has 2 parts, this has {len(parts)}")
    head = _decode_header(parts[0])
    body, rows = parts[1], head.count
    if len(body) != rows * ROW_BYTES:
        raise Truncated(f"{len(body)} bytes of columns, {rows} rows take {rows * ROW_BYTES}")
    if unknown := body[12 * rows :].translate(None, _KNOWN_FLAGS):
        raise BadField(f"flags {unknown[0]:#x}: the known ones are below {len(_KNOWN_FLAGS):#x}")
    return PackedFrame(head.stream, head.incarnation, head.seq, body)


def _decode_header(part: bytes) -> _Header:
    try:
        head = _decoder.decode(part)
    except msgspec.ValidationError as error:
        try:
            major = _major_decoder.decode(part).major
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise NotAnEnvelope("no token frame header") from None
        if major != MAJOR:
            raise UnknownVersion("token frame", major, MAJOR) from None
        raise BadField(f"token frame header: {error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        kind = Truncated if "truncated" in str(error) else NotAnEnvelope
        raise kind(f"token frame header: {error}") from None
    if head.major != MAJOR:
        raise UnknownVersion("token frame", head.major, MAJOR)
    return head
