"""Codecs for the change of one image chunk: changed elements and their new values.

Owns the five codecs and the choice among them. A chunk is a run of elements of 1, 2 or 4 bytes, compared and
copied as integers: NaN, -0, subnormals and any 8-bit float are bits like all others. Values *replace*, they
are not added, so a change may be applied twice, or again after half of it. Chunks are independent: each is
decoded alone, in any order, by any thread.

The loops are `kernels_numba` (compiled by numba, a core does gigabytes a second) or, where numba is absent,
`kernels_numpy`: the same bytes either way.

Payloads, little-endian; n bytes of chunk are n // width elements and a tail of less than one:

    SAME   nothing
    FULL   the n bytes
    G8R    u32 changed | values | gaps, a byte each | tail
    VARR   u32 changed | values | gaps, LEB128 | tail
    G8RZ   u32 changed | u32 bytes of gaps | u32 bytes of zstd(gaps) | u32 bytes of zstd(high bytes)
           | zstd(gaps) | zstd(high bytes of the values) | their other bytes | tail

A gap is the number of unchanged elements before a changed one. A byte of 255 means 255 unchanged elements and
that the gap continues. The tail is written whenever the payload is not empty.
"""

import enum
import functools
import struct
from typing import Any, Final, Protocol

import numpy as np
from backports import zstd
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Elements = NDArray[np.unsignedinteger[Any]]

WIDTHS: Final[dict[int, type[np.unsignedinteger[Any]]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32}
MAX_BYTES: Final = 16 << 20
"""The largest chunk: `gleaner.transport.bulk_frames.MAX_CHUNK_BYTES`. A gap in it fits 4 bytes of LEB128."""
FULL_SHARE: Final = 0.6
"""Beyond this part of the chunk the whole chunk is sent: it is applied at the speed of a copy."""
COMPILED_BYTES: Final = 256 << 20
"""An image below this size is processed by numpy, at a GB/s, before numba has loaded and compiled."""
SPARSE: Final = 250
"""If fewer than one element in so many changed, gaps as LEB128 are shorter than bytes with escapes."""

_HEAD = struct.Struct("<I")
_HEAD_Z = struct.Struct("<IIII")
_LEVEL = 1  # levels above gain nothing here: gaps and high bytes have a distribution, and no repetition
_ZSTD: dict[int, int] = {
    zstd.DecompressionParameter.window_log_max: 24
}  # no frame of ours looks back further than a chunk


class Codec(enum.IntEnum):
    """See the module."""

    SAME = 0
    FULL = 1
    G8R = 2
    VARR = 3
    G8RZ = 4


class DeltaError(ValueError):
    """A delta that cannot be used. Pull the chunk, or the version, whole instead."""


class DamagedPayload(DeltaError):
    """The payload of a chunk does not decode: it was made for another chunk, or changed on the way."""


class Kernels(Protocol):
    """The loops. Arrays of elements are as long as the chunk, without its tail."""

    def differences(self, old: Elements, new: Elements, most_bytes: int) -> tuple[Bytes, Elements] | None:
        """Byte gaps and new values of the changed elements; None if both take more than `most_bytes`."""

    def place(self, gaps: Bytes, values: Elements, into: Elements) -> bool:
        """Write values at the positions that the byte gaps give.

        Returns False, possibly after writing a part of them, if a position is outside, or gaps and values are
        not equally many."""

    def shorter(self, gaps: Bytes) -> Bytes:
        """Byte gaps as LEB128."""

    def place_sparse(self, gaps: Bytes, values: Elements, into: Elements) -> bool:
        """As `place`, for LEB128."""


def kernels_for(image_bytes: int) -> Kernels:
    """The kernels that finish the image first: compiled ones cost a process seconds at their first use."""
    if image_bytes >= COMPILED_BYTES:
        return kernels()
    from gleaner.actors.weights.delta import kernels_numpy as delta_numpy

    return delta_numpy


@functools.cache
def kernels() -> Kernels:
    """The fastest kernels on this machine. Compiles at their first use, not here."""
    try:
        from gleaner.actors.weights.delta import kernels_numba as delta_kernels
    except ImportError:  # no numba for this machine: slower, and the same bytes
        from gleaner.actors.weights.delta import kernels_numpy as delta_numpy

        return delta_numpy
    return delta_kernels


def encode_chunk(
    old: memoryview, new: memoryview, width: int, *, compress: bool = False, loops: Kernels | None = None
) -> tuple[Codec, bytes]:
    """What turns `old` into `new`: a codec and its payload.

    `width`: bytes of an element, 1, 2 or 4; a wrong one costs bytes and nothing else. `compress`: try zstd,
    for links that are slower than a core decompresses. `loops`: other kernels than `kernels()`. Both chunks
    have the same length, at most `MAX_BYTES`. Raises ValueError if they have not.
    """
    was, now = _bytes_of(old), _bytes_of(new)
    if was.size != now.size or now.size > MAX_BYTES or width not in WIDTHS:
        raise ValueError(
            f"a chunk of {was.size} and one of {now.size} bytes, of width {width}: they must be equally "
            f"long, at most {MAX_BYTES} bytes, with elements of {sorted(WIDTHS)} bytes"
        )
    whole = now.size - now.size % width
    tail = now[whole:].tobytes()
    most = max(0, int(now.size * FULL_SHARE) - _HEAD.size - len(tail))
    loops = loops if loops is not None else kernels()
    found = loops.differences(was[:whole].view(WIDTHS[width]), now[:whole].view(WIDTHS[width]), most)
    if found is None:
        return Codec.FULL, now.tobytes()
    gaps, values = found
    if not values.size and was[whole:].tobytes() == tail:
        return Codec.SAME, b""
    sparse = values.size * SPARSE < whole // width
    codec, short = (Codec.VARR, loops.shorter(gaps)) if sparse else (Codec.G8R, gaps)
    payload = b"".join((_HEAD.pack(values.size), values.tobytes(), short.tobytes(), tail))
    if compress:
        pressed = _compressed(gaps, values, width) + tail
        if len(pressed) < len(payload):
            codec, payload = Codec.G8RZ, pressed
    return (codec, payload) if len(payload) <= now.size * FULL_SHARE else (Codec.FULL, now.tobytes())


def apply_chunk(
    codec: int, payload: memoryview, into: memoryview, width: int, *, loops: Kernels | None = None
) -> None:
    """Turn the old chunk in `into` into the new one, in place.

    Applying again changes nothing. Never writes outside `into`. Only the chunk's digest shows whether the
    outcome is right, because a damaged payload may still decode. Raises `DamagedPayload`; `into` may be half
    changed then.
    """
    target, data = _bytes_of(into), _bytes_of(payload)
    if width not in WIDTHS:
        raise DamagedPayload(f"elements of {width} bytes; there are {sorted(WIDTHS)}")
    if codec == Codec.SAME:
        if data.size:
            raise DamagedPayload(f"{data.size} bytes come with a chunk that did not change")
    elif codec == Codec.FULL:
        if data.size != target.size:
            raise DamagedPayload(f"{data.size} bytes for a chunk of {target.size}")
        np.copyto(target, data)
    elif codec in (Codec.G8R, Codec.VARR, Codec.G8RZ):
        _replace(Codec(codec), data, target, width, loops if loops is not None else kernels())
    else:
        raise DamagedPayload(f"codec {codec} is unknown; there are {[int(known) for known in Codec]}")


def _replace(codec: Codec, data: Bytes, target: Bytes, width: int, loops: Kernels) -> None:
    whole = target.size - target.size % width
    tail_at = data.size - (target.size - whole)
    head = _HEAD_Z if codec is Codec.G8RZ else _HEAD
    if tail_at < head.size:
        raise DamagedPayload(f"{data.size} bytes are no {codec.name} of a chunk of {target.size}")
    changed = int(head.unpack_from(data.data)[0])
    if changed * width > whole:
        raise DamagedPayload(f"{changed} elements of {width} bytes changed in a chunk of {target.size}")
    if codec is Codec.G8RZ:
        gaps, values = _decompressed(data[:tail_at], whole // width, width)
    else:
        gaps_at = head.size + changed * width
        if gaps_at > tail_at:
            raise DamagedPayload(f"{changed} elements changed, {data.size} bytes do not hold them")
        gaps, values = data[gaps_at:tail_at], data[head.size : gaps_at].view(WIDTHS[width])
    place = loops.place_sparse if codec is Codec.VARR else loops.place
    if not place(gaps, values, target[:whole].view(WIDTHS[width])):
        raise DamagedPayload(f"the gaps of {changed} elements do not lie in a chunk of {target.size} bytes")
    np.copyto(target[whole:], data[tail_at:])


def _compressed(gaps: Bytes, values: Elements, width: int) -> bytes:
    """A payload of G8RZ, without the tail."""
    planes = values.view(np.uint8).reshape(-1, width)
    short, high = (zstd.compress(part.tobytes(), _LEVEL) for part in (gaps, planes[:, width - 1]))
    head = _HEAD_Z.pack(values.size, gaps.size, len(short), len(high))
    return b"".join((head, short, high, planes[:, : width - 1].tobytes()))


def _decompressed(data: Bytes, elements: int, width: int) -> tuple[Bytes, Elements]:
    """Gaps and values of a payload of G8RZ without its tail. Raises `DamagedPayload`."""
    changed, gap_bytes, short, high = _HEAD_Z.unpack_from(data.data)
    at = _HEAD_Z.size
    if gap_bytes > elements or at + short + high + changed * (width - 1) != data.size:
        raise DamagedPayload(f"{changed} elements and {gap_bytes} bytes of gaps do not fit {data.size} bytes")
    planes = np.empty((changed, width), np.uint8)
    planes[:, width - 1] = _inflated(data[at + short : at + short + high], changed)
    planes[:, : width - 1] = data[at + short + high :].reshape(changed, width - 1)
    return _inflated(data[at : at + short], gap_bytes), planes.reshape(-1).view(WIDTHS[width])


def _inflated(pressed: Bytes, size: int) -> Bytes:
    """Decompress to so many bytes, and never more. Raises `DamagedPayload`."""
    reader = zstd.ZstdDecompressor(options=_ZSTD)
    try:
        plain = reader.decompress(pressed.data, max_length=size + 1)
    except zstd.ZstdError as error:
        raise DamagedPayload(f"{pressed.size} bytes are no zstd: {error}") from error
    if len(plain) != size or not reader.eof or reader.unused_data:
        raise DamagedPayload(f"{pressed.size} bytes of zstd do not hold {size} bytes and an end")
    return np.frombuffer(plain, np.uint8)


def _bytes_of(buffer: memoryview) -> Bytes:
    return np.frombuffer(buffer, np.uint8)
