"""`codec.Kernels` compiled by numba for this processor.

Each width is compiled when it is first needed (seconds, once a machine). The compiled code is cached where
the compiled form of this file is: in the `__pycache__` beside it or, if that is not writable, in the user's
own cache. Only users who can write this file can write either cache. The kernels run without the
interpreter's lock.

Lane 0 of a word is its first element: little-endian machines, as x86 and ARM are.
"""

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.cpython.unsafe.numbers import trailing_zeros

from gleaner.actors.weights.delta import kernels_numpy as delta_numpy
from gleaner.actors.weights.delta.codec import Bytes, Elements

ESCAPE = 255
TILE_WORDS = 1024
"""Words of 8 bytes that are compared before the differences are written: both stay in the first cache."""

TOGETHER = 8
"""Gaps that are followed after one check that none of their values can be out of range. The numbers are
unsigned, because numba counts a negative signed index from the end."""

ALIAS_BYTES, PAGE_BYTES = 1 << 28, 4096
"""Two images at a distance of a multiple of 256 MiB, as slots of such a size have, are read in step at a
third of the speed on AMD's processors: their first cache confuses the lines (Lipp et al., Take A Way, 2020).
So the old words are copied first, a tile at a time; half as fast again, and elsewhere a waste."""

_UNSIGNED = {1: types.uint8, 2: types.uint16, 4: types.uint32}


def differences(old: Elements, new: Elements, most_bytes: int) -> tuple[Bytes, Elements] | None:
    """See `Kernels`."""
    width, count = new.itemsize, new.size
    words = count * width // 8
    lanes = [array.view(np.uint8)[: words * 8].view(np.uint64) for array in (old, new)]
    if not all(array.flags.aligned for array in (*lanes, old, new)):
        return delta_numpy.differences(old, new, most_bytes)
    # Never more of either than elements: a gap byte passes one at least. Untouched pages cost nothing.
    gaps, values = np.empty(count, np.uint8), np.empty(count, new.dtype)
    used, changed = _differences(width)(*lanes, old, new, _in_step(old, new), most_bytes, gaps, values)
    return (gaps[:used], values[:changed]) if used >= 0 else None


def place(gaps: Bytes, values: Elements, into: Elements) -> bool:
    """See `Kernels`."""
    if not into.flags.aligned:
        return delta_numpy.place(gaps, values, into)
    done: bool = _place(into.itemsize)(gaps, _aligned(values), into)
    return done


def shorter(gaps: Bytes) -> Bytes:
    """See `Kernels`."""
    short = np.empty(2 * gaps.size, np.uint8)  # a gap of 128 takes two, where a byte was enough
    return short[: _shorter()(gaps, short)]


def place_sparse(gaps: Bytes, values: Elements, into: Elements) -> bool:
    """See `Kernels`."""
    if not into.flags.aligned:
        return delta_numpy.place_sparse(gaps, values, into)
    done: bool = _place_sparse(into.itemsize)(gaps, _aligned(values), into)
    return done


def _in_step(old: Elements, new: Elements) -> bool:
    apart = (old.ctypes.data - new.ctypes.data) % ALIAS_BYTES
    return min(apart, ALIAS_BYTES - apart) < PAGE_BYTES


def _aligned(values: Elements) -> Elements:
    return values if values.flags.aligned else values.copy()


@functools.cache
def _differences(width: int) -> Callable[..., tuple[int, int]]:
    lanes, mask = 8 // width, np.uint64((1 << 8 * width) - 1)
    bits = np.uint64((8 * width).bit_length() - 1)  # log2 of the bits of an element

    def loop(old_words, new_words, old, new, in_step, most_bytes, gaps, values):  # type: ignore[no-untyped-def]
        """Bytes of gaps and number of values, or (-1, -1) for too many."""
        words, tile = np.empty(TILE_WORDS, np.int64), np.empty(TILE_WORDS, np.uint64)
        used, changed, following = 0, 0, 0
        for start in range(0, old_words.size, TILE_WORDS):
            count, stop = 0, min(start + TILE_WORDS, old_words.size)
            if in_step:
                tile[: stop - start] = old_words[start:stop]
                new_tile = new_words[start:stop]
                for i in range(stop - start):
                    words[count] = start + i
                    count += tile[i] != new_tile[i]
            else:
                for word in range(start, stop):
                    words[count] = word  # all are written, few kept: no branch that would be mispredicted
                    count += old_words[word] != new_words[word]
            for i in range(count):
                word = words[i]
                now = new_words[word]
                differing = now ^ (tile[word - start] if in_step else old_words[word])
                while differing != 0:
                    lane = trailing_zeros(differing) >> bits
                    at = word * lanes + np.int64(lane)
                    gap = at - following
                    while gap >= ESCAPE:
                        gaps[used] = ESCAPE
                        used += 1
                        gap -= ESCAPE
                    gaps[used] = gap
                    used += 1
                    values[changed] = (now >> (lane << bits)) & mask
                    changed += 1
                    following = at + 1
                    differing &= ~(mask << (lane << bits))
            if used + changed * width > most_bytes:
                return -1, -1
        for at in range(old_words.size * lanes, old.size):  # less than a word
            if old[at] != new[at]:
                gap = at - following
                while gap >= ESCAPE:
                    gaps[used] = ESCAPE
                    used += 1
                    gap -= ESCAPE
                gaps[used] = gap
                used += 1
                values[changed] = new[at]
                changed += 1
                following = at + 1
        return (used, changed) if used + changed * width <= most_bytes else (-1, -1)

    element = _UNSIGNED[width]
    words_in, elements_in = _in(types.uint64), _in(element)
    parts = (words_in, words_in, elements_in, elements_in)
    signature = (*parts, types.boolean, types.int64, _out(types.uint8), _out(element))
    return _compiled(loop, signature)


@functools.cache
def _place(width: int) -> Callable[..., bool]:
    def loop(gaps, values, into):  # type: ignore[no-untyped-def]
        one, many = np.uint64(1), np.uint64(TOGETHER)
        ends, most, size = np.uint64(gaps.size), np.uint64(values.size), np.uint64(into.size)
        i, at, count = np.uint64(0), np.uint64(0), np.uint64(0)
        while i + many <= ends and count + many <= most and at + many * np.uint64(ESCAPE) <= size:
            for each in range(many):  # a gap passes 255 at most, with the bytes written behind it
                gap = np.uint64(gaps[i + each])
                at += gap
                if gap != ESCAPE:
                    into[at] = values[count]
                    count += one
                    at += one
            i += many
        while i < ends:
            gap = np.uint64(gaps[i])
            at += gap
            if gap != ESCAPE:
                if at >= size or count >= most:
                    return False
                into[at] = values[count]
                count += one
                at += one
            i += one
        return count == most and (ends == 0 or gaps[ends - one] != ESCAPE)

    element = _UNSIGNED[width]
    return _compiled(loop, (_in(types.uint8), _in(element), _out(element)))


@functools.cache
def _shorter() -> Callable[..., int]:
    def loop(gaps, short):  # type: ignore[no-untyped-def]
        used, wide = 0, 0
        for i in range(gaps.size):
            wide += gaps[i]
            if gaps[i] != ESCAPE:
                while wide >= 0x80:
                    short[used] = (wide & 0x7F) | 0x80
                    used += 1
                    wide >>= 7
                short[used] = wide
                used += 1
                wide = 0
        return used

    return _compiled(loop, (_in(types.uint8), _out(types.uint8)))


@functools.cache
def _place_sparse(width: int) -> Callable[..., bool]:
    def loop(gaps, values, into):  # type: ignore[no-untyped-def]
        one, most, size = np.uint64(1), np.uint64(values.size), np.uint64(into.size)
        at, wide, count, shift = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
        for i in range(np.uint64(gaps.size)):
            part = np.uint64(gaps[i])
            wide |= (part & np.uint64(0x7F)) << shift
            shift += np.uint64(7)
            if part < 0x80:
                at += wide
                if at >= size or count >= most:
                    return False
                into[at] = values[count]
                count += one
                at += one
                wide, shift = np.uint64(0), np.uint64(0)
            elif shift == 28:  # no gap within a chunk takes a fifth byte
                return False
        return count == most and shift == 0

    element = _UNSIGNED[width]
    return _compiled(loop, (_in(types.uint8), _in(element), _out(element)))


def _in(element: object) -> object:
    return types.Array(element, 1, "C", readonly=True)


def _out(element: object) -> object:
    return types.Array(element, 1, "C")


def _compiled(loop: Callable[..., Any], signature: tuple[object, ...]) -> Callable[..., Any]:
    kernel: Callable[..., Any]
    try:
        kernel = numba.njit(signature, nogil=True, cache=True)(loop)
    except RuntimeError:  # there is no place to keep it: a read-only system, and a user without a home
        kernel = numba.njit(signature, nogil=True)(loop)
    return kernel
