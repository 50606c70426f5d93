"""`codec.Kernels` in plain numpy, for machines without numba.

Several times slower (docs/weights.md has both figures), with the same output bytes.
"""

import numpy as np

from gleaner.actors.weights.delta.codec import Bytes, Elements

ESCAPE = 255


def differences(old: Elements, new: Elements, most_bytes: int) -> tuple[Bytes, Elements] | None:
    """See `Kernels`."""
    at = np.flatnonzero(old != new)
    if at.size * (1 + new.itemsize) > most_bytes:
        return None
    before = np.empty_like(at)
    before[:1], before[1:] = 0, at[:-1] + 1
    escapes, rest = np.divmod(at - before, ESCAPE)
    if at.size * (1 + new.itemsize) + int(escapes.sum()) > most_bytes:
        return None
    gaps = np.full(at.size + int(escapes.sum()), ESCAPE, np.uint8)
    gaps[np.cumsum(escapes + 1) - 1] = rest
    return gaps, new[at]


def place(gaps: Bytes, values: Elements, into: Elements) -> bool:
    """See `Kernels`."""
    ends = gaps != ESCAPE
    at = np.cumsum(gaps + ends.astype(np.int64))[ends] - 1
    if gaps.size and not ends[-1]:
        return False
    return _put(at, values, into)


def shorter(gaps: Bytes) -> Bytes:
    """See `Kernels`."""
    ends = gaps != ESCAPE
    sums = np.cumsum(gaps, dtype=np.int64)[ends]
    wide = np.diff(sums, prepend=0)
    size = 1 + (wide >= 1 << 7) + (wide >= 1 << 14) + (wide >= 1 << 21)
    first = np.cumsum(size) - size
    short = np.empty(int(size.sum()), np.uint8)
    for part in range(4):
        has = size > part
        more = (size[has] > part + 1).astype(np.int64) << 7
        short[first[has] + part] = (wide[has] >> 7 * part & 0x7F) | more
    return short


def place_sparse(gaps: Bytes, values: Elements, into: Elements) -> bool:
    """See `Kernels`."""
    last = np.flatnonzero(gaps < 0x80)
    first = np.empty_like(last)
    first[:1], first[1:] = 0, last[:-1] + 1
    size = last - first + 1
    if (gaps.size and gaps[-1] >= 0x80) or np.any(size > 4):
        return False
    wide = np.zeros(last.size, np.int64)
    for part in range(4):
        has = size > part
        wide[has] |= (gaps[first[has] + part].astype(np.int64) & 0x7F) << 7 * part
    return _put(np.cumsum(wide + 1) - 1, values, into)


def _put(at: np.ndarray[tuple[int], np.dtype[np.int64]], values: Elements, into: Elements) -> bool:
    if at.size != values.size or (at.size and int(at[-1]) >= into.size):
        return False
    into[at] = values
    return True
