"""Bytes of a bulk transfer: fixed little-endian headers, ranges and sources.

Owns the request (80 bytes, signed) and the answer (24 bytes, then the payload), and the types with which a
caller names ranges and sources. Opens nothing.
"""

import enum
import hmac
import struct
from dataclasses import dataclass
from typing import Final

from gleaner.transport.refusal import NotAnEnvelope, Truncated

MAGIC: Final = b"GLB1"
GET: Final = 1
TOKEN_ID_BYTES: Final = 16
SECRET_BYTES: Final = 32
MAX_CHUNK_BYTES: Final = 16 << 20  # 1 to 4 MiB are fastest: they stay in the caches
DIGEST_BYTES: Final = 16  # xxh3-128, most significant byte first

_REQUEST = struct.Struct("<4sB3x16sQQII")
_ANSWER = struct.Struct("<4sB3xQII")
_MAC_BYTES: Final = 32
REQUEST_BYTES: Final = _REQUEST.size + _MAC_BYTES
ANSWER_BYTES: Final = _ANSWER.size


class Status(enum.IntEnum):
    """Answer code of a source."""

    OK = 0  # the payload follows
    GONE = 1  # that version is not served (any more)
    UNAUTHORIZED = 2  # unknown token, wrong signature, or a token of another version
    BAD_RANGE = 3  # outside the file, empty, or longer than MAX_CHUNK_BYTES
    NOT_YET = 4  # the source is still pulling it itself: ask again, or elsewhere


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of the published file, in bytes, and the xxh3-128 `digest` that its content must have."""

    offset: int
    length: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class BulkSource:
    """A source of content: `endpoint` "tcp://host:port", and a `token` of `BulkServer.issue_token` (48 bytes,
    secret: it travels only on the control plane)."""

    endpoint: str
    token: bytes

    def __repr__(self) -> str:
        return f"BulkSource({self.endpoint!r})"


@dataclass(frozen=True, slots=True)
class Request:
    """A GET of one range. The answer repeats `tag`."""

    token_id: bytes
    version: int
    offset: int
    length: int
    tag: int


def encode_request(request: Request, secret: bytes) -> bytes:
    """Pack and sign (HMAC-SHA256 over everything before the signature)."""
    head = _REQUEST.pack(
        MAGIC, GET, request.token_id, request.version, request.offset, request.length, request.tag
    )
    return head + hmac.digest(secret, head, "sha256")


def decode_request(frame: bytes) -> Request:
    """Unpack a request; the signature is checked by `is_signed`. Raises `Truncated`, `NotAnEnvelope`."""
    _check_size("request", frame, REQUEST_BYTES)
    magic, op, token_id, version, offset, length, tag = _REQUEST.unpack_from(frame)
    if magic != MAGIC or op != GET:
        raise NotAnEnvelope(f"bulk request begins {frame[:5]!r}, expected {MAGIC + bytes([GET])!r}")
    return Request(token_id, version, offset, length, tag)


def is_signed(frame: bytes, secret: bytes) -> bool:
    """Whether a request was signed with `secret`."""
    mac = hmac.digest(secret, frame[: _REQUEST.size], "sha256")
    return hmac.compare_digest(mac, frame[_REQUEST.size :])


def encode_answer(status: Status, version: int, tag: int, length: int) -> bytes:
    """Pack an answer's header."""
    return _ANSWER.pack(MAGIC, status, version, tag, length)


def decode_answer(frame: bytes) -> tuple[Status, int, int, int]:
    """Unpack (status, version, tag, length). Raises `Truncated`, `NotAnEnvelope`."""
    _check_size("answer", frame, ANSWER_BYTES)
    magic, status, version, tag, length = _ANSWER.unpack(frame)
    if magic != MAGIC or status not in Status.__members__.values():
        raise NotAnEnvelope(f"bulk answer begins {frame[:5]!r}")
    return Status(status), version, tag, length


def _check_size(what: str, frame: bytes, size: int) -> None:
    if len(frame) != size:
        raise Truncated(f"bulk {what} of {len(frame)} bytes, it has {size}")
