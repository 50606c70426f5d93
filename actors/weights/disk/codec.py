"""Tensor difference format of slime and Stitch, for a shared file system.

Owns one tensor: its difference, the digest of the result, and applying both. `layout` lists the tensors
and their files. Pure. Unlike `delta.codec`, these differences cover whole tensors and do not identify their
base bytes, so only the digest shows that the base was right.

Format (slime, docs/en/advanced/delta-weight-sync.md, and the /pull_weights of its SGLang; Stitch's SGLang
takes `xor`): a frame of zstd around

    xor        new ^ old, byte by byte
    overwrite  u32 changed | u32 position, each | new byte, each; little-endian

The digest, as lower-case hexadecimal, is of the tensor's new bytes.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, Protocol, get_args
from zlib import adler32

import blake3
import numpy as np
import xxhash
from backports import zstd
from numpy.typing import NDArray

Encoding = Literal["xor", "overwrite"]
Checksum = Literal["xxh3-128", "blake3", "adler32"]

ENCODINGS: Final[tuple[str, ...]] = get_args(Encoding)
CHECKSUMS: Final[tuple[str, ...]] = get_args(Checksum)
OVERWRITE_BYTES: Final = 1 << 32
"""A larger tensor cannot be written as `overwrite`, because its positions have 32 bits."""

_BLOCK_BYTES: Final = 2 << 20  # stays in the second cache between decompressing, xor and digest
_LEVEL: Final = 1  # what slime compresses with, always
_ZSTD: Final[dict[int, int]] = {zstd.DecompressionParameter.window_log_max: 25}
"""32 MiB, as levels up to 20 look back; what a frame asks for beyond is refused before it is allocated."""

_Bytes = NDArray[np.uint8]


class DiskDeltaError(ValueError):
    """A published version that cannot be read, or written."""


class BadTensorDelta(DiskDeltaError):
    """The difference of a tensor does not decode: torn, or of a tensor of another size."""


class _Digest(Protocol):
    def update(self, data: Any, /) -> object: ...

    def hexdigest(self) -> str: ...


def encode_tensor(old: memoryview, new: memoryview, encoding: str) -> bytes | None:
    """The difference that turns `old` into `new`, which have equal lengths; None if nothing changed.

    Raises DiskDeltaError for a tensor that the encoding cannot hold, ValueError for unequal lengths.
    """
    was, now = _bytes_of(old), _bytes_of(new)
    if was.size != now.size:
        raise ValueError(f"a tensor of {was.size} bytes before has {now.size}")
    if np.array_equal(was, now):
        return None
    if encoding == "xor":
        return _xored(was, now)
    if now.size > OVERWRITE_BYTES:
        raise DiskDeltaError(f"a tensor of {now.size} bytes is too large for overwrite: write it as xor")
    at = np.flatnonzero(was != now)
    plain = np.empty(4 + 5 * at.size, np.uint8)
    plain[:4] = np.array([at.size], "<u4").view(np.uint8)
    plain[4 : 4 + 4 * at.size] = at.astype("<u4").view(np.uint8)
    np.take(now, at, out=plain[4 + 4 * at.size :])
    return zstd.compress(plain.data, _LEVEL)  # in one call: the frame records its size, which readers need


def apply_tensor(payload: memoryview, into: memoryview, encoding: str) -> None:
    """Turn the old tensor in `into` into the new one, in place, and never write outside of it.

    `xor` must be applied once, `overwrite` any number of times. Only the digest shows whether the result is
    right. Raises BadTensorDelta; `into` may be half changed then.
    """
    target = _bytes_of(into)
    if encoding == "xor":
        at = 0
        for block in _inflated(payload, target.size):
            target[at : at + block.size] ^= block
            at += block.size
        if at != target.size:
            raise BadTensorDelta(f"a difference of {at} bytes for a tensor of {target.size}")
        return
    blocks = list(_inflated(payload, 4 + 5 * target.size))
    plain = np.concatenate(blocks) if blocks else np.empty(0, np.uint8)
    changed = int(plain[:4].view("<u4")[0]) if plain.size >= 4 else 0
    if plain.size != 4 + 5 * changed:
        raise BadTensorDelta(f"{plain.size} bytes do not hold {changed} changes")
    at_each = plain[4 : 4 + 4 * changed].view("<u4")
    if changed and int(at_each.max()) >= target.size:
        raise BadTensorDelta(f"a change at byte {int(at_each.max())} of a tensor of {target.size}")
    target[at_each] = plain[4 + 4 * changed :]


def digest(checksum: str, data: memoryview) -> str:
    """The digest of a tensor's bytes. Raises DiskDeltaError for an unknown checksum."""
    make = _DIGESTS.get(checksum)
    if make is None:
        raise DiskDeltaError(f"the checksum {checksum!r} is unknown; there are {', '.join(CHECKSUMS)}")
    hashed = make()
    hashed.update(data.cast("B"))
    return hashed.hexdigest()


class _Adler32:
    """As the others are."""

    def __init__(self) -> None:
        self._value = 1

    def update(self, data: memoryview, /) -> None:
        """Add more bytes."""
        self._value = adler32(data, self._value)

    def hexdigest(self) -> str:
        """Eight digits."""
        return f"{self._value:08x}"


_DIGESTS: Final[dict[str, Callable[[], _Digest]]] = {
    "xxh3-128": xxhash.xxh3_128,
    "blake3": blake3.blake3,
    "adler32": _Adler32,
}


def _xored(was: _Bytes, now: _Bytes) -> bytes:
    """Xor a block at a time, so that a tensor of gigabytes needs no second copy."""
    press = zstd.ZstdCompressor(_LEVEL)
    press.set_pledged_input_size(now.size)
    parts = [
        press.compress((was[at : at + _BLOCK_BYTES] ^ now[at : at + _BLOCK_BYTES]).data)
        for at in range(0, now.size, _BLOCK_BYTES)
    ]
    return b"".join((*parts, press.flush()))


def _inflated(payload: memoryview, most_bytes: int) -> Iterator[_Bytes]:
    """Decompress one frame, block by block, to at most so many bytes. Raises BadTensorDelta."""
    reader = zstd.ZstdDecompressor(options=_ZSTD)
    data: memoryview | bytes = payload.cast("B")
    made = 0
    while not reader.eof:
        try:
            block = reader.decompress(data, max_length=_BLOCK_BYTES)
        except zstd.ZstdError as error:
            raise BadTensorDelta(f"{len(payload)} bytes are no frame of zstd: {error}") from error
        data = b""
        if not block and not reader.eof:
            raise BadTensorDelta(f"{len(payload)} bytes of zstd end before their frame does")
        made += len(block)
        if made > most_bytes:
            raise BadTensorDelta(f"more than {most_bytes} bytes in a difference of a smaller tensor")
        yield np.frombuffer(block, np.uint8)
    if reader.unused_data:
        raise BadTensorDelta(f"{len(reader.unused_data)} bytes follow the frame")


def _bytes_of(buffer: memoryview) -> _Bytes:
    return np.frombuffer(buffer, np.uint8)
